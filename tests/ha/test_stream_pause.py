"""When a replica stops reading what its master sends, and when it acknowledges."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from waiting import until

from aerobee.broker.base.clock import Clock
from aerobee.broker.ha import stream
from aerobee.broker.ha.receiver import Receiver
from aerobee.broker.ha.stream import Stream
from aerobee.broker.settings import Settings
from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.store.settings import StoreSettings
from ha.test_stream import FILE, frame, log_of


@pytest.mark.parametrize("has_arbiter", [True, False])
async def test_what_is_not_confirmed_yet_stops_no_replica_from_reading_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_arbiter: bool
) -> None:
    """The confirm offset comes on the same connection. Without an arbiter dispatch goes first."""
    monkeypatch.setattr(stream, "UNDISPATCHED_MAX", FILE)
    settings = StoreSettings(
        store_path_root_dir=str(tmp_path),
        mapped_file_size_commit_log=FILE,
        has_arbiter=has_arbiter,
        disk_guard_enable=False,
    )
    store = MessageStore(settings, clock=Clock(), ahead=False)
    store.load()
    if has_arbiter:
        store.confirm(0)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    replica = Stream(Settings(), store, Clock(), ours, Receiver(0, FILE))
    following = asyncio.create_task(replica.run())
    log = log_of(4)
    try:
        for start in range(0, len(log), FILE):
            theirs.sendall(frame(start, log[start : start + FILE]))
            await asyncio.sleep(0.01)
        if has_arbiter:
            await until(lambda: store.max_physical_offset == len(log), 20)
        else:
            await until(lambda: replica._paused, 20)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        theirs.close()
        store.close()


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """As a replica has it: a pair of local sockets is readable from one byte on, always."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ours = socket.create_connection(listening.getsockname())
        theirs, _ = listening.accept()
    theirs.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return ours, theirs


async def until_log_ends(store: MessageStore, least: int) -> None:
    await until(lambda: store.max_physical_offset >= least)


class Reads:
    """A replica's store, the master's end of the connection, and the appends of the replica."""

    def __init__(self, store: MessageStore, theirs: socket.socket) -> None:
        self.store = store
        self.theirs = theirs
        self.count = 0

    async def expect_ack(self) -> None:
        acknowledged = await asyncio.get_running_loop().sock_recv(self.theirs, 8)
        assert int.from_bytes(acknowledged, "big") == self.store.max_physical_offset


@asynccontextmanager
async def following(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, may_gather: bool = False
) -> AsyncIterator[Reads]:
    """A replica that sends no heartbeats, after its first report."""
    settings = StoreSettings(
        store_path_root_dir=str(folder), mapped_file_size_commit_log=FILE, disk_guard_enable=False
    )
    store = MessageStore(settings, clock=Clock(), ahead=False)
    store.load()
    ours, theirs = tcp_pair()
    ours.setblocking(False)
    theirs.setblocking(False)
    reads = Reads(store, theirs)
    append_copy = store.append_copy

    def noted(offset: int, data: memoryview) -> None:
        append_copy(offset, data)
        reads.count += 1

    monkeypatch.setattr(store, "append_copy", noted)
    rare = Settings(ha_send_heartbeat_interval=600_000)
    replica = Stream(rare, store, Clock(), ours, Receiver(0, FILE), may_gather=may_gather)
    task = asyncio.create_task(replica.run())
    try:
        await reads.expect_ack()
        yield reads
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        theirs.close()
        store.close()


async def test_records_of_a_frame_whose_rest_is_late_are_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No later frame arrives to trigger the ack."""
    async with following(tmp_path, monkeypatch) as reads:
        sent = frame(0, log_of(1))
        for part in sent[:-2000], sent[-2000:-10]:
            had = reads.store.max_physical_offset
            await asyncio.get_running_loop().sock_sendall(reads.theirs, part)
            await until_log_ends(reads.store, had + 1)
            await reads.expect_ack()


async def test_the_pieces_of_a_frame_are_read_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each wake-up is paid by the master, too."""
    monkeypatch.setattr(stream, "WATCH_S", 600)
    log = log_of(2)
    async with following(tmp_path, monkeypatch) as reads:
        for start in range(0, len(log), FILE):
            sent = frame(start, log[start : start + FILE])
            reads.theirs.sendall(sent[:2000])
            await until_log_ends(reads.store, start + 1)
            before = reads.count
            for at in range(2000, len(sent), 1000):
                reads.theirs.sendall(sent[at : at + 1000])
                await asyncio.sleep(0.01)
            await until_log_ends(reads.store, start + FILE)
            assert reads.count <= before + 2  # the record that was incomplete, and the others


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Each is enough for a replica to wait for more; nothing but them wakes it up."""
    monkeypatch.setattr(stream, "WATCH_S", 600)
    monkeypatch.setattr(stream, "MANY_BYTES", FILE)
    log = log_of(4)
    return [frame(start, log[start : start + FILE]) for start in range(0, len(log), FILE)]


async def test_frames_are_acknowledged_together_if_nobody_waits_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frames: list[bytes]
) -> None:
    monkeypatch.setattr(stream, "GATHER_S", 600)
    monkeypatch.setattr(stream, "READ_BYTES", sum(map(len, frames[1:])))
    async with following(tmp_path, monkeypatch, may_gather=True) as reads:
        reads.theirs.sendall(frames[0])
        await reads.expect_ack()
        for part in frames[1:]:
            assert reads.store.max_physical_offset == FILE
            reads.theirs.sendall(part)
        await reads.expect_ack()
        assert reads.store.max_physical_offset == 4 * FILE


async def test_gathered_frames_do_not_wait_for_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frames: list[bytes]
) -> None:
    async with following(tmp_path, monkeypatch, may_gather=True) as reads:
        for part in frames:
            reads.theirs.sendall(part)
            await reads.expect_ack()


async def test_each_frame_is_acknowledged_at_once_if_somebody_waits_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frames: list[bytes]
) -> None:
    monkeypatch.setattr(stream, "GATHER_S", 600)
    async with following(tmp_path, monkeypatch) as reads:
        for part in frames:
            reads.theirs.sendall(part)
            await reads.expect_ack()
