"""The audit log: one line for each denied request and each administrative call.

Denials of one client, user and request are logged once a second; the rest are counted. Signatures,
secrets and bodies are never logged.
"""

import re
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import structlog

from aerobee.broker.auth.model import ANONYMOUS
from aerobee.broker.auth.verdicts import Principal
from aerobee.broker.base.clock import Clock
from aerobee.broker.net.requests import Request
from aerobee.protocol.json import fastjson
from aerobee.protocol.wire.codes import RequestCode
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.signing import ACCESS_KEY

log = structlog.get_logger("aerobee.audit")

EVERY_S: Final = 1.0
KEPT_MAX: Final = 4096  # clients whose last line is remembered


class Audit:
    """The log of denials and of administration, and how many there were."""

    def __init__(self, clock: Clock) -> None:
        self.denials: Counter[str] = Counter()  # by reason
        self._clock = clock
        # When it was logged, and how many were suppressed since.
        self._logged: dict[tuple[str, str, int, str], tuple[float, int]] = {}

    def denied(
        self, reason: str, *, user: str, address: str, code: int, text: str, rule: str = ""
    ) -> None:
        self.denials[reason] += 1
        key = (address, user, code, reason)
        now = self._clock.monotonic()
        logged_at, suppressed = self._logged.get(key, (float("-inf"), 0))
        if now - logged_at < EVERY_S:
            self._logged[key] = (logged_at, suppressed + 1)
            return
        if len(self._logged) >= KEPT_MAX:
            self._logged.clear()
        self._logged[key] = (now, 0)
        log.warning(
            "denied",
            reason=reason,
            user=user,
            peer=address,
            code=code,
            text=text,
            rule=rule,
            not_logged_before=suppressed,
        )

    def administered(self, *, user: str, peer: str, code: int, what: dict[str, Any]) -> None:
        log.info("administration", user=user, peer=peer, code=code, **what)


class Audited(Request):
    """A request whose answer is logged, also if it comes after the handler has returned."""

    __slots__ = ("_audit",)

    def __init__(self, request: Request, audit: Audit) -> None:
        super().__init__(request.command, request.connection, request.received_at)
        self.principal = request.principal
        self._audit = audit

    def reply(self, answer: Command) -> None:
        note(self._audit, self, answer.code, answer.remark or "")
        super().reply(answer)


_NAMES: Final = (
    *("topic", "group", "consumerGroup", "groupName", "destGroup"),
    *("username", "subject", "resource", "accessKey"),
)
_REQUESTS: Final = {int(code): code.name for code in RequestCode}
SHOWN_MAX: Final = 20  # settings or policies of one call
_SETTING: Final = re.compile(rb"^[ \t]*([\w.]+)[ \t]*=", re.MULTILINE)


def note(audit: Audit, request: Request, outcome: int, remark: str) -> None:
    """One administrative call and its outcome."""
    command, principal = request.command, request.principal
    user = principal.name if isinstance(principal, Principal) else command.ext.get(ACCESS_KEY)
    what: dict[str, Any] = {"request": _REQUESTS.get(command.code, "")}
    what |= {name: command.ext[name] for name in _NAMES if name in command.ext}
    if command.code in _OF_BODY:
        what |= _OF_BODY[command.code](bytes(command.body))
    audit.administered(
        user=user or ANONYMOUS,
        peer=request.connection.name,
        code=command.code,
        what=what | {"outcome": int(outcome), "remark": remark},
    )


def _settings(body: bytes) -> dict[str, Any]:
    """The names only: values may be secret, and each changed setting has a line of its own."""
    return {"settings": [name.decode() for name in _SETTING.findall(body)[:SHOWN_MAX]]}


def _policies(body: bytes) -> dict[str, Any]:
    try:
        shown = [
            f"{entry['decision']} {entry['resource']} {','.join(entry['actions'])}"
            for policy in fastjson.loads(body)["policies"]
            for entry in policy["entries"]
        ]
    except (ValueError, LookupError, TypeError):
        return {}  # it was refused
    return {"policies": shown[:SHOWN_MAX]}


_OF_BODY: Final[dict[int, Callable[[bytes], dict[str, Any]]]] = {
    RequestCode.UPDATE_BROKER_CONFIG: _settings,
    RequestCode.AUTH_CREATE_ACL: _policies,
    RequestCode.AUTH_UPDATE_ACL: _policies,
}
