"""The time by which files expire: the time of day, unless the clock was recently set far ahead.

A clock that is wrong by years would expire every file immediately, and correcting it does not bring
them back. So a step ahead counts only after `DOUBT_S`; until then time continues from where it was.
A step back counts immediately.

A start resumes at the last run's time, which the checkpoint has: a clock that is wrong from
the start on is a step like any other, and so is a long stop. How long a step has been doubted is
kept as well, so that a broker that is restarted every day believes it in the end.
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

    def resume(self, trusted_ms: int, doubted_ms: int) -> None:
        """Continue from what the last run saved (`to_keep`); 0: it saved nothing."""
        if not trusted_ms or self._clock.now_ms() - trusted_ms < 2 * STEP_MS:  # it is rounded down
            return
        self._base_ms = trusted_ms - self._clock.monotonic() * 1000
        self.now_ms()
        if self._doubted_at is not None:
            self._doubted_at -= doubted_ms / 1000

    def to_keep(self) -> tuple[int, int]:
        """The time, and how long a step was doubted by now: in whole hours, so that keeping it
        costs a write an hour."""
        now_ms = self.now_ms()
        doubted_s = 0.0
        if self._doubted_at is not None:
            doubted_s = self._clock.monotonic() - self._doubted_at
        return now_ms // STEP_MS * STEP_MS, round(doubted_s * 1000) // STEP_MS * STEP_MS

    def now_ms(self) -> int:
        ahead_ms, now_s = self._ahead_ms(), self._clock.monotonic()
        if ahead_ms - self._base_ms < STEP_MS:
            self._base_ms, self._doubted_at = ahead_ms, None
        elif self._doubted_at is None:
            self._doubted_at = now_s
            log.warning(
                "the clock was set ahead, or the broker was suspended: for a day, "
                "files expire by the time before that",
                hours=round((ahead_ms - self._base_ms) / STEP_MS),
            )
        elif now_s - self._doubted_at >= DOUBT_S:
            self._base_ms, self._doubted_at = ahead_ms, None
        return round(self._base_ms + now_s * 1000)
