"""Cleaning while the store runs: in its thread, whoever asks for it."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
from waiting import until

from aerobee.broker.base.clock import Clock
from aerobee.broker.store.files.real_disk import RealDisk
from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.store.retention import clean

from .conftest import OpenStore, dispatch, message

HOURS_AGO = 100 * 3600


class GatedDisk(RealDisk):
    """Notes which thread removes what; may hold the first file of the log, and refuse it then."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.refuses = False
        self.held = False
        self.removed: dict[str, str] = {}  # path -> thread

    def unlink(self, path: str) -> None:
        if path.endswith("commitlog/" + "0" * 20):
            self.held = not self.gate.is_set()
            assert self.gate.wait(30), "the test did not let go"
            if self.refuses:
                raise OSError(errno.EPERM, os.strerror(errno.EPERM), path)
        super().unlink(path)
        self.removed[path] = threading.current_thread().name


def filled(open_store: OpenStore, disk: RealDisk) -> MessageStore:
    """With expired files of each kind, and one that is written."""
    store = open_store(disk=disk, clock=Clock(), max_index_num=50)
    while store.max_physical_offset < 4 * 65536 + 1000:
        store.put([message(body=b"x" * 700, properties="KEYS\x01k\x02") for _ in range(10)])
    dispatch(store)
    store.flush.step()
    store.queue_flush.step(thorough=True)
    for file in store.commit_log.files.files:
        seconds = store.clock.now_ms() / 1000 - HOURS_AGO
        os.utime(file.path, (seconds, seconds))
    return store


async def test_a_request_while_a_file_is_being_removed_leaves_no_hole_when_that_fails(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clean, "FIRST_DELAY_S", 0.0)
    disk = GatedDisk()
    store = filled(open_store, disk)
    files = store.commit_log.files
    first = files.files[0]
    disk.gate.clear()
    disk.refuses = True
    store.clean.trigger()
    await store.start()
    try:
        await until(lambda: disk.held)
        store.clean_expired()
        disk.gate.set()
        await until(lambda: files.files[0] is first)
        files._check_contiguous()
        disk.refuses = False
        store.clean_expired()
        await until(lambda: len(files.files) == 1)
    finally:
        disk.gate.set()
        await store.stop()


async def test_no_file_is_removed_on_the_loop(open_store: OpenStore, tmp_path: Path) -> None:
    disk = GatedDisk()
    store = filled(open_store, disk)
    assert store.index is not None
    index = store.index
    await store.start()
    await until(lambda: store.clean.is_running)
    try:
        store.clean_expired()
        await until(lambda: len(store.commit_log.files.files) == 1)
        await until(lambda: all(f.end_offset >= store.min_physical_offset for f in index.files))
    finally:
        await store.stop()
    kinds = {Path(path).relative_to(tmp_path / "store").parts[0] for path in disk.removed}
    assert {"commitlog", "consumequeue", "index"} <= kinds
    at_work = {name for path, name in disk.removed.items() if not path.endswith("/abort")}
    assert "MainThread" not in at_work, disk.removed


def test_a_search_by_key_goes_on_when_the_file_it_is_in_is_removed(
    open_store: OpenStore,
) -> None:
    store = open_store(max_index_num=2000)
    store.put([message(properties="KEYS\x01k\x02") for _ in range(1990)])
    dispatch(store)
    store.put([message(properties="KEYS\x01k\x02") for _ in range(20)])
    dispatch(store)
    index = store.index
    assert index is not None
    index.write_pending()
    store.queue_flush.step(thorough=True)
    assert len(index.files) == 2
    search = index.find("T", "k", 0, 1 << 62)
    found = [next(search) for _ in range(40)]
    old = index.files.pop(0)
    index.remove(old)
    assert [offset for offset in search if offset is not None] == []
    assert len(found) == 40
