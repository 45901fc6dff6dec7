"""config/timercheck, upstream's page of 4096 bytes: how far the timers had come, for certain.

It never says more than the store has on disk: after a power failure a timer may fire twice, but
none is lost.
"""

import asyncio
import os
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from aerobee.broker.clock import Clock
from aerobee.broker.store.system_calls import data_sync
from aerobee.broker.store.wake import Wake

if TYPE_CHECKING:
    from aerobee.broker.store.message_store import MessageStore

log = structlog.get_logger("aerobee.timers")

_PAGE: Final = 4096
_FIELDS: Final = Struct(">7q")


class TimerCheckpoint(NamedTuple):
    """The fields, in their order."""

    read_ms: int = 0  # the first second that has not had its turn
    log_end: int = 0  # of the timer log
    queue_offset: int = 0  # the next message of rmq_sys_wheel_timer
    master_queue_offset: int = 0
    state_version: int = 0
    timestamp: int = 0
    counter: int = 0


class Reached(NamedTuple):
    """How far the timers have come; true once the store has its log on disk up to `store_end`."""

    store_end: int
    read_ms: int
    log_end: int
    queue_offset: int


class Checkpoints:
    """Writes the page, a while after each change."""

    def __init__(
        self,
        path: str,
        store: "MessageStore",
        sync: Callable[[], None],
        reached: Callable[[], Reached],
        clock: Clock,
    ) -> None:
        self._path = path
        self._store = store
        self._sync = sync
        self._reached = reached
        self._clock = clock
        self._waiting: Reached | None = None
        self.point = TimerCheckpoint()
        self.dirty = Wake()

    def load(self) -> TimerCheckpoint:
        try:
            with open(self._path, "rb") as file:
                data = file.read(_FIELDS.size)
        except FileNotFoundError:
            data = b""
        if len(data) == _FIELDS.size:
            self.point = TimerCheckpoint(*_FIELDS.unpack(data))
        return self.point

    async def run(self, interval_s: float) -> None:
        """Write within `interval_s` of a change, until cancelled."""
        while True:
            await self.dirty.wait()
            await self._clock.sleep(interval_s)
            reached = self._reached()
            try:
                await asyncio.to_thread(self._sync)
                self._write(reached)
            except OSError as error:
                log.error("timers cannot be written to disk; trying again", error=str(error))
                self.dirty.set()

    def step(self) -> None:
        """One round of `run`, at once."""
        reached = self._reached()
        self._sync()
        self._write(reached)

    def _write(self, reached: Reached) -> None:
        """Save the newest that is on disk; the other in the next round."""
        flushed = self._store.flushed_offset
        for known in (self._waiting, reached):
            if known is not None and known.store_end <= flushed:
                self.save(known)
        self._waiting = None
        if reached.store_end > flushed:
            self._waiting = reached
            self.dirty.set()

    def save(self, reached: Reached) -> None:
        """One write of a few bytes: whole or not at all."""
        self.point = TimerCheckpoint(
            reached.read_ms,
            reached.log_end,
            reached.queue_offset,
            reached.queue_offset,
            self.point.state_version,
            self._clock.now_ms(),
            self.point.counter + 1,
        )
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if os.fstat(fd).st_size < _PAGE:
                os.ftruncate(fd, _PAGE)
            os.pwrite(fd, self.encode(), 0)
            data_sync(fd)
        finally:
            os.close(fd)

    def encode(self) -> bytes:
        """As the file and GET_TIMER_CHECK_POINT have it."""
        return _FIELDS.pack(*self.point)
