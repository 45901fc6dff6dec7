"""A wake-up for one coroutine: cheap to set repeatedly, and remembered until it is awaited."""

from __future__ import annotations

import asyncio

from aerobee.broker.base.clock import Clock


class Wake:
    """Like asyncio.Event for a single waiter that clears it on waking; needs no loop to be set."""

    __slots__ = ("_waiter", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        if not self.is_set:
            self.is_set = True
            waiter = self._waiter
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        if not self.is_set:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self.is_set = False

    async def wait_at_most(self, clock: Clock, seconds: float) -> None:
        """Like `wait`, but not longer than this."""
        if not self.is_set:
            timer = asyncio.ensure_future(clock.sleep(seconds))
            timer.add_done_callback(self._time_is_up)
            try:
                await self.wait()
            finally:
                timer.remove_done_callback(self._time_is_up)
                timer.cancel()
        self.is_set = False

    def _time_is_up(self, _timer: asyncio.Future[None]) -> None:
        self.set()
