"""Background work that runs as long as its owner lives."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger("aerobee.client")


async def every(seconds: float, work: Callable[[], Awaitable[object]]) -> None:
    """Repeat the work; a failure is logged and does not end it."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await work()
        except Exception:
            log.exception("background work failed; retry in %g s", seconds)
