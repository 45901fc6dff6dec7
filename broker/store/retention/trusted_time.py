"""The time by which files expire: that of the day, unless it was set far ahead lately.

A clock that is wrong by years would let every file expire at once, and what it removes does not
come back when it is set right. So a step ahead counts only after `DOUBT_S`; meanwhile time goes on
from where it was. A step back counts at once.
"""

from __future__ import annotations

from typing import Final

import structlog

from aerobee.broker.base.clock import Clock

log = structlog.get_logger("aerobee.store")

STEP_MS: Final = 3_600_000
DOUBT_S: Final = 24 * 3600.0


class TrustedTime:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._base_ms = self._ahead_ms()  # of the time of day before the monotonic clock
        self._doubted_at: float | None = None

    def _ahead_ms(self) -> float:
        return self._clock.now_ms() - self._clock.monotonic() * 1000

    def now_ms(self) -> int:
        ahead_ms, now_s = self._ahead_ms(), self._clock.monotonic()
        if ahead_ms - self._base_ms < STEP_MS:
            self._base_ms, self._doubted_at = ahead_ms, None
        elif self._doubted_at is None:
            self._doubted_at = now_s
            log.warning(
                "the clock was set ahead: files do not expire by it for a day",
                hours=round((ahead_ms - self._base_ms) / STEP_MS),
            )
        elif now_s - self._doubted_at >= DOUBT_S:
            self._base_ms, self._doubted_at = ahead_ms, None
        return round(self._base_ms + now_s * 1000)
