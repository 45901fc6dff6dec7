"""Access control before every handler: authentication, authorization and audit.

When it is off, the table has the bare handlers; only administrative ones are wrapped, for the log.
The hot path asks `admission`, which refuses nothing: a frame that it does not let pass comes here.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import structlog

from aerobee.broker.auth.audit import Audit, Audited, note
from aerobee.broker.auth.book import SHIPPED_SECRET, AccessBook
from aerobee.broker.auth.freshness import Freshness
from aerobee.broker.auth.model import (
    ANONYMOUS,
    Access,
    AccessError,
    Verdict,
)
from aerobee.broker.auth.needs import Ask, Asked, TopicOfCarried, TopicOfRecord
from aerobee.broker.auth.permissions import ADMINISTRATIVE, ROWS, Level, Row, missing_rows
from aerobee.broker.auth.signature import is_signed_by
from aerobee.broker.auth.verdicts import (
    BAD_SIGNATURE,
    DISABLED,
    STALE,
    UNSIGNED,
    Denied,
    Principal,
    deny,
    judge,
    proven,
    pull_asks,
)
from aerobee.broker.base.clock import Clock
from aerobee.broker.base.refused import Refused
from aerobee.broker.net.addresses import is_loopback
from aerobee.broker.net.connection import Connection
from aerobee.broker.net.requests import Handler, Request
from aerobee.broker.settings import Settings
from aerobee.protocol.wire.codes import RequestCode
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.signing import ACCESS_KEY, FRESH_CODE, FRESH_NUMBER, FRESH_TIME

log = structlog.get_logger("aerobee.access")

SignedBy = Callable[[Collection[str] | None], bool]  # whether one of these secrets was used
GUESSES_MAX: Final = 20  # wrong signatures that one connection may send


class Guard:
    """Access control for all connections of a process."""

    def __init__(
        self,
        settings: Settings,
        book: AccessBook,
        clock: Clock,
        topic_of_record: TopicOfRecord = lambda _offset: None,
        topic_of_carried: TopicOfCarried = lambda _offset, _queue_offset: None,
    ) -> None:
        self.is_on = settings.acl_enable or settings.authentication_enabled
        self.book = book
        self.audit = Audit(clock)
        self._settings = settings
        self._topic_of_record = topic_of_record
        self._topic_of_carried = topic_of_carried
        self.freshness = Freshness(clock, settings.request_freshness_millis)
        self._rows = _rows(settings)

    def load(self) -> None:
        """Read users and rights; AccessError says why the process must not start with them."""
        settings = self._settings
        if settings.authorization_enabled and not self.is_on:
            raise AccessError(
                "authorizationEnabled=true without authenticationEnabled=true would trust any "
                "user name; set both, or aclEnable=true"
            )
        is_local = is_loopback(settings.bind_address)
        if not self.is_on:
            if not is_local and not settings.allow_anonymous:
                raise AccessError(
                    f"bindAddress={settings.bind_address} would let everybody who reaches it read "
                    "and change everything; set aclEnable=true and add a user (docs/security.md "
                    "shows how), or say allowAnonymous=true if nobody else can reach it"
                )
            if not is_local:
                log.warning("anybody who reaches this machine may read and change everything")
            return
        self.book.load()
        users = self.book.current.users.values()
        if not users:
            raise AccessError(
                "access control is on and there is no user: add one with `aerobee user add NAME "
                f"--super --store {settings.store_path_root_dir}`, or name a file of users with "
                "--set aclFile=FILE"
            )
        if not is_local:
            if settings.tls_server_mode == "disabled" or not settings.tls_server_cert_path:
                log.warning("requests are signed but not encrypted: name a certificate for TLS")
            for user in users:
                if SHIPPED_SECRET in user.secrets:
                    raise AccessError(
                        f"User:{user.name} ({user.origin}) has the secret of Apache's example, "
                        "which everybody knows; give it another before listening beyond this "
                        "machine"
                    )

    def reload(self) -> None:
        if self.is_on:
            self.book.reload()

    # --- the table of handlers

    def guarded(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """The handlers behind their checks; each must have a row of permissions."""
        missing = missing_rows(handlers)
        assert not missing, f"request codes {missing} have no row in auth.permissions"
        return {code: self._guarded(code, handler) for code, handler in handlers.items()}

    def _guarded(self, code: int, handler: Handler) -> Handler:
        if code in ADMINISTRATIVE:
            handler = self._audited(handler)
        if not self.is_on or self._rows[code] is Level.OPEN:
            return handler

        def guarded(request: Request) -> Command | None:
            self.admit(request)
            return handler(request)

        return guarded

    def _audited(self, handler: Handler) -> Handler:
        def audited(request: Request) -> Command | None:
            try:
                answer = handler(Audited(request, self.audit))
            except Refused as error:
                note(self.audit, request, error.code, error.remark)
                raise
            if answer is not None:
                note(self.audit, request, answer.code, answer.remark or "")
            return answer

        return audited

    # --- the general path

    def admit(self, request: Request) -> None:
        """Let the request pass, with its principal, or raise Denied."""
        command, address = request.command, request.connection.peer[0]
        certified = request.connection.certified
        try:
            principal = self.authenticate(
                command.code, command.ext, command.body, address, certified
            )
            request.principal = principal
            request.connection.user = proven(principal)
            if self.must_be_fresh(principal) and (
                why := self.why_stale(principal, command.code, command.ext)
            ):
                raise Denied(STALE, why)
            self.authorize(principal, command)
        except Denied as denied:
            self.audit.denied(
                denied.reason,
                user=command.ext.get(ACCESS_KEY) or ANONYMOUS,
                address=address,
                code=command.code,
                text=denied.remark,
                rule=denied.rule,
            )
            if denied.reason == BAD_SIGNATURE:
                _count_guess(request.connection)
            raise

    def authenticate(
        self,
        code: int,
        ext: Mapping[str, str],
        body: bytes | memoryview,
        address: str,
        certified: frozenset[str] = frozenset(),
    ) -> Principal:
        """The authenticated requester; Denied when there is none."""

        def is_signed(known: Collection[str] | None) -> bool:
            return is_signed_by(known, code, ext, body)

        return self.identify(code, ext.get(ACCESS_KEY, ""), is_signed, address, certified)

    def identify(
        self, code: int, name: str, is_signed: SignedBy, address: str, certified: frozenset[str]
    ) -> Principal:
        """The user of this access key or certificate; Denied when there is neither."""
        access, generation = self.book.current, self.book.generation
        user = access.users.get(name or ANONYMOUS)
        is_white_user = user is not None and user.is_enabled and user.is_white(address)
        if is_white_user or access.is_white(address):
            return Principal(name or ANONYMOUS, address, None, generation)
        if not name:
            if certified and (known_by := access.by_certificate.keys() & certified):
                return self._certified(access, min(known_by), address, generation)
            if user is None or not user.is_enabled:
                raise Denied(
                    UNSIGNED,
                    f"request {code} is not signed and needs a user: give the client an access key "
                    "and a secret key",
                )
            return Principal(ANONYMOUS, address, user, generation)
        known = user.secrets if user is not None and name != ANONYMOUS else None
        if not is_signed(known) or user is None:
            raise Denied(
                BAD_SIGNATURE,
                f"check signature failed: there is no User:{name}, or its secret key is different",
            )
        if not user.is_enabled:
            raise Denied(DISABLED, f"User:{name} is disabled.")
        return Principal(name, address, user, generation)

    def _certified(
        self, access: Access, certificate: str, address: str, generation: int
    ) -> Principal:
        user = access.users[access.by_certificate[certificate]]
        if not user.is_enabled:
            raise Denied(DISABLED, f"User:{user.name} is disabled.")
        return Principal(user.name, address, user, generation, certificate)

    def authorize(self, principal: Principal, command: Command) -> None:
        """Denied when the principal may not have what the request needs."""
        row, user = self._rows[command.code], principal.user
        if user is None or row is Level.SIGNED or row is Level.OPEN:
            return
        if row is Level.SUPER:
            if not user.is_super:
                what = f"request {command.code}"
                deny(principal, what, Verdict(False, "only a super user may"))
            return
        assert isinstance(row, tuple)
        asked = Asked(
            command,
            self._settings.broker_cluster_name,
            self._topic_of_record,
            self._topic_of_carried,
        )
        for need in row:
            self.check(principal, need(asked))

    def check(self, principal: Principal, asks: Iterable[Ask]) -> None:
        user = principal.user
        if user is None:
            return
        for ask in asks:
            verdict = judge(user, ask.actions, ask.resource, principal.address)
            if not verdict.allowed:
                deny(principal, f"{'/'.join(sorted(ask.actions))} {ask.resource}", verdict)

    # --- requests that cannot be replayed

    def must_be_fresh(self, principal: Principal) -> bool:
        user = principal.user
        if user is None or not principal.secrets:
            return False
        return user.is_fresh or self._settings.requests_must_be_fresh

    def why_stale(self, principal: Principal, code: int, ext: Mapping[str, str]) -> str:
        signed_code, number, made = (
            ext.get(name, "") for name in (FRESH_CODE, FRESH_NUMBER, FRESH_TIME)
        )
        return self.freshness.why_stale(principal.name, code, signed_code, number, made)

    # --- long polls

    def check_again(self, principal: Principal, topic: str, group: str) -> None:
        """Check a pull that has waited before it is answered: Denied if it is no longer allowed."""
        if principal.generation == self.book.generation:
            return
        access = self.book.current
        user = access.users.get(principal.name)
        if access.is_white(principal.address):
            return
        certificate = principal.certificate
        if (
            user is None
            or not user.is_enabled
            or (certificate and certificate not in user.certificates)
        ):
            raise Denied(DISABLED, f"User:{principal.name} was removed or disabled.")
        if principal.user is not None or not user.is_white(principal.address):
            generation = self.book.generation
            now = Principal(principal.name, principal.address, user, generation, certificate)
            self.check(now, pull_asks(topic, group))


def _count_guess(connection: Connection) -> None:
    """Close a connection that keeps guessing secrets, once its last answer is written."""
    connection.bad_signatures += 1
    if connection.bad_signatures == GUESSES_MAX:
        reason = f"{GUESSES_MAX} requests with a wrong signature"
        asyncio.get_running_loop().call_soon(connection.close, reason)


def _rows(settings: Settings) -> dict[int, Row]:
    """The table, with what the settings open or close."""
    rows = dict(ROWS)
    if settings.routes_need_signature:
        rows[RequestCode.GET_ROUTEINFO_BY_TOPIC] = Level.SIGNED
    rows.update(dict.fromkeys(_codes(settings.authorization_whitelist), Level.SIGNED))
    rows.update(dict.fromkeys(_codes(settings.authentication_whitelist), Level.OPEN))
    return rows


def _codes(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part.strip()]
