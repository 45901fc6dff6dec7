"""The log stored to its mapped files (writeWithoutMmap=false), where they are ready for it."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import structlog
from waiting import until

from aerobee.broker.base.clock import Clock
from aerobee.broker.store.files import system_calls
from aerobee.broker.store.files.disk import Disk
from aerobee.broker.store.files.real_disk import RealDisk
from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.store.settings import StoreSettings

from .conftest import SMALL, OpenStore, message, read_all
from .faulty_disk import Fault, FaultyDisk

SIZE = 64 * 1024
BY_MAP: dict[str, Any] = {"write_without_mmap": False, "mapped_file_size_commit_log": SIZE}


def make(folder: Path, disk: Disk | None = None, **changes: Any) -> MessageStore:
    settings = StoreSettings(store_path_root_dir=str(folder), **(SMALL | BY_MAP | changes))
    store = MessageStore(settings, clock=Clock(), disk=disk, ahead=True)
    store.load()
    return store


def refuse_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on only the first record of a file of the log, which may not be ready then, and
    other files can be written by a call."""
    write = os.pwrite

    def pwrite(descriptor: int, data: bytes, position: int) -> int:
        assert not position or "/commitlog/" not in os.readlink(f"/proc/self/fd/{descriptor}")
        return write(descriptor, data, position)

    monkeypatch.setattr(os, "pwrite", pwrite)


def ready(store: MessageStore) -> int:
    file = store.commit_log.files.last
    return 0 if file is None else file.file.ready


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_what_is_ready_is_stored_through_the_map_and_found_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush: str
) -> None:
    store = make(tmp_path / "store", flush_disk_type=flush)
    await store.start()
    for number in range(30):
        assert store.put([message(body=b"%02d" % number * 4000)])[0].ok
        await until(lambda: ready(store) == SIZE)
        if number == 0:
            refuse_calls(monkeypatch)
    await until(lambda: store.flushed_offset == store.max_physical_offset)
    shutil.copytree(tmp_path / "store", tmp_path / "killed")  # with `abort`
    await store.stop()
    again = make(tmp_path / "killed", flush_disk_type=flush)
    assert [bytes(each.body) for each in read_all(again)] == [b"%02d" % n * 4000 for n in range(30)]
    again.close()


async def test_the_file_of_an_earlier_life_becomes_ready_behind_its_end(tmp_path: Path) -> None:
    store = make(tmp_path, write_without_mmap=True)
    assert store.put([message(body=b"x" * 5000)])[0].ok
    assert ready(store) == 0
    store.close()
    again = make(tmp_path)
    await again.start()
    await until(lambda: ready(again) == SIZE)
    assert again.put([message(body=b"y" * 5000)])[0].ok
    await again.stop()
    last = make(tmp_path)
    assert [bytes(each.body)[:1] for each in read_all(last)] == [b"x", b"y"]
    last.close()


def test_what_is_cut_off_is_not_ready_any_more(tmp_path: Path) -> None:
    file = RealDisk().create(str(tmp_path / "log"), SIZE)
    file.allocate(0, SIZE)
    file.make_ready(0, SIZE)
    file.write(SIZE - 4, b"last")
    assert bytes(file.view()[-4:]) == b"last" == file.read(SIZE - 4, 4)
    file.truncate(8192)
    file.extend(SIZE)
    assert file.ready == 8192
    file.write(8190, b"over")  # by a call: behind it are no blocks
    assert file.read(8188, 8) == b"\0\0over\0\0"
    file.close()
    file.make_ready(0, SIZE)  # too late: a no-op
    assert file.ready == 8192


def test_a_cut_while_pages_are_brought_in_leaves_nothing_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = RealDisk().create(str(tmp_path / "log"), SIZE)
    file.allocate(0, SIZE)
    advise = system_calls._advise

    def cut() -> None:
        file.truncate(0)
        file.extend(SIZE)

    def cut_then_advise(*args: Any) -> int:
        cutting = threading.Thread(target=cut)
        cutting.start()
        cutting.join()
        return int(advise(*args))

    monkeypatch.setattr(system_calls, "_advise", cut_then_advise)
    file.make_ready(0, SIZE)
    assert file.ready == 0
    file.close()


@pytest.mark.parametrize("store", [system_calls.store, system_calls.store_slice])
def test_a_store_stays_within_its_map(store: Any) -> None:
    memory = bytearray(b"........")
    view = memoryview(memory)
    store(view, 5, b"abc")
    store(view, 0, memoryview(b"xy"))
    assert memory == b"xy...abc"
    for position in (6, 8, 1 << 62, -1):
        with pytest.raises(ValueError):
            store(view, position, b"abc")
    with pytest.raises((TypeError, BufferError)):
        store(memoryview(b"constant"), 0, b"a")
    assert memory == b"xy...abc"


async def test_where_the_system_cannot_it_is_written_by_calls(tmp_path: Path) -> None:
    disk = FaultyDisk()
    disk.faults = [Fault("make_ready", "/commitlog/", errno.EINVAL)]
    with structlog.testing.capture_logs() as logs:
        store = make(tmp_path, disk)
        await store.start()
        for number in range(8):
            assert store.put([message(body=b"%d" % number * 5000)])[0].ok
        await store.stop()
    said = [each for each in logs if each.get("setting") == "writeWithoutMmap"]
    assert said and ready(store) == 0
    again = make(tmp_path)
    assert len(read_all(again)) == 8
    again.close()


def test_a_store_without_threads_has_its_files_ready_at_once(open_store: OpenStore) -> None:
    store = open_store(**BY_MAP)
    assert store.put([message()])[0].ok
    assert ready(store) == SIZE
    assert len(store.commit_log.files.files) == 1
