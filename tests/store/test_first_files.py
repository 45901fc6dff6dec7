"""The first file of a new queue is made in a thread: the loop does not wait for it."""

from __future__ import annotations

import asyncio
import errno
import gc
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from waiting import until

from aerobee.broker.base.clock import Clock
from aerobee.broker.store.files.real_disk import RealFile
from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.store.queues.first_files import FirstFiles
from aerobee.broker.store.results import Arrival
from aerobee.broker.store.settings import StoreSettings

from .conftest import SMALL, message, read_all
from .faulty_disk import Fault, FaultyDisk


class SlowDisk(FaultyDisk):
    """While `gate` is closed, creating a queue file blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = 0
        self.makers: list[str] = []  # the threads that made queue files

    def create(self, path: str, size: int) -> RealFile:
        if "/consumequeue/" in path:
            self.makers.append(threading.current_thread().name)
            self.waiting += 1
            assert self.gate.wait(20), "the loop waits for a file"
            self.waiting -= 1
        file: RealFile = super().create(path, size)
        return file


@pytest.fixture
def disk() -> SlowDisk:
    return SlowDisk()


@pytest.fixture
async def store(tmp_path: Path, disk: SlowDisk) -> AsyncIterator[MessageStore]:
    settings = StoreSettings(store_path_root_dir=str(tmp_path), **SMALL)
    store = MessageStore(settings, clock=Clock(), disk=disk, ahead=True)
    store.load()
    await store.start()
    yield store
    disk.gate.set()
    await store.stop()


async def test_the_loop_continues_and_dispatch_keeps_the_order_of_the_log(
    store: MessageStore, disk: SlowDisk
) -> None:
    arrived: list[Arrival] = []
    store.add_arrival_listener(arrived.extend)
    assert store.put([message()])[0].ok
    await until(lambda: len(arrived) == 1)
    disk.gate.clear()
    assert store.put([message(), message("New"), message(), message("New", 1)])[-1].ok
    await until(lambda: len(arrived) == 2 and disk.waiting)
    assert store.put([message()])[0].ok  # the loop is not blocked
    disk.gate.set()
    await until(lambda: store.dispatched_offset == store.max_physical_offset)
    found = [(each.topic, each.queue_id, each.queue_offset) for each in arrived]
    assert found[:3] == [("T", 0, 0), ("T", 0, 1), ("New", 0, 0)]
    assert found[3:] == [("T", 0, 2), ("New", 1, 0), ("T", 0, 3)]
    assert set(disk.makers) == {"aerobee-queues_0"}


async def test_a_reader_of_a_queue_whose_file_is_being_created_finds_its_message(
    store: MessageStore, disk: SlowDisk
) -> None:
    disk.gate.clear()
    assert store.put([message("New")])[0].ok
    await until(lambda: disk.waiting)
    threading.Timer(0.05, disk.gate.set).start()
    assert store.max_offset("New", 0) == 1


async def test_a_file_that_the_thread_could_not_make_is_made_when_it_is_needed(
    store: MessageStore, disk: SlowDisk
) -> None:
    disk.faults.append(Fault("create", "/consumequeue/", errno.EIO, times=1))
    assert store.put([message("New")])[0].ok
    await until(lambda: store.dispatched_offset == store.max_physical_offset)
    assert len(read_all(store, "New")) == 1
    assert len(disk.makers) == 2


async def test_what_the_thread_could_not_make_is_reported_though_the_next_try_works(
    store: MessageStore, disk: SlowDisk
) -> None:
    disk.faults.append(Fault("create", "/consumequeue/", errno.EIO, times=1))
    with capture_logs() as lines:
        assert store.put([message("New")])[0].ok
        await until(lambda: store.dispatched_offset == store.max_physical_offset)
    [line] = [line for line in lines if line["log_level"] == "error"]
    assert line["errno"] == "EIO" and line["path"].endswith("/consumequeue/New/0")
    assert "retried" in line["then"]


async def test_a_file_that_dispatch_waits_for_and_that_fails_is_no_error_of_the_loop(
    store: MessageStore, disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    awaited: list[str] = []  # by dispatch
    made = FirstFiles.made

    async def noted(files: FirstFiles, folder: str) -> None:
        awaited.append(folder)
        await made(files, folder)

    monkeypatch.setattr(FirstFiles, "made", noted)
    unhandled: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    disk.gate.clear()
    disk.faults.append(Fault("allocate", "/consumequeue/", errno.EIO, times=1))
    assert store.put([message("New")])[0].ok
    await until(lambda: disk.waiting and awaited)
    disk.gate.set()
    await until(lambda: store.dispatched_offset == store.max_physical_offset)
    assert store.put([message("Another")])[0].ok  # drops the reference to the failed one
    await until(lambda: store.dispatched_offset == store.max_physical_offset)
    gc.collect()
    await asyncio.sleep(0)
    assert unhandled == []


async def test_a_topic_deleted_while_its_file_is_made_leaves_nothing(
    store: MessageStore, disk: SlowDisk, tmp_path: Path
) -> None:
    disk.gate.clear()
    store.prepare_queue("New", 0)
    store.prepare_queue("New", 1)  # still queued
    await until(lambda: disk.waiting)
    threading.Timer(0.05, disk.gate.set).start()
    store.delete_topic("New")
    assert not (tmp_path / "consumequeue" / "New").exists()


async def test_a_file_that_nobody_used_goes_with_the_stop(
    store: MessageStore, disk: SlowDisk, tmp_path: Path
) -> None:
    store.prepare_queue("New", 0)
    path = tmp_path / "consumequeue" / "New" / "0" / ("0" * 20)
    await until(path.exists)
    await store.stop()
    assert not path.exists()


async def test_the_names_of_folders_that_the_thread_made_are_synced_before_a_checkpoint(
    store: MessageStore, disk: SlowDisk, tmp_path: Path
) -> None:
    store.prepare_queue("New", 0)  # creates the topic's folder, and is never used
    await until((tmp_path / "consumequeue" / "New" / "0" / ("0" * 20)).exists)
    assert store.put([message("New", 1)])[0].ok
    await until(lambda: store.dispatched_offset == store.max_physical_offset)
    folders = set(store.queue_flush._unsynced)
    root = tmp_path / "consumequeue"
    assert {str(root), str(root / "New"), str(root / "New" / "1")} <= folders


async def test_nothing_is_made_ahead_while_puts_are_refused(
    store: MessageStore, disk: SlowDisk
) -> None:
    await store.stop()
    store.prepare_queue("New", 0)
    assert store.queues() == {}
    assert not disk.makers
