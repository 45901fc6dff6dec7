"""How much is done in one turn of an event loop, as a number that does not depend on the machine.

A callback that blocks the loop shows as a turn with very many calls of functions. The calls of this
thread are counted, Python's and those of C; other threads (a test's clients, say) are not.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class LoopTurns:
    """The calls of the longest turn so far."""

    def __init__(self) -> None:
        self.longest = 0
        self.turns = 0
        self._calls = 0
        self._loop = asyncio.get_running_loop()
        self._watching = True

    def count(self, _frame: FrameType, event: str, _argument: object) -> None:
        if event in ("call", "c_call"):
            self._calls += 1

    def turn(self) -> None:
        self.longest = max(self.longest, self._calls)
        self._calls = 0
        self.turns += 1
        if self._watching:
            self._loop.call_soon(self.turn)

    def stop(self) -> None:
        self._watching = False


@contextmanager
def watched_turns() -> Iterator[LoopTurns]:
    """Watch the running loop until the end of the block."""
    turns = LoopTurns()
    sys.setprofile(turns.count)
    turns._loop.call_soon(turns.turn)
    try:
        yield turns
    finally:
        sys.setprofile(None)
        turns.stop()


class Calls:
    """The calls of functions in this thread so far."""

    def __init__(self) -> None:
        self.count = 0

    def note(self, _frame: FrameType, event: str, _argument: object) -> None:
        self.count += event in ("call", "c_call")


@contextmanager
def counted_calls() -> Iterator[Calls]:
    """Count the calls until the end of the block."""
    calls = Calls()
    sys.setprofile(calls.note)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def calls_of(work: Callable[[], object]) -> int:
    """How many calls a piece of work makes."""
    with counted_calls() as calls:
        work()
    return calls.count
