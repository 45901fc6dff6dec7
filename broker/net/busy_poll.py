"""Staying awake for a moment after a request, because the next one often follows at once.

A loop that goes to sleep lets its core sleep too, and waking a core costs more than a request
(tens of microseconds in a virtual machine). So after each read the loop turns without sleeping for
`STAY_AWAKE_S`; when nothing comes it sleeps as usual. An idle broker costs nothing.

So it does while an answer waits for the disk or for a slave, and a slave for its master's next
record: as long as a quick one needs, and while nobody else needs the core. For it may be the other
side that does. What is slow is waited for asleep: once after the first time, then twice as often
each time, `SKIPS_MAX` times in a row at most.
"""

import asyncio
import os
from collections.abc import Callable
from time import perf_counter
from typing import Final

STAY_AWAKE_S: Final = 0.0001
QUICK_S: Final = 0.0003
OTHERS_S: Final = 0.00006  # that others may have of the core while we wait
YIELD_S: Final = 0.000002  # nobody had it
SKIPS_MAX: Final = 100
sched_yield: Final[Callable[[], None]] = getattr(os, "sched_yield", lambda: None)


class BusyPoll:
    """One for all connections of a loop."""

    __slots__ = ("_expects", "_is_turning", "_loop", "_others_s", "_skips", "_skips_next", "_until")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._until = 0.0
        self._is_turning = False
        self._expects = False  # what was expected has not come yet
        self._others_s = 0.0  # that others have had of the core meanwhile
        self._skips = 0
        self._skips_next = 1  # after the next one that is slow

    def touch(self) -> None:
        """A request, or what was expected, came: stay awake for the next one."""
        if self._expects:
            self.came()
        self._until = perf_counter() + STAY_AWAKE_S
        if not self._is_turning:
            self._is_turning = True
            self._loop.call_soon(self._turn)

    def came(self) -> None:
        """What was expected came."""
        if self._expects:
            self._expects = False
            self._skips_next = max(1, self._skips_next // 2)

    def expect(self) -> None:
        """Something is waited for: stay awake if it is quick."""
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
