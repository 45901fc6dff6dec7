"""How much of an event-loop turn deferrable work may use.

Thousands of clients may send requests at the same moment, because they start together or because a
network switch recovers. Each request is short, but all of them together would keep the loop from
serving anybody else. So deferrable work gets a slice of each turn; the rest resumes in the next
turns, in order, and reads and writes of other connections run in between.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import ClassVar, Final

import structlog

log = structlog.get_logger("aerobee.turns")

SLICE_S: Final = 0.0002
MESSAGES_S: Final = 0.0003  # more for messages: cut finer, pulls would be slower


def nothing() -> None:
    """The default for `Turns.at_end`."""


class Turns:
    """Shared by all connections and services of a loop."""

    __slots__ = ("_is_turning", "_until", "_waiting", "slice_s")

    at_end: ClassVar[Callable[[], None]] = nothing  # called after each turn, once for the process

    def __init__(self, slice_s: float = SLICE_S) -> None:
        self.slice_s = slice_s
        self._waiting: deque[Callable[[], object]] = deque()
        self._until = 0.0
        self._is_turning = False

    def __len__(self) -> int:
        """How many pieces of work are deferred."""
        return len(self._waiting)

    def is_over(self, more_s: float = 0.0) -> bool:
        """Whether this turn's slice, and `more_s` beyond it, is used up. The first call in a turn
        begins the slice."""
        if self._is_turning:
            return perf_counter() >= self._until + more_s
        self._begin()
        return False

    def later(self, work: Callable[[], object]) -> None:
        """Call `work` in one of the next turns, after earlier deferred work."""
        self._waiting.append(work)
        if not self._is_turning:
            self._begin()

    def run_or_defer(self, work: Callable[[], object]) -> None:
        """Call `work` at once, unless the slice is used up."""
        if self.is_over():
            self._waiting.append(work)
        else:
            work()

    def charge(self, seconds: float) -> None:
        """Count this time against the slice, for work that the loop does at the end of the turn."""
        self._until -= seconds

    def _begin(self) -> None:
        self._is_turning = True
        self._until = perf_counter() + self.slice_s
        asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        waiting = self._waiting
        if not waiting:
            self._is_turning = False
            Turns.at_end()
            return
        asyncio.get_running_loop().call_soon(self._turn)
        now = perf_counter()
        self._until = now + self.slice_s
        while waiting:
            before = now
            try:
                waiting.popleft()()
            except Exception:  # a failure for one client must not stop the others' work
                log.exception("deferred work failed")
            now = perf_counter()
            if now + (now - before) >= self._until:  # another like it would not fit
                break
        Turns.at_end()


class InOrder:
    """Long work of one kind that stops at every yield: one after the other, in slices."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Turns, Iterator[None]]] = deque()

    def add(self, turns: Turns, work: Iterator[None]) -> None:
        """Begin at once, unless other work is in progress."""
        self._waiting.append((turns, work))
        if len(self._waiting) == 1:
            self._run_pending()

    def _run_pending(self) -> None:
        while self._waiting:
            turns, work = self._waiting[0]
            try:
                for _ in work:
                    if turns.is_over():
                        turns.later(self._run_pending)
                        return
            except Exception:  # the work queued behind it continues
                log.exception("work in slices failed")
            self._waiting.popleft()
