"""Staying awake for a moment after a request, because the next one often follows at once.

A loop that goes to sleep lets its core sleep too, and waking a core costs more than a request
(tens of microseconds in a virtual machine). So after each read the loop turns without sleeping for
`STAY_AWAKE_S`; when nothing comes it sleeps as usual. An idle broker costs nothing.

The loop also stays awake while an answer waits for the disk or for a slave, and on a slave while it
waits for the master's next record: for `QUICK_S` at most, and only while no other process needs the
core, as that may be the one we wait for. After an event that took longer, the loop sleeps through
the next wait; each further slow one doubles the number of waits that it sleeps through, up to
`SKIPS_MAX`.
"""

import asyncio
import os
from collections.abc import Callable
from time import perf_counter
from typing import Final

STAY_AWAKE_S: Final = 0.0001
QUICK_S: Final = 0.0003
OTHERS_S: Final = 0.00006  # how long other processes may have the core while we wait
YIELD_S: Final = 0.000002  # a yield shorter than this: no other process wanted the core
SKIPS_MAX: Final = 100
sched_yield: Final[Callable[[], None]] = getattr(os, "sched_yield", lambda: None)


class BusyPoll:
    """Shared by all connections of a loop."""

    __slots__ = ("_expects", "_is_turning", "_loop", "_others_s", "_skips", "_skips_next", "_until")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._until = 0.0
        self._is_turning = False
        self._expects = False  # an expected event has not come yet
        self._others_s = 0.0  # how long other processes have had the core since
        self._skips = 0
        self._skips_next = 1  # skips after the next slow event

    def touch(self) -> None:
        """A request or the expected event came: stay awake for the next one."""
        if self._expects:
            self.came()
        self._until = perf_counter() + STAY_AWAKE_S
        if not self._is_turning:
            self._is_turning = True
            self._loop.call_soon(self._turn)

    def came(self) -> None:
        """The expected event came."""
        if self._expects:
            self._expects = False
            self._skips_next = max(1, self._skips_next // 2)

    def expect(self) -> None:
        """An event is expected: stay awake for it, in case it comes quickly."""
        if self._skips:
            self._skips -= 1
        else:
            self._expects = True
            self._others_s = 0.0
            self._until = perf_counter() + QUICK_S
            if not self._is_turning:
                self._is_turning = True
                self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        now = perf_counter()
        goes_on = now < self._until
        if goes_on and self._expects:
            sched_yield()
            gave_s = perf_counter() - now
            if gave_s > YIELD_S:
                self._others_s += gave_s
                goes_on = self._others_s < OTHERS_S
        if goes_on:
            self._loop.call_soon(self._turn)
            return
        self._is_turning = False
        if self._expects:
            self._expects = False
            self._skips = self._skips_next
            self._skips_next = min(2 * self._skips_next, SKIPS_MAX)
