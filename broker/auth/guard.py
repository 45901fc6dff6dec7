"""Stands before the handlers: who asks, may he, and what is written down of it.

Off, handlers stand in the table as they are; only administrative ones leave their line in the log.
The hot path asks `admits`, which refuses nothing: a frame that it does not let pass goes the
general way and is refused there, in words.
"""

import asyncio
from binascii import b2a_base64
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from hmac import compare_digest
from typing import Any, Final, NoReturn, Protocol

import msgspec
import structlog

from aerobee.broker.auth.audit import Audit
from aerobee.broker.auth.book import SHIPPED_SECRET, AccessBook
from aerobee.broker.auth.freshness import Freshness
from aerobee.broker.auth.model import (
    ANONYMOUS,
    PUB,
    SUB,
    TOPIC,
    Access,
    AccessError,
    Resource,
    User,
    Verdict,
    decide,
)
from aerobee.broker.auth.permissions import (
    ADMINISTRATIVE,
    ROWS,
    Ask,
    Asked,
    Level,
    Row,
    TopicOfRecord,
    is_kept_by_broker,
    is_trace,
    missing_rows,
    of_group,
    of_topic,
)
from aerobee.broker.auth.signature import Keyed, is_made_by, is_signed_by, keyed
from aerobee.broker.base.clock import Clock
from aerobee.broker.base.refused import Refused
from aerobee.broker.net.addresses import is_loopback
from aerobee.broker.net.connection import Connection
from aerobee.broker.net.dispatch import Handler, Request
from aerobee.broker.settings import Settings
from aerobee.protocol.wire.codecs import ProtocolError, decode_command
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import JSON, MSGPACK, ROCKETMQ, Command
from aerobee.protocol.wire.frame import RawFrame
from aerobee.protocol.wire.signing import ACCESS_KEY, FRESH_CODE, FRESH_NUMBER, FRESH_TIME

log = structlog.get_logger("aerobee.access")

GUESSES_MAX: Final = 20  # wrong signatures that one connection may send
CACHE_MAX: Final = 100_000  # decisions of the hot path that are remembered

UNSIGNED: Final = "unsigned"
BAD_SIGNATURE: Final = "bad signature"
DISABLED: Final = "disabled"
NO_RIGHT: Final = "no right"
STALE: Final = "stale"


class _Header(msgspec.Struct):
    """The ext fields of a JSON header, when all of them are texts."""

    extFields: dict[str, str]


class _PackedHeader(msgspec.Struct, array_like=True):
    """The same in MessagePack."""

    code: int
    flag: int
    opaque: int
    language: int
    version: int
    remark: str | None
    extFields: dict[str, str]


