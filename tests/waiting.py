"""Waiting for what nobody announces."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable


async def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Return as soon as the condition holds, or what it returns does when awaited."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        held = condition()
        if await held if inspect.isawaitable(held) else held:
            return
        assert loop.time() < deadline, f"it did not come about in {seconds:g} s"
        await asyncio.sleep(0.002)
