"""How a master cuts what it sends: at once to an idle slave, batched for a busy one."""

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from waiting import until

from aerobee.broker.base.clock import Clock
from aerobee.broker.ha.copies import Copies
from aerobee.broker.ha.epochs import EpochFile
from aerobee.broker.ha.link import FROM_FILE_BYTES, GATHER_BYTES, LONE_BYTES, MANY_BYTES, Link
from aerobee.broker.ha.master_links import MasterLinks
from aerobee.broker.ha.wire import HEAD, REPORT
from aerobee.broker.settings import Settings
from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.store.settings import StoreSettings
from aerobee.protocol.files.record import Message


def put(store: MessageStore, size: int = 100) -> int:
    """The log's end behind it."""
    body = random.Random(size).randbytes(size)
    store.put([Message("orders", 0, body, born_host=bytes(8))])
    return store.max_physical_offset


class StillClock(Clock):
    """A clock that a test advances."""

    now_s = 1.0

    def monotonic(self) -> float:
        return self.now_s


class Slave:
    """The other end of a link; acks only when a test says so."""

    def __init__(self, sock: socket.socket, link: Link) -> None:
        self._sock = sock
        self._link = link
        self._loop = asyncio.get_running_loop()

    async def report(self, end: int) -> None:
        await self._loop.sock_sendall(self._sock, REPORT.pack(end))
        await until(lambda: self._link.sender.acked >= end, 60)

    def has_nothing_to_read(self) -> bool:
        try:
            return not self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True

    async def frame(self) -> tuple[int, int]:
        """Offset and size of the next one."""
        offset, size = HEAD.unpack(await self._read(HEAD.size))
        self.data = await self._read(size)
        return offset, size

    async def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += await asyncio.wait_for(self._loop.sock_recv(self._sock, size - len(data)), 60)
        return data


@asynccontextmanager
async def followed(
    folder: Path, *, are_awaited: bool = True
) -> AsyncIterator[tuple[MessageStore, Slave]]:
    """A store with one message, and a slave that has it. No timer runs on the link."""
    settings = StoreSettings(
        store_path_root_dir=str(folder),
        mapped_file_size_commit_log=4 << 20,
        disk_guard_enable=False,
    )
    clock = StillClock()
    store = MessageStore(settings, clock=clock, ahead=False)
    store.load()
    copies = Copies(
        clock,
        lambda: store.max_physical_offset,
        needed=int(are_awaited),
        behind_max=1 << 20,
        timeout_ms=1000,
    )
    epochs = EpochFile(str(folder / "epochs"), store.disk)
    links = MasterLinks(Settings(), store, clock, copies, epochs)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    link = Link(links, ours, ("127.0.0.1", 1))
    links.links.append(link)
    store.on_append(links.appended)
    slave = Slave(theirs, link)
    await slave.report(put(store))
    try:
        yield store, slave
    finally:
        link.close("the test ends")
        theirs.close()
        store.close()


async def test_records_gather_until_the_slave_has_what_was_sent(tmp_path: Path) -> None:
    async with followed(tmp_path) as (store, slave):
        first = store.max_physical_offset
        second = put(store)
        assert await slave.frame() == (first, second - first)
        for _ in range(5):
            last = put(store)
            await asyncio.sleep(0)
        await slave.report(second)
        assert await slave.frame() == (second, last - second)
        await slave.report(last)
        end = put(store)
        assert await slave.frame() == (last, end - last)


async def test_a_lone_record_is_sent_before_its_put_returns(tmp_path: Path) -> None:
    for are_awaited in (True, False):
        async with followed(tmp_path / str(are_awaited), are_awaited=are_awaited) as (store, slave):
            first = store.max_physical_offset
            end = put(store)
            assert not slave.has_nothing_to_read()
            assert await slave.frame() == (first, end - first)


async def test_records_of_one_turn_go_out_together(tmp_path: Path) -> None:
    async with followed(tmp_path) as (store, slave):
        first = store.max_physical_offset
        for _ in range(5):
            end = put(store, LONE_BYTES)
        assert await slave.frame() == (first, end - first)


async def test_records_gather_after_many_if_nobody_waits_for_their_copies(tmp_path: Path) -> None:
    for are_awaited in (True, False):
        async with followed(tmp_path / str(are_awaited), are_awaited=are_awaited) as (store, slave):
            many = put(store, MANY_BYTES)
            await slave.frame()
            await slave.report(many)
            next_end = put(store)
            assert slave.has_nothing_to_read() is not are_awaited
            assert await slave.frame() == (many, next_end - many)


async def test_a_large_frame_has_the_bytes_of_the_log(tmp_path: Path) -> None:
    """Sent by the kernel from the file, as far as the socket has room."""
    async with followed(tmp_path) as (store, slave):
        first = store.max_physical_offset
        for size in (FROM_FILE_BYTES, 900 << 10):
            end = put(store, size)
            assert await slave.frame() == (first, end - first)
            assert slave.data == store.read_log(first, end - first)
            await slave.report(end)
            first = end


async def test_much_does_not_wait_for_an_ack(tmp_path: Path) -> None:
    async with followed(tmp_path) as (store, slave):
        sent = store.max_physical_offset
        put(store)
        offset, size = await slave.frame()
        end = put(store, GATHER_BYTES)
        assert await slave.frame() == (offset + size, end - sent - size)


async def test_a_slave_that_lacks_half_a_record_gets_its_rest(tmp_path: Path) -> None:
    """A frame may end within a record, of which a slave acknowledges nothing."""
    async with followed(tmp_path) as (store, slave):
        first = store.max_physical_offset
        end = put(store, (1 << 20) + 5000)  # haTransferBatchSize is 1 MiB
        sizes = 0
        while first + sizes < end:
            offset, size = await slave.frame()
            assert offset == first + sizes
            sizes += size
        assert offset > first
        await slave.report(end)
        last = put(store)
        assert await slave.frame() == (end, last - end)
