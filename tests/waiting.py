"""Polling for conditions, and running generators to their end."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Generator, Sized
from typing import TypeVar

Result = TypeVar("Result")


async def until(condition: Callable[[], object], seconds: float = 100.0) -> None:
    """Return as soon as the condition holds, or what it returns does when awaited."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        held = condition()
        if await held if inspect.isawaitable(held) else held:
            return
        assert loop.time() < deadline, f"it did not come about in {seconds:g} s"
        await asyncio.sleep(0.002)


async def grown(collection: Callable[[], Sized], by: int, seconds: float = 100.0) -> None:
    """Return once the collection has grown by `by`."""
    goal = len(collection()) + by
    await until(lambda: len(collection()) >= goal, seconds)


def finish(work: Generator[None, None, Result]) -> Result:
    """Run a generator to its end and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: Result = end.value
            return result
