"""Staying awake for a moment after a request, because the next one often follows at once.

A loop that goes to sleep lets its core sleep too, and waking a core costs more than a request
(tens of microseconds in a virtual machine). So after each read the loop turns without sleeping for
`STAY_AWAKE_S`; when nothing comes it sleeps as usual. An idle broker costs nothing.
"""

import asyncio
from time import perf_counter
from typing import Final

STAY_AWAKE_S: Final = 0.0001


class BusyPoll:
    """One for all connections of a loop."""

    __slots__ = ("_is_turning", "_loop", "_until")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._until = 0.0
        self._is_turning = False

    def touch(self) -> None:
        """A request came: stay awake for the next one."""
        self._until = perf_counter() + STAY_AWAKE_S
        if not self._is_turning:
            self._is_turning = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        if perf_counter() < self._until:
            self._loop.call_soon(self._turn)
        else:
            self._is_turning = False
