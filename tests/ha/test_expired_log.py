"""A replica whose whole log has expired, and one whose disk refuses: neither acks more than it has,
and earlier acks stay valid."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
import structlog
from peers.in_process import Client
from waiting import until

from aerobee.broker.base.clock import Clock
from aerobee.broker.daemon.app import AppBroker
from aerobee.broker.ha.epochs import EpochFile
from aerobee.broker.ha.receiver import Receiver
from aerobee.broker.ha.stream import Stream
from aerobee.broker.settings import Settings
from aerobee.broker.store.files.real_disk import RealDisk
from aerobee.broker.store.log.commitlog import LogFull
from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.store.settings import StoreSettings
from ha.chaos.run import where_all_have_files
from ha.pairs import (
    has_all_of,
    in_step,
    log_bytes,
    pull_all,
    running_master,
    running_slave,
    send_many,
)
from ha.test_stream import FILE, frame, log_of


def expire_all_but_an_empty_file(store: Path) -> int:
    """As a kill between two files leaves it, after retention; where the log ends."""
    files = sorted((store / "commitlog").iterdir())
    for file in files[:-1]:
        file.unlink()
    files[-1].write_bytes(bytes(files[-1].stat().st_size))
    (store / "checkpoint").unlink()  # which knows of more
    (store / "abort").touch()
    return int(files[-1].name)


async def test_a_replica_whose_log_has_expired_resumes_where_it_ended(tmp_path: Path) -> None:
    async with running_master(tmp_path) as master:
        client = await Client.connect(master)
        bodies = await send_many(client, "orders", 300)
        async with running_slave(tmp_path, master) as slave:
            await in_step(slave, master)
        end = expire_all_but_an_empty_file(tmp_path / "slave1/store")
        assert end > 100_000
        with structlog.testing.capture_logs() as lines:
            async with running_slave(tmp_path, master) as slave:
                bodies += await send_many(client, "orders", 50)
                await in_step(slave, master)
                assert slave.broker.store.min_physical_offset == end
                reader = await Client.connect(slave)
                found = await pull_all(reader, "orders")
                await reader.close()
                assert not found or found[-1].body == bodies[-1]
        [followed] = [line for line in lines if line["event"] == "following the master"]
        assert followed["from_offset"] == end
        await client.close()
    ours, theirs = log_bytes(tmp_path / "slave1"), log_bytes(tmp_path / "master")
    assert ours and ours == {name: theirs[name] for name in ours}


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_replica_whose_log_has_expired_and_is_not_the_masters_gets_all_of_it_anew(
    tmp_path: Path, flush: str
) -> None:
    async with running_master(tmp_path) as master:
        client = await Client.connect(master)
        bodies = await send_many(client, "orders", 300)
        async with running_slave(tmp_path, master) as slave:
            await in_step(slave, master)
        assert expire_all_but_an_empty_file(tmp_path / "slave1/store") > 100_000
        file = EpochFile(str(tmp_path / "slave1/store/epochFileCheckpoint"), RealDisk())
        file.load()
        file.save(file.epochs.begun(2, 100_000))  # it was the master after that ...
        own = master.roles.epoch_file
        own.save(own.epochs.begun(3, 50_000))  # ... and another one before
        async with running_slave(tmp_path, master, flush_disk_type=flush) as slave:
            bodies += await send_many(client, "orders", 50)
            await until(lambda: is_in_step(slave, master), 20)
            store = slave.broker.store
            await until(lambda: store.flushed_offset == store.max_physical_offset, 20)
            reader = await Client.connect(slave)
            assert [found.body for found in await pull_all(reader, "orders")] == bodies
            await reader.close()
        await client.close()
    assert log_bytes(tmp_path / "slave1") == log_bytes(tmp_path / "master")


def is_in_step(slave: AppBroker, master: AppBroker) -> bool:
    return slave.is_ready and has_all_of(slave, master)


async def test_what_could_not_be_written_is_never_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even by the report that is due at the same moment."""
    settings = StoreSettings(
        store_path_root_dir=str(tmp_path),
        mapped_file_size_commit_log=FILE,
        disk_guard_enable=False,
    )
    store = MessageStore(settings, clock=Clock(), ahead=False)
    store.load()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    replica = Stream(Settings(), store, Clock(), ours, Receiver(0, FILE))

    def full(_offset: int, _data: memoryview) -> None:
        asyncio.get_running_loop().call_soon(replica._report)  # as the watch does
        raise LogFull("no room")

    monkeypatch.setattr(store, "append_copy", full)
    following = asyncio.create_task(replica.run())
    theirs.sendall(frame(0, log_of(1)[:FILE]))
    with pytest.raises(LogFull):
        await asyncio.wait_for(following, 20)
    theirs.setblocking(True)
    told = b""
    while data := theirs.recv(4096):
        told += data
    theirs.close()
    store.close()
    assert told and not told.strip(b"\0"), "reports of 8 bytes: it has nothing"


def test_the_checker_of_chaos_passes_over_a_log_that_begins_at_the_common_end() -> None:
    """A slave with a full disk had removed every file that the check compares."""
    whole = {f"{0:020d}": b"one", f"{10:020d}": b"two"}
    assert where_all_have_files([whole, {}, whole], 20) == [{}, {}, {}]
    rest = {f"{10:020d}": b"two"}
    assert where_all_have_files([whole, rest, whole], 20) == [rest, rest, rest]
