"""A limit on the sends in flight; the others wait in turn."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, NamedTuple

from aerobee.client.errors import Overloaded

IN_FLIGHT_MAX: Final = 1024
CHECK_S: Final = 0.1


class _Waiting(NamedTuple):
    turn: asyncio.Future[None]
    patience: float


class InFlight:
    """A FIFO semaphore. A send that waits has sent nothing, and its timeout has not started."""

    def __init__(self) -> None:
        self._free = IN_FLIGHT_MAX
        self._waiting: deque[_Waiting] = deque()
        self._silent_s = 0.0  # since the last success, not counting time when the loop was blocked
        self._checking: asyncio.TimerHandle | None = None

    def enter(self) -> bool:
        """Take a slot if one is free; else `wait` for one."""
        if self._free == 0:
            return False
        self._free -= 1
        return True

    async def wait(self, patience: float) -> None:
        """Wait for a slot; Overloaded when no send at all succeeds for `patience` seconds."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(_Waiting(turn, patience))
        if self._checking is None:
            self._silent_s = 0.0
            self._checking = loop.call_later(CHECK_S, self._check_progress)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled() and turn.exception() is None:  # granted, but not taken
                self.leave()
            raise

    def _check_progress(self) -> None:
        self._silent_s += CHECK_S
        waiting = self._waiting
        while waiting and waiting[0].patience < self._silent_s:
            turn, patience = waiting.popleft()
            if not turn.done():
                turn.set_exception(
                    Overloaded(
                        f"{IN_FLIGHT_MAX} sends are in flight, {len(waiting)} more wait "
                        f"for their turn, and none succeeded for {patience:g} s"
                    )
                )
        loop = asyncio.get_running_loop()
        self._checking = loop.call_later(CHECK_S, self._check_progress) if waiting else None

    def succeeded(self) -> None:
        self._silent_s = 0.0

    def leave(self) -> None:
        """Pass the slot on."""
        while self._waiting:
            turn = self._waiting.popleft().turn
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
