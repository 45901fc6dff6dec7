"""A disk without room: the store starts, serves what it has, and resumes when there is room."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest
from loop_turns import calls_of
from waiting import finish

from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.store.refusals import Cause
from aerobee.broker.store.results import ReadStatus

from .conftest import OpenStore, abandon, dispatch, message, read_all
from .faulty_disk import Fault, FaultyDisk

CALLS_MAX = 8_000  # of a slice; all 3,000 entries and keys: 80,000
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def put(store: MessageStore, first: int, end: int, topic: str = "T") -> None:
    for number in range(first, end):
        keys = f"KEYS\x01k{number}\x02"
        (result,) = store.put([message(topic, body=b"%d" % number, properties=keys)])
        assert result.ok, result.reason


def bodies(store: MessageStore) -> list[bytes]:
    return [bytes(found.body) for found in read_all(store)]


def numbers(end: int) -> list[bytes]:
    return [b"%d" % number for number in range(end)]


def found_by_key(store: MessageStore, key: str) -> int:
    search = store.search("T", key, 32, 0, 1 << 62)
    while True:
        try:
            next(search)
        except StopIteration as end:
            return len(end.value.views)


@pytest.mark.parametrize("number", NO_ROOM)
@pytest.mark.parametrize("call", ["create", "allocate", "write", "sync"])
def test_a_checkpoint_without_room_is_deferred(
    open_store: OpenStore, tmp_path: Path, call: str, number: int
) -> None:
    disk = FaultyDisk()
    disk.faults = [Fault(call, "/checkpoint", number, times=2)]
    store = open_store(disk=disk)
    put(store, 0, 10)
    dispatch(store)
    for _ in range(2):
        store.flush.step()
        store.queue_flush.step(thorough=True)
        assert store.queue_flush.deferred
        assert store.refusals.current is None
    store.queue_flush.step(thorough=True)
    assert not store.queue_flush.deferred
    assert store.checkpoint.value.dispatched_offset == store.max_physical_offset
    put(store, 10, 11)
    abandon(store)
    assert bodies(open_store()) == numbers(11)


class ForgetfulDisk(FaultyDisk):
    """Drops pages for which a sync finds no blocks, as ext4 does."""

    forgets: tuple[str, int, int] = ("-", 0, 0)  # part of a path, the range

    def forget(self, part: str, start: int, end: int) -> None:
        self.forgets = part, start, end
        self.faults = [Fault("sync", part, errno.ENOSPC, times=1)]

    def check(self, call: str, path: str) -> None:
        try:
            super().check(call, path)
        except OSError:
            part, start, end = self.forgets
            if part in path:
                with open(path, "r+b") as file:
                    file.seek(start)
                    file.write(bytes(end - start))
            raise


SLOTS = 40, 40 + 100 * 4  # of an index file: what was synced before is written again
ENTRIES_AFTER_TEN = 10 * 20, 40 * 20


@pytest.mark.parametrize(
    ("part", "dropped"),
    [("/consumequeue/", ENTRIES_AFTER_TEN), ("/index/", SLOTS)],
)
def test_entries_that_the_disk_dropped_are_recreated_from_the_log(
    open_store: OpenStore, part: str, dropped: tuple[int, int]
) -> None:
    disk = ForgetfulDisk()
    store = open_store(disk=disk)
    put(store, 0, 10)
    dispatch(store)
    store.flush.step()
    store.queue_flush.step(thorough=True)
    put(store, 10, 40)
    dispatch(store)
    disk.forget(part, *dropped)
    store.flush.step()
    store.queue_flush.step(thorough=True)
    assert store.queue_flush.lost
    refusal = store.refusals.current
    assert refusal is not None and part in refusal.reason and "free space" in refusal.reason
    assert finish(store.queue_flush.try_rebuild())
    store.queue_flush.step(thorough=True)
    assert store.refusals.current is None
    put(store, 40, 41)
    dispatch(store)
    assert bodies(store) == numbers(41)
    for number in range(41):
        assert found_by_key(store, f"k{number}") == 1, number
    abandon(store)
    assert bodies(open_store()) == numbers(41)


def test_many_entries_are_recreated_in_slices_while_readers_wait(open_store: OpenStore) -> None:
    disk = ForgetfulDisk()
    store = open_store(disk=disk)
    put(store, 0, 3000)
    dispatch(store)
    disk.forget("/consumequeue/", 0, 3000 * 20)
    store.flush.step()
    store.queue_flush.step(thorough=True)
    assert store.queue_flush.lost
    rebuilding, slices, done = store.queue_flush.try_rebuild(), [0], False

    def go_on() -> None:
        nonlocal done
        done = next(rebuilding, True) is True

    while not done:
        slices.append(calls_of(go_on))
        if not done:
            found = store.read_queue("T", 0, 2999, 32, max_bytes=1 << 20)
            found.release()
            assert found.status in (ReadStatus.OFFSET_OVERFLOW_ONE, ReadStatus.FOUND)
            assert store.queue_end("T", 0) == 3000
    assert len(slices) > 5 and max(slices) < CALLS_MAX
    assert bodies(store) == numbers(3000)


def killed_store(open_store: OpenStore, root: Path, **changes: Any) -> None:
    """A store without queues and index, left by a kill: all of them come from the log."""
    store = open_store(**changes)
    put(store, 0, 300)  # several files
    put(store, 300, 310, "Other")
    dispatch(store)
    abandon(store)
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")


@pytest.mark.parametrize("part", ["consumequeue", "index"])
def test_a_killed_store_without_room_for_its_queues_knows_their_numbers(
    open_store: OpenStore, tmp_path: Path, part: str
) -> None:
    killed_store(open_store, tmp_path / "store")
    disk = FaultyDisk()
    disk.no_space_for = part
    store = open_store(disk=disk)
    (refused,) = store.put([message()])
    assert not refused.ok
    assert "No space left on device" in refused.reason and "free space" in refused.reason
    assert store.queue_end("T", 0) == 300
    assert store.queue_end("Other", 0) == 10
    # A group that had consumed all is not reset to the queue's temporary end.
    result = store.read_queue("T", 0, 300, 32, max_bytes=1 << 20)
    assert result.status is ReadStatus.OFFSET_OVERFLOW_ONE
    assert result.next_offset == 300
    assert not store.finish_start()
    disk.no_space_for = ""
    assert store.finish_start()
    put(store, 300, 301)
    dispatch(store)
    assert bodies(store) == numbers(301)
    assert found_by_key(store, "k7") == 1
    store.close()
    assert bodies(open_store()) == numbers(301)


@pytest.mark.parametrize("stopped", [True, False])
def test_a_store_without_room_for_its_log_starts_and_takes_sends_later(
    open_store: OpenStore, stopped: bool
) -> None:
    store = open_store()
    put(store, 0, 10)
    dispatch(store)
    (store.close if stopped else lambda: abandon(store))()
    disk = FaultyDisk()
    disk.no_space_for = "commitlog"
    store = open_store(disk=disk)
    assert bodies(store) == numbers(10)
    assert not store.put([message()])[0].ok
    disk.no_space_for = ""
    assert store.finish_start()
    put(store, 10, 20)
    dispatch(store)
    assert bodies(store) == numbers(20)


def test_a_store_that_cannot_say_that_it_runs_takes_no_sends(
    open_store: OpenStore, tmp_path: Path
) -> None:
    """Without `abort` a crash would be taken for a clean stop."""
    store = open_store()
    put(store, 0, 10)
    dispatch(store)
    store.close()
    disk = FaultyDisk()
    disk.faults = [Fault("write_small", "/abort", errno.ENOSPC, times=2)]
    store = open_store(disk=disk)
    assert Cause.START_UNFINISHED in store.refusals
    assert bodies(store) == numbers(10)
    assert not store.finish_start()
    assert store.finish_start()
    assert (tmp_path / "store" / "abort").exists()
    put(store, 10, 11)


def test_keys_that_a_stop_could_not_write_are_found_after_the_next_start(
    open_store: OpenStore,
) -> None:
    disk = FaultyDisk()
    store = open_store(disk=disk)
    put(store, 0, 5)
    dispatch(store)
    store.flush.step()
    store.queue_flush.step(thorough=True)
    disk.faults = [Fault("write", "/index/", errno.ENOSPC)]
    put(store, 5, 10)
    store.close()
    disk.faults = []
    store = open_store(disk=disk)
    assert [found_by_key(store, f"k{number}") for number in range(10)] == [1] * 10
