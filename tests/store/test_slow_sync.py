"""A file whose sync takes long: it stays usable, and is closed when the sync is done."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from aerobee.broker.store.files import real_disk
from aerobee.broker.store.files.real_disk import RealDisk, RealFile

PATIENCE_S = 5.0


class SlowSync:
    """Syncs that finish when a test releases them."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.may_end = threading.Event()
        self.descriptor = -1

    def __call__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.begun.set()
        assert self.may_end.wait(2 * PATIENCE_S)
        os.fdatasync(descriptor)


@pytest.fixture
def slow_sync(monkeypatch: pytest.MonkeyPatch) -> SlowSync:
    slow = SlowSync()
    monkeypatch.setattr(real_disk, "data_sync", slow)
    return slow


@pytest.fixture
def threads(slow_sync: SlowSync) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool
        slow_sync.may_end.set()


@pytest.fixture
def file(tmp_path: Path) -> RealFile:
    (tmp_path / "file").write_bytes(bytes(4096))
    return RealDisk().open(str(tmp_path / "file"))


def begin(sync: SlowSync, file: RealFile, threads: ThreadPoolExecutor) -> Future[None]:
    syncing = threads.submit(file.sync)
    assert sync.begun.wait(PATIENCE_S)
    return syncing


def test_a_first_view_does_not_wait_for_a_sync(
    slow_sync: SlowSync, file: RealFile, threads: ThreadPoolExecutor
) -> None:
    syncing = begin(slow_sync, file, threads)
    view = threads.submit(file.view).result(PATIENCE_S)  # as the loop's first read of a file
    assert len(view) == 4096
    assert not syncing.done()


def test_a_close_does_not_wait_for_a_sync_nor_end_it(
    slow_sync: SlowSync, file: RealFile, threads: ThreadPoolExecutor
) -> None:
    syncing = begin(slow_sync, file, threads)
    threads.submit(file.close).result(PATIENCE_S)
    os.fstat(slow_sync.descriptor)
    slow_sync.may_end.set()
    syncing.result(PATIENCE_S)
    with pytest.raises(OSError) as gone:
        os.fstat(slow_sync.descriptor)
    assert gone.value.errno == errno.EBADF
    file.sync()  # of a file that is closed: nothing
    file.close()
