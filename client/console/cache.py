"""A cache shared by all viewers: five of them cost a broker as much as one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

KEPT_MAX: Final = 10_000  # some for each topic and each group


class Shared:
    """Values that are fetched at most once per interval, for any number of callers."""

    def __init__(self) -> None:
        self._kept: dict[object, tuple[float, asyncio.Future[Any]]] = {}

    async def get(self, key: object, seconds: float, ask: Callable[[], Awaitable[Any]]) -> Any:
        """The result of `ask`, at most `seconds` old."""
        loop = asyncio.get_running_loop()
        until, found = self._kept.get(key, (0.0, None))
        if found is None or until < loop.time() or _failed(found):
            if len(self._kept) >= KEPT_MAX:
                self._drop_old(loop.time())
            found = asyncio.ensure_future(ask())
            self._kept[key] = loop.time() + seconds, found
        return await asyncio.shield(found)

    def forget(self) -> None:
        """Invalidate after a change."""
        self._kept.clear()

    def _drop_old(self, now: float) -> None:
        self._kept = {key: row for key, row in self._kept.items() if row[0] >= now}
        if len(self._kept) >= KEPT_MAX:
            self._kept.clear()


def _failed(found: asyncio.Future[Any]) -> bool:
    return found.done() and (found.cancelled() or found.exception() is not None)
