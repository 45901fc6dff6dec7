"""When a replica stops reading what its master sends, and when it acknowledges."""

from __future__ import annotations

import asyncio
import socket
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


async def test_records_of_a_frame_whose_rest_is_late_are_acknowledged(tmp_path: Path) -> None:
    """No later frame arrives to trigger the ack."""
    settings = StoreSettings(
        store_path_root_dir=str(tmp_path), mapped_file_size_commit_log=FILE, disk_guard_enable=False
    )
    store = MessageStore(settings, clock=Clock(), ahead=False)
    store.load()
    ours, theirs = tcp_pair()
    ours.setblocking(False)
    theirs.setblocking(False)
    rare = Settings(ha_send_heartbeat_interval=600_000)
    replica = Stream(rare, store, Clock(), ours, Receiver(0, FILE))
    following = asyncio.create_task(replica.run())
    loop = asyncio.get_running_loop()
    try:
        assert int.from_bytes(await loop.sock_recv(theirs, 8), "big") == 0
        sent = frame(0, log_of(1))
        for part in sent[:-2000], sent[-2000:-10]:
            had = store.max_physical_offset
            await loop.sock_sendall(theirs, part)
            await until_log_ends(store, had + 1)
            acknowledged = await asyncio.wait_for(loop.sock_recv(theirs, 8), 100)
            assert int.from_bytes(acknowledged, "big") == store.max_physical_offset
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        theirs.close()
        store.close()


async def test_the_pieces_of_a_frame_are_read_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each wake-up is paid by the master, too."""
    monkeypatch.setattr(stream, "WATCH_S", 600)
    settings = StoreSettings(
        store_path_root_dir=str(tmp_path), mapped_file_size_commit_log=FILE, disk_guard_enable=False
    )
    store = MessageStore(settings, clock=Clock(), ahead=False)
    store.load()
    ours, theirs = tcp_pair()
    ours.setblocking(False)
    replica = Stream(Settings(), store, Clock(), ours, Receiver(0, FILE))
    following = asyncio.create_task(replica.run())
    log = log_of(2)
    ends: list[int] = []
    append_copy = store.append_copy

    def noted(offset: int, data: memoryview) -> None:
        append_copy(offset, data)
        ends.append(store.max_physical_offset)

    monkeypatch.setattr(store, "append_copy", noted)
    try:
        for start in range(0, len(log), FILE):
            sent = frame(start, log[start : start + FILE])
            theirs.sendall(sent[:2000])
            await until_log_ends(store, start + 1)
            first = len(ends)
            for at in range(2000, len(sent), 1000):
                theirs.sendall(sent[at : at + 1000])
                await asyncio.sleep(0.01)
            await until_log_ends(store, start + FILE)
            assert len(ends) <= first + 2  # the record that was incomplete, and the others
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        theirs.close()
        store.close()
