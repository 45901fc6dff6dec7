"""Staying awake for a moment after a request, because the next one often follows at once.

A loop that goes to sleep lets its core sleep too, and waking a core costs more than a request
(tens of microseconds in a virtual machine). So after each read the loop turns without sleeping for
`STAY_AWAKE_S`; when nothing comes it sleeps as usual. An idle broker costs nothing.

So it does while an answer waits for the disk, as long as a quick one needs. A disk that needs
longer is waited for asleep, but for one try in `SLOW_SKIPS`.
"""

import asyncio
from time import perf_counter
from typing import Final

STAY_AWAKE_S: Final = 0.0001
QUICK_DISK_S: Final = 0.0003
SLOW_SKIPS: Final = 100


class BusyPoll:
    """One for all connections of a loop."""

    __slots__ = ("_expects", "_is_turning", "_loop", "_skips", "_until")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._until = 0.0
        self._is_turning = False
        self._expects = False  # the disk has not answered yet
        self._skips = 0

    def touch(self) -> None:
        """A request or an answer of the disk came: stay awake for the next one."""
        self._expects = False
        self._until = perf_counter() + STAY_AWAKE_S
        if not self._is_turning:
            self._is_turning = True
            self._loop.call_soon(self._turn)

    def expect(self) -> None:
        """A request waits for the disk: stay awake if that is a quick one."""
        if self._skips:
            self._skips -= 1
        else:
            self._expects = True
            self._until = perf_counter() + QUICK_DISK_S
            if not self._is_turning:
                self._is_turning = True
                self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        if perf_counter() < self._until:
            self._loop.call_soon(self._turn)
            return
        self._is_turning = False
        if self._expects:
            self._expects = False
            self._skips = SLOW_SKIPS
