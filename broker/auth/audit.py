"""What is written down: one line for each request that was denied and each administrative call.

Denials of one client, user and request are said once a second; the rest are counted. Signatures,
secrets and bodies are never written.
"""

from collections import Counter
from typing import Any, Final

import structlog

from aerobee.broker.base.clock import Clock

log = structlog.get_logger("aerobee.audit")

EVERY_S: Final = 1.0
KEPT_MAX: Final = 4096  # clients whose last line is remembered


class Audit:
    """The log of denials and of administration, and how many there were."""

    def __init__(self, clock: Clock) -> None:
        self.denials: Counter[str] = Counter()  # by reason
        self._clock = clock
        self._said: dict[tuple[str, str, int, str], tuple[float, int]] = {}  # when, not said since

    def denied(
        self, reason: str, *, user: str, address: str, code: int, text: str, rule: str = ""
    ) -> None:
        self.denials[reason] += 1
        key = (address, user, code, reason)
        now = self._clock.monotonic()
        said_at, unsaid = self._said.get(key, (float("-inf"), 0))
        if now - said_at < EVERY_S:
            self._said[key] = (said_at, unsaid + 1)
            return
        if len(self._said) >= KEPT_MAX:
            self._said.clear()
        self._said[key] = (now, 0)
        log.warning(
            "denied",
            reason=reason,
            user=user,
            peer=address,
            code=code,
            text=text,
            rule=rule,
            not_logged_before=unsaid,
        )

    def administered(self, *, user: str, peer: str, code: int, what: dict[str, Any]) -> None:
        log.info("administration", user=user, peer=peer, code=code, **what)
