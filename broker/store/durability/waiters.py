"""Puts that wait for their answer until the log is durable up to their end."""

from __future__ import annotations

from collections import deque
from functools import partial

import structlog

from aerobee.broker.base.clock import Clock
from aerobee.broker.base.wake import Wake
from aerobee.broker.store.results import DurableCallback, PutStatus

log = structlog.get_logger("aerobee.store")


class Waiters:
    """Ordered by end offset, which is also the order of their deadlines."""

    def __init__(
        self, clock: Clock, timeout_s: float, late: PutStatus = PutStatus.FLUSH_DISK_TIMEOUT
    ) -> None:
        """`late`: the status for waiters that have waited longer than `timeout_s`."""
        self._clock = clock
        self._timeout_s = timeout_s
        self._late = late
        self._waiting: deque[tuple[int, float, DurableCallback]] = deque()
        self._added = Wake()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, end: int, callback: DurableCallback) -> None:
        self._waiting.append((end, self._clock.monotonic() + self._timeout_s, callback))
        if not self._added.is_set:
            self._added.set()

    def reached(self, end: int) -> None:
        """The log is durable up to here."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= end:
            _notify(waiting.popleft()[2], PutStatus.PUT_OK)

    def fail(self) -> None:
        """Nothing more will become durable."""
        waiting, self._waiting = self._waiting, deque()
        for _, _, callback in waiting:
            _notify(callback, PutStatus.UNKNOWN_ERROR)

    def expire(self) -> float:
        """Answer the puts that timed out; seconds until the next deadline."""
        now = self._clock.monotonic()
        while self._waiting and self._waiting[0][1] <= now:
            _notify(self._waiting.popleft()[2], self._late)
        return self._waiting[0][1] - now if self._waiting else 0.0

    async def run_expiry(self) -> None:
        while True:
            await self._added.wait()
            while (seconds := self.expire()) > 0:
                await self._clock.sleep(seconds)


def join_outcomes(callback: DurableCallback) -> tuple[DurableCallback, DurableCallback]:
    """For a put that waits for its copies and for the disk in parallel: a callback for each; the
    last one calls `callback`. If both fail, the copies' status is reported, as upstream does."""
    outcomes: list[PutStatus | None] = [None, None]

    def note(mark: int, status: PutStatus) -> None:
        outcomes[mark] = status
        copied, flushed = outcomes
        if copied is not None and flushed is not None:
            callback(flushed if copied is PutStatus.PUT_OK else copied)

    return partial(note, 0), partial(note, 1)


def _notify(callback: DurableCallback, status: PutStatus) -> None:
    """One failing callback must not keep the others from running."""
    try:
        callback(status)
    except Exception:
        log.exception("a put could not be answered", status=status.name)
