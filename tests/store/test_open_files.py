"""Open files and maps: how many a store takes, and what happens when there are no more."""

from __future__ import annotations

import errno
import gc
import os
import random
import resource
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from peers.tools import wait_for

from aerobee.broker.store.errors import StoreError
from aerobee.broker.store.files import open_files
from aerobee.broker.store.files.open_files import QUEUE_FILES, allowed
from aerobee.broker.store.files.real_disk import RealDisk, RealFile
from aerobee.broker.store.inspect.files import open_directory
from aerobee.broker.store.inspect.stat import stat
from aerobee.broker.store.inspect.verify import verify

from .conftest import OpenStore, dispatch, message, read_all


@contextmanager
def open_files_limited_to(count: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def no_more_files() -> AbstractContextManager[None]:
    """As if every file that the process may open were open."""
    lowest = os.dup(0)  # all below are in use
    os.close(lowest)
    return open_files_limited_to(lowest)


def few_more_files(count: int) -> AbstractContextManager[None]:
    return open_files_limited_to(len(os.listdir("/proc/self/fd")) + count)


def test_a_mapped_file_takes_one_descriptor_and_one_map_until_its_last_view_is_gone(
    tmp_path: Path,
) -> None:
    def counts() -> tuple[int, int]:  # of this file alone: other tests' threads may end meanwhile
        gc.collect()
        maps = Path("/proc/self/maps").read_text().count(str(tmp_path))
        links = [Path("/proc/self/fd", number) for number in os.listdir("/proc/self/fd")]
        opened = [os.readlink(link) for link in links if link.is_symlink()]
        return sum(target.startswith(str(tmp_path)) for target in opened), maps

    file = RealDisk().create(str(tmp_path / "file"), 8192)
    file.use_randomly()
    view = file.view()
    view[8190:] = b"ab"
    assert counts() == (1, 1)
    assert file.read(8190, 2) == b"ab"
    piece = view[8190:]
    del view
    file.close()
    assert counts() == (0, 1)
    assert bytes(piece) == b"ab"
    del piece
    assert counts() == (0, 0)


def test_a_flush_that_may_open_no_file_is_done_later(open_store: OpenStore) -> None:
    store = open_store()
    store.put([message(body=b"1")])
    dispatch(store)
    store.flush.step()
    with no_more_files():
        store.queue_flush.step(thorough=True)
    assert store.put([message(body=b"2")])[0].ok
    dispatch(store)
    assert store.checkpoint.value.dispatched_offset == -1  # nothing is claimed
    store.flush.step()
    assert store.queue_flush.step(thorough=True)
    assert store.checkpoint.value.dispatched_offset == store.max_physical_offset
    store.close()
    assert [m.body for m in read_all(open_store())] == [b"1", b"2"]


def test_a_stop_that_may_open_no_file_is_not_called_clean(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store()
    store.put([message(body=b"1")])
    dispatch(store)
    with no_more_files():
        store.close()
    assert (tmp_path / "store" / "abort").exists()
    assert [m.body for m in read_all(open_store())] == [b"1"]


def test_a_start_that_may_open_no_more_files_names_the_limit(open_store: OpenStore) -> None:
    store = open_store()
    store.put([message(queue_id=number) for number in range(50)])
    dispatch(store)
    store.close()
    with no_more_files(), pytest.raises(StoreError, match=r"ulimit -n"):
        open_store()
    assert open_store().max_offset("T", 49) == 1


def test_many_queues_work_with_few_open_files(open_store: OpenStore) -> None:
    QUEUE_FILES.__init__()  # type: ignore[misc]  # other tests' files count, too
    queues = 300
    with few_more_files(60):
        store = open_store()
        for _ in range(2):
            for body in (b"1", b"2", b"3"):
                store.put([message(queue_id=number, body=body) for number in range(queues)])
                dispatch(store)
                store.flush.step()
                store.queue_flush.step(thorough=True)
            assert len(QUEUE_FILES) <= allowed() < 60
            store.close()
            store = open_store()
        for number in range(queues):
            assert [m.body for m in read_all(store, queue_id=number)] == [b"1", b"2", b"3"] * 2
        store.close()


def test_a_number_that_becomes_another_files_is_never_read_or_written_by_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads write to and read from more files than may be open: each finds its own bytes."""
    monkeypatch.setattr(open_files, "allowed", lambda: 4)
    disk, size = RealDisk(), 4096
    files = [disk.create(str(tmp_path / f"{number}"), size) for number in range(24)]
    for file in files:
        file.use_randomly()
    wrong: list[str] = []
    done = threading.Event()

    def work(own: list[RealFile], seed: int) -> None:
        rng = random.Random(seed)
        while not done.is_set():
            file = rng.choice(own)
            mark = file.path.encode().rjust(256)
            file.write(0, mark)
            if rng.random() < 0.01:
                file.sync()
            other = rng.choice(files)
            found = other.read(0, 256)
            if found.strip(b"\0") and found != other.path.encode().rjust(256):
                wrong.append(other.path)

    threads = [
        threading.Thread(target=work, args=(files[part::3], part), daemon=True) for part in range(3)
    ]
    for thread in threads:
        thread.start()
    reopened = sum(file._closings for file in files)
    enough = reopened + 3000
    try:
        wait_for(
            lambda: sum(file._closings for file in files) >= enough,
            timeout=100,
            what="files are closed and opened again",
        )
    finally:
        done.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    for file in files:
        file.close()


def test_a_start_that_may_map_no_more_files_names_the_limit(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_disk: Any, path: str) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), path)

    open_store().close()
    monkeypatch.setattr(RealDisk, "exists", refused)
    with pytest.raises(StoreError, match=r"vm\.max_map_count"):
        open_store()


def test_a_queue_file_that_gets_no_blocks_at_first_takes_its_entries_later(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    bodies = [b"%d" % number for number in range(60)]  # the first file of the queue has 50
    store.put([message(body=body) for body in bodies[:50]])
    dispatch(store)
    store.put([message(body=body) for body in bodies[50:]])

    def refused(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    with monkeypatch.context() as patch, pytest.raises(OSError, match="allocate memory"):
        patch.setattr("aerobee.broker.store.files.real_disk.allocate_blocks", refused)
        dispatch(store)
    dispatch(store)
    assert [m.body for m in read_all(store)] == bodies


def test_a_directory_at_rest_is_checked_with_few_open_files(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store()
    store.put([message(queue_id=number) for number in range(100)])
    dispatch(store)
    store.close()
    with few_more_files(30):
        rest = open_directory(str(tmp_path / "store"))
        report = verify(rest, lambda _: None)
        assert len(stat(rest)["queues"]) == 100
    assert (report.queue_entries, report.problems) == (100, [])