_json_header: Final = msgspec.json.Decoder(_Header).decode
_packed_header: Final = msgspec.msgpack.Decoder(_PackedHeader).decode
_EXT_OF: Final[dict[int, Callable[[bytes], dict[str, str]]]] = {
    JSON: lambda header: _json_header(header).extFields,
    ROCKETMQ: lambda header: decode_command(ROCKETMQ, header).ext,
    MSGPACK: lambda header: _packed_header(header).extFields,
}
_SENDS: Final = int(RequestCode.SEND_MESSAGE_V2)  # sends and pulls are signed alike
SignedBy = Callable[[Collection[str] | None], bool]  # whether one of these secrets was used
_UNREADABLE: Final = (msgspec.MsgspecError, ValueError, ProtocolError, RecursionError)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who has asked, as far as it was proven; `user` None: it comes from a white address."""

    name: str
    address: str
    user: User | None
    generation: int  # of the users, when that was looked at
    certificate: str = ""  # by which it is known, without a signature

    @property
    def secrets(self) -> tuple[str, ...]:
        """With one of which its requests are signed; none: it need not sign."""
        return self.user.secrets if self.user is not None and not self.certificate else ()


class ProvenFields(Protocol):
    """Those of a send, as the hot path decodes them."""

    AccessKey: str
    b: str
    Signature: str
    fresh_code: str
    fresh_number: str
    fresh_time: str


SendCheck = Callable[[int, ProvenFields, bytes, bytes], bool]  # code, fields, signed text, body


class Denied(Refused):
    """A request that may not be."""

    def __init__(self, reason: str, text: str, rule: str = "") -> None:
        super().__init__(ResponseCode.NO_PERMISSION, text)
        self.reason = reason
        self.rule = rule


class Guard:
    """One for all connections of a process."""

    def __init__(
        self,
        settings: Settings,
        book: AccessBook,
        clock: Clock,
        topic_of_record: TopicOfRecord = lambda _offset: None,
    ) -> None:
        self.is_on = settings.acl_enable or settings.authentication_enabled
        self.book = book
        self.audit = Audit(clock)
        self._settings = settings
        self._topic_of_record = topic_of_record
        self._freshness = Freshness(clock, settings.request_freshness_millis)
        self._rows = _rows(settings)
        # Whom the hot path let pass, by access key, topic, group, address and certificate.
        self._memory: dict[tuple[str, str, str, str, frozenset[str]], Principal] = {}
        self._memory_of = -1  # the generation of users

    def load(self) -> None:
        """Read users and rights; AccessError says why the process must not start with them."""
        settings = self._settings
        if settings.authorization_enabled and not self.is_on:
            raise AccessError(
                "authorizationEnabled=true without authenticationEnabled=true would believe "
                "everybody's name; set both, or aclEnable=true"
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
        """The handlers with what stands before them; each must have said what it needs."""
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
            answer = handler(_Audited(request, self.audit))
            if answer is not None:
                _note(self.audit, request, answer)
            return answer

        return audited

    # --- the general way

    def admit(self, request: Request) -> None:
        """Let the request pass, with its principal, or raise Denied."""
        command, address = request.command, request.connection.peer[0]
        certified = request.connection.certified
        try:
            principal = self.authenticate(
                command.code, command.ext, command.body, address, certified
            )
            request.principal = principal
            request.connection.user = _proven(principal)
            if self._must_be_fresh(principal) and (
                why := self._why_stale(principal, command.code, command.ext)
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
        """Who has asked; Denied when that is not proven."""

        def is_signed(known: Collection[str] | None) -> bool:
            return is_signed_by(known, code, ext, body)

        return self._identify(code, ext.get(ACCESS_KEY, ""), is_signed, address, certified)

    def _identify(
        self, code: int, name: str, is_signed: SignedBy, address: str, certified: frozenset[str]
    ) -> Principal:
        access, generation = self.book.current, self.book.generation
        user = access.users.get(name or ANONYMOUS)
        if access.is_white(address) or (user is not None and user.is_white(address)):
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
                f"check signature failed: there is no User:{name}, or its secret key is another",
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
                _deny(principal, what, Verdict(False, "only a super user may"))
            return
        assert isinstance(row, tuple)
        asked = Asked(command, self._settings.broker_cluster_name, self._topic_of_record)
        for need in row:
            self._check(principal, need(asked))

    def _check(self, principal: Principal, asks: Iterable[Ask]) -> None:
        user = principal.user
        if user is None:
            return
        for ask in asks:
            verdict = judge(user, ask.actions, ask.resource, principal.address)
            if not verdict.allowed:
                _deny(principal, f"{'/'.join(sorted(ask.actions))} {ask.resource}", verdict)

    # --- requests that cannot be sent again

    def _must_be_fresh(self, principal: Principal) -> bool:
        user = principal.user
        if user is None or not principal.secrets:
            return False
        return user.is_fresh or self._settings.requests_must_be_fresh

    def _why_stale(self, principal: Principal, code: int, ext: Mapping[str, str]) -> str:
        said, number, made = (ext.get(name, "") for name in (FRESH_CODE, FRESH_NUMBER, FRESH_TIME))
        return self._freshness.why_stale(principal.name, code, said, number, made)

    # --- the hot path

    def admits(
        self, code: int, frame: RawFrame, topic: str, group: str, connection: Connection
    ) -> Principal | None:
        """Who sends to the topic, or pulls from it by a group, if that may go the short way.

        The right is looked up once for each generation of users, the signature always checked."""
        memory = self._memory
        if self._memory_of != self.book.generation or len(memory) > CACHE_MAX:
            memory.clear()
            self._memory_of = self.book.generation
        codec, header, body = frame
        address, certified = connection.peer[0], connection.certified
        try:
            ext = _EXT_OF[codec](header)
            key = (ext.get(ACCESS_KEY, ""), topic, group, address, certified)
            principal = memory.get(key)
            if principal is None:
                principal = self.authenticate(_SENDS, ext, body, address, certified)
                self._check(principal, _pull_asks(topic, group) if group else _send_asks(topic))
                memory[key] = principal
            elif principal.secrets and not is_signed_by(principal.secrets, _SENDS, ext, body):
                return None
            if self._must_be_fresh(principal) and self._why_stale(principal, code, ext):
                return None
        except (*_UNREADABLE, Denied):
            return None
        connection.user = _proven(principal)
        return principal

    def send_check(self, connection: Connection) -> "SendCheck":
        """What tells whether sends of one connection may go the short way."""
        book = self.book
        why_stale = self._freshness.why_stale
        last = ("", "", -1)  # access key, topic, generation of users
        makers: tuple[Keyed, ...] = ()  # of this user's signatures; none: it need not sign
        must_be_fresh = False

        def admits(code: int, fields: ProvenFields, content: bytes, body: bytes) -> bool:
            nonlocal last, makers, must_be_fresh
            name, topic, generation = last
            if fields.AccessKey != name or fields.b != topic or book.generation != generation:
                name, topic = fields.AccessKey, fields.b
                principal = self._sender(connection, fields, content, body)
                if principal is None:
                    return False
                last = name, topic, principal.generation
                connection.user = _proven(principal)
                makers = tuple(map(keyed, principal.secrets))
                must_be_fresh = self._must_be_fresh(principal)
            elif makers:
                given = fields.Signature.encode()
                for inner_copy, outer_copy in makers:
                    inner, outer = inner_copy(), outer_copy()
                    inner.update(content)
                    inner.update(body)
                    outer.update(inner.digest())
                    if compare_digest(b2a_base64(outer.digest(), newline=False), given):
                        break
                else:
                    return False
            if not must_be_fresh:
                return True
            said, number, made = fields.fresh_code, fields.fresh_number, fields.fresh_time
            return not why_stale(name, code, said, number, made)

        return admits

    def _sender(
        self, connection: Connection, fields: ProvenFields, content: bytes, body: bytes
    ) -> Principal | None:
        """Who sends to the topic, if that may go the short way."""
        given = fields.Signature.encode()

        def is_signed(known: Collection[str] | None) -> bool:
            return is_made_by(known, content, body, given)

        address, certified = connection.peer[0], connection.certified
        try:
            name = fields.AccessKey
            principal = self._identify(_SENDS, name, is_signed, address, certified)
            self._check(principal, _send_asks(fields.b))
        except Denied:
            return None
        return principal

    # --- long polls

    def check_again(self, principal: Principal, topic: str, group: str) -> None:
        """Before a pull that has waited is answered: Denied when it may not be any more."""
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
            raise Denied(DISABLED, f"User:{principal.name} is not there any more, or disabled.")
        if principal.user is not None or not user.is_white(principal.address):
            generation = self.book.generation
            now = Principal(principal.name, principal.address, user, generation, certificate)
            self._check(now, _pull_asks(topic, group))


def _proven(principal: Principal) -> str:
    """Its name; none when it only comes from a white address."""
    return principal.name if principal.user is not None else ""


def _count_guess(connection: Connection) -> None:
    """Close a connection that keeps guessing secrets, once its last answer is written."""
    connection.bad_signatures += 1
    if connection.bad_signatures == GUESSES_MAX:
        reason = f"{GUESSES_MAX} requests with a wrong signature"
        asyncio.get_running_loop().call_soon(connection.close, reason)


def _send_asks(topic: str) -> tuple[Ask, ...]:
    return (of_topic(topic, PUB),)


def _pull_asks(topic: str, group: str) -> tuple[Ask, ...]:
    return of_topic(topic, SUB), of_group(group, SUB)


def judge(user: User, actions: frozenset[str], resource: Resource, address: str) -> Verdict:
    """The decision, after what holds for topics of the broker's own."""
    if resource.kind == TOPIC:
        if is_trace(resource.name) and PUB in actions:
            return Verdict(True, "traces may be sent by every user")
        if is_kept_by_broker(resource.name) and not user.is_super:
            return Verdict(False, "the topic is the broker's own, only a super user may")
    return decide(user, actions, resource, address)


def _deny(principal: Principal, what: str, verdict: Verdict) -> NoReturn:
    raise Denied(
        NO_RIGHT,
        f"User:{principal.name} has no permission to {what} from {principal.address}: "
        f"{verdict.reason}",
        verdict.origin,
    )


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


class _Audited(Request):
    """A request whose answer is written down, when it comes later than the handler's return."""

    __slots__ = ("_audit",)

    def __init__(self, request: Request, audit: Audit) -> None:
        super().__init__(request.command, request.connection, request.received_at)
        self.principal = request.principal
        self._audit = audit

    def reply(self, answer: Command) -> None:
        _note(self._audit, self, answer)
        super().reply(answer)


_NAMES: Final = ("topic", "group", "consumerGroup", "groupName", "destGroup", "username", "subject")


def _note(audit: Audit, request: Request, answer: Command) -> None:
    command, principal = request.command, request.principal
    user = principal.name if isinstance(principal, Principal) else command.ext.get(ACCESS_KEY)
    what: dict[str, Any] = {name: command.ext[name] for name in _NAMES if name in command.ext}
    audit.administered(
        user=user or ANONYMOUS,
        peer=request.connection.name,
        code=command.code,
        what=what | {"outcome": answer.code, "remark": answer.remark or ""},
    )
