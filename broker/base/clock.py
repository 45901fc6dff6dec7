"""The clock that store and services read and wait by, and a virtual clock for tests."""

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable
from typing import Final

_LOOK_S: Final = 1.0
_SET_BY_MS: Final = 20.0


class Clock:
    """The system's time."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic: Callable[[], float] = staticmethod(time.monotonic)  # without a call of ours

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def watch_time_of_day(clock: Clock, changed: Callable[[], None]) -> None:
    """Call `changed` soon after the time of day was set, or the machine was suspended: sleeps use
    monotonic time, so work may be due before they end. Runs until cancelled."""
    ahead_ms = clock.now_ms() - clock.monotonic() * 1000
    while True:
        await asyncio.sleep(_LOOK_S)  # by the loop's own time: a test's clock moves both alike
        now_ahead_ms = clock.now_ms() - clock.monotonic() * 1000
        if abs(now_ahead_ms - ahead_ms) > _SET_BY_MS:
            ahead_ms = now_ahead_ms
            changed()


class VirtualClock(Clock):
    """Real time plus what a test has advanced it by; sleepers wake when either has come."""

    # Turns that the loop gets for the work of one wake-up, before time moves on.
    _SETTLE_TURNS = 20
    # How long a thread may take for its part of that work.
    _THREADS_S = 10.0

    def __init__(self) -> None:
        self.is_thread_busy: Callable[[], bool] = lambda: False
        self._advanced = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + round(self._advanced * 1000)

    def monotonic(self) -> float:
        return time.monotonic() + self._advanced

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        loop = asyncio.get_running_loop()
        deadline = self.monotonic() + seconds
        while (left := deadline - self.monotonic()) > 0:
            woken: asyncio.Future[None] = loop.create_future()
            heapq.heappush(self._sleepers, (deadline, next(self._order), woken))
            timer = loop.call_later(left, _wake, woken)
            try:
                await woken
            finally:
                timer.cancel()

    async def advance(self, seconds: float) -> None:
        """Advance time, waking each sleeper at its deadline, in order."""
        if seconds < 0:
            raise ValueError(f"time goes forward only, not by {seconds} s")
        target = self.monotonic() + seconds
        while True:
            await self._settle()
            while self._sleepers and self._sleepers[0][2].done():
                heapq.heappop(self._sleepers)
            if not self._sleepers or self._sleepers[0][0] > target:
                break
            deadline, _, woken = heapq.heappop(self._sleepers)
            self._advanced += max(0.0, deadline - self.monotonic())
            _wake(woken)
        self._advanced += max(0.0, target - self.monotonic())
        for _, _, woken in self._sleepers:  # each checks the time and sets its timer again
            _wake(woken)
        self._sleepers.clear()
        await self._settle()

    async def _settle(self) -> None:
        """Run the loop until the work of the last wake-up is done, in threads too."""
        await self._turn_loop()
        until = time.monotonic() + self._THREADS_S
        while self.is_thread_busy() and time.monotonic() < until:
            await asyncio.sleep(0.0005)
            await self._turn_loop()

    async def _turn_loop(self) -> None:
        # asyncio's own loop shows what is ready to run; another one gets all the turns.
        ready = getattr(asyncio.get_running_loop(), "_ready", None)
        for turn in range(self._SETTLE_TURNS):
            await asyncio.sleep(0)
            if turn >= 2 and ready is not None and not ready:
                break


def _wake(woken: "asyncio.Future[None]") -> None:
    if not woken.done():
        woken.set_result(None)
