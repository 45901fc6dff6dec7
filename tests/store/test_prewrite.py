"""The log's blocks are written before messages need them, and no message is overwritten."""

from __future__ import annotations

import errno
import os
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog
from waiting import until

from aerobee.broker.base.clock import Clock
from aerobee.broker.store.files.real_disk import RealDisk, RealFile
from aerobee.broker.store.log import prewrite
from aerobee.broker.store.log.prewrite import CHUNK, PAUSE_S, WINDOW, Prewriter
from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.store.settings import StoreSettings

from .conftest import SMALL, OpenStore, message, read_all

MIB = 1 << 20


def written_bytes(descriptor: int, size: int) -> int:
    """How much of the file is data; blocks that are only allocated are holes."""
    total = position = 0
    while position < size:
        try:
            start = os.lseek(descriptor, position, os.SEEK_DATA)
        except OSError as error:
            assert error.errno == errno.ENXIO
            break
        position = min(os.lseek(descriptor, start, os.SEEK_HOLE), size)
        total += position - start
    return total


def test_allocated_blocks_become_written_ones_and_no_byte_changes(tmp_path: Path) -> None:
    disk = RealDisk()
    file = disk.create(str(tmp_path / "log"), MIB)
    file.allocate(0, MIB)
    file.write(5000, b"kept")
    file.sync()
    descriptor = os.open(file.path, os.O_RDWR)
    if written_bytes(descriptor, MIB) > 64 * 1024:
        pytest.skip("this file system does not tell allocated blocks from written ones")
    file.prewrite(0, MIB)
    assert written_bytes(descriptor, MIB) == MIB
    os.close(descriptor)
    assert file.read(0, MIB) == bytes(5000) + b"kept" + bytes(MIB - 5004)
    assert file.prewritten == MIB
    file.truncate(8192)
    assert file.prewritten == 8192
    file.close()
    file.prewrite(0, MIB)  # too late: a no-op


def test_what_others_write_to_the_blocks_meanwhile_is_kept(tmp_path: Path) -> None:
    file = RealDisk().create(str(tmp_path / "log"), MIB)
    file.allocate(0, MIB)
    done = threading.Event()

    def write_ahead() -> None:
        while not done.is_set():
            file.prewrite(0, MIB)

    thread = threading.Thread(target=write_ahead)
    thread.start()
    step = 100
    for position in range(0, MIB - step, step):
        file.write(position, b"%099d\n" % position)
    done.set()
    thread.join()
    for position in range(0, MIB - step, step):
        assert file.read(position, step) == b"%099d\n" % position
    file.close()


def make(folder: Path, **changes: Any) -> MessageStore:
    settings = StoreSettings(store_path_root_dir=str(folder), **(SMALL | changes))
    store = MessageStore(settings, clock=Clock(), ahead=True)
    store.load()
    return store


def _has(store: MessageStore, count: int) -> bool:
    return store.max_offset("T", 0) == count


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"flush_disk_type": "SYNC_FLUSH"}, True),
        ({"flush_disk_type": "SYNC_FLUSH", "warm_maped_file_enable": False}, False),
        ({"flush_disk_type": "ASYNC_FLUSH"}, False),
    ],
)
async def test_a_store_writes_ahead_in_sync_flush(
    tmp_path: Path, changes: dict[str, Any], wanted: bool
) -> None:
    store = make(tmp_path, **changes)
    await store.start()
    files = store.commit_log.files
    sizes = []
    for number in range(1, 31):
        store.put([message(body=b"%d" % number * 8000)])
        if wanted:
            await until(lambda: files.files[-1].file.prewritten == files.file_size)
        await until(partial(_has, store, number))
        sizes.append(files.files[-1].file.prewritten)
    assert set(sizes) == ({64 * 1024} if wanted else {0})
    await store.stop()
    assert not [each for each in threading.enumerate() if each.name == "aerobee-prewrite"]
    again = make(tmp_path, **changes)
    assert [bytes(each.body) for each in read_all(again)] == [
        b"%d" % n * 8000 for n in range(1, 31)
    ]
    again.close()


def test_it_stays_a_window_ahead_and_lets_fast_senders_pass(open_store: OpenStore) -> None:
    store = open_store(mapped_file_size_commit_log=64 * MIB)
    writer = Prewriter(store.commit_log.files)
    assert writer.step() == 0 and writer.wake_at == 0  # there is no file yet
    store.put([message()])
    mapped = store.commit_log.files.files[0]
    while pause := writer.step():
        assert pause < PAUSE_S
    assert WINDOW - CHUNK <= mapped.file.prewritten <= WINDOW + CHUNK
    assert writer.wake_at == mapped.file.prewritten - WINDOW // 2
    mapped.wrote = 40 * MIB + 5  # much has come since
    assert writer.step() == PAUSE_S
    assert mapped.file.prewritten == 40 * MIB + CHUNK
    mapped.wrote = 60 * MIB
    while writer.step():
        pass
    assert mapped.file.prewritten == mapped.size
    assert writer.wake_at == mapped.end


async def test_a_system_without_the_call_is_reported_once_and_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_file: RealFile, _start: int, _length: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(RealFile, "prewrite", refuse)
    with structlog.testing.capture_logs() as lines:
        monkeypatch.setattr(prewrite, "log", structlog.get_logger())
        store = make(tmp_path, flush_disk_type="SYNC_FLUSH")
        await store.start()
        for _ in range(40):
            assert store.put([message(body=b"x" * 8000)])[0].ok
        await until(lambda: store.max_offset("T", 0) == 40)
        await store.stop()
    assert [line["reason"] for line in lines if "written ahead any more" in line["event"]] == [
        "[Errno 22] Invalid argument"
    ]
