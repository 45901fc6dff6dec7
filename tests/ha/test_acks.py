"""What a replica acknowledges, and when."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from waiting import until

from aerobee.broker.ha.receiver import Receiver
from aerobee.broker.ha.stream import ACK_S, Stream
from aerobee.broker.ha.wire import REPORT
from aerobee.broker.settings import Settings
from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.store.settings import StoreSettings
from ha.test_gathering import StillClock
from ha.test_stream import frame, record

FILE = 1 << 20


class Master:
    """The other end of a replica's stream."""

    def __init__(self, sock: socket.socket, store: MessageStore, clock: StillClock) -> None:
        self._sock = sock
        self.store = store
        self.clock = clock

    async def send(self, data: bytes, then_has: int) -> list[int]:
        """The acks received by the time the replica's log ends there."""
        self._sock.sendall(data)
        await until(lambda: self.store.max_physical_offset == then_has, 60)
        return self.acks()

    def acks(self) -> list[int]:
        try:
            return [end for (end,) in REPORT.iter_unpack(self._sock.recv(4096))]
        except BlockingIOError:
            return []


@asynccontextmanager
async def followed(folder: Path) -> AsyncIterator[Master]:
    settings = StoreSettings(
        store_path_root_dir=str(folder), mapped_file_size_commit_log=FILE, disk_guard_enable=False
    )
    clock = StillClock()
    store = MessageStore(settings, clock=clock, ahead=False)
    store.load()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    replica = Stream(Settings(), store, clock, ours, Receiver(0, FILE))
    following = asyncio.create_task(replica.run())
    master = Master(theirs, store, clock)
    await until(lambda: master.acks() == [0], 60)
    try:
        yield master
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        theirs.close()
        store.close()


def records(count: int) -> tuple[bytes, list[int]]:
    """A log, and where its records end."""
    log, ends = b"", []
    for _ in range(count):
        log += record(len(log))
        ends.append(len(log))
    return log, ends


async def test_each_small_frame_is_acknowledged_at_once(tmp_path: Path) -> None:
    log, (first, second) = records(2)
    async with followed(tmp_path) as master:
        assert await master.send(frame(0, log[:first]), first) == [first]
        assert await master.send(frame(first, log[first:]), second) == [second]


async def test_a_frame_that_comes_in_pieces_is_acknowledged_once(tmp_path: Path) -> None:
    log, ends = records(3)
    async with followed(tmp_path) as master:
        data, cut = frame(0, log), len(frame(0, log[: ends[1]])) + 5
        assert await master.send(data[:cut], ends[1]) == []  # written already
        assert await master.send(data[cut:], ends[2]) == [ends[2]]


async def test_a_frame_that_comes_slowly_is_acknowledged_in_parts(tmp_path: Path) -> None:
    log, ends = records(3)
    async with followed(tmp_path) as master:
        data, cut = frame(0, log), len(frame(0, log[: ends[1]])) + 5
        master.clock.now_s += 2 * ACK_S
        assert await master.send(data[:cut], ends[1]) == [ends[1]]
        assert await master.send(data[cut:], ends[2]) == [ends[2]]
