"""Many queues that get an entry now and then: entries are kept in memory and written together."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from aerobee.broker.base.worker import Worker
from aerobee.broker.store.dispatch import dispatch_block, entries
from aerobee.broker.store.dispatch.entries import MANY_QUEUES
from aerobee.broker.store.durability import flush_queues
from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.store.queues.consume_queue import KEPT_MAX, ConsumeQueue

from .conftest import ManualClock, OpenStore, abandon, dispatch, message, read_all
from .faulty_disk import FaultyDisk

QUEUES = 300
ROOMY = {"mapped_file_size_consume_queue": 20 * 100, "mapped_file_size_commit_log": 1 << 20}


def send_to_all(store: MessageStore, rounds: int = 1) -> None:
    """A message to each queue, dispatched together, in each round."""
    for number in range(rounds):
        body = b"%d" % number
        store.put([message(queue_id=queue_id, body=body) for queue_id in range(QUEUES)])
        dispatch(store)


def keeping(store: MessageStore) -> list[ConsumeQueue]:
    return [queue for queue in store.queue_table if queue.kept]


def queue_files(root: Path) -> dict[str, bytes]:
    folder = root / "consumequeue"
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def store(open_store: OpenStore) -> MessageStore:
    made = open_store(**ROOMY)
    send_to_all(made)  # each queue has its file
    return made


def test_entries_of_many_queues_are_kept_and_read_all_the_same(store: MessageStore) -> None:
    send_to_all(store, 3)
    assert len(keeping(store)) == QUEUES
    for queue_id in (0, 7, QUEUES - 1):
        bodies = [each.body for each in read_all(store, queue_id=queue_id)]
        assert bodies == [b"0", b"0", b"1", b"2"]
    assert len(keeping(store)) == QUEUES


def test_entries_of_few_queues_are_written_at_once(store: MessageStore) -> None:
    store.put([message(queue_id=number % MANY_QUEUES) for number in range(QUEUES)])
    dispatch(store)
    assert not keeping(store)


def test_a_queue_keeps_only_so_many(store: MessageStore) -> None:
    send_to_all(store, 70)
    assert keeping(store)
    assert all(len(queue.kept) < KEPT_MAX for queue in keeping(store))


def test_the_files_are_the_same_as_without(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for name, many in (("kept", MANY_QUEUES), ("plain", 1 << 30)):
        for module in (dispatch_block, entries):
            monkeypatch.setattr(module, "MANY_QUEUES", many)
        store = open_store(root=tmp_path / name, **ROOMY)
        for _ in range(6):  # more than a queue's file takes
            send_to_all(store, 20)
            store.put([message(queue_id=3), message(queue_id=3)])  # few, by the other way
            dispatch(store)
        assert bool(keeping(store)) == (name == "kept")
        store.close()
        found.append(queue_files(tmp_path / name))
    assert found[0] == found[1]


def test_what_was_kept_when_the_process_was_killed_is_recreated(
    open_store: OpenStore, store: MessageStore
) -> None:
    store.queue_flush.step(thorough=True)
    send_to_all(store, 3)
    assert keeping(store)
    abandon(store)
    again = open_store(**ROOMY)
    for queue_id in range(QUEUES):
        bodies = [each.body for each in read_all(again, queue_id=queue_id)]
        assert bodies == [b"0", b"0", b"1", b"2"]


class Rounds(ManualClock):
    """Lets a coroutine make one round; others do something at its first pause."""

    def __init__(self) -> None:
        super().__init__()
        self.sleeps = 0
        self.pauses = 0
        self.paused = asyncio.Event()
        self.done = asyncio.Event()

    def begin_again(self) -> None:
        self.sleeps = 0
        self.done.clear()

    async def sleep(self, seconds: float) -> None:
        if seconds == 0:
            self.pauses += 1
            self.paused.set()
            await asyncio.sleep(0)
            return
        self.sleeps += 1
        if self.sleeps > 1:
            self.done.set()
            await asyncio.Event().wait()


async def test_a_flush_writes_them_in_turns_and_claims_what_was_there_when_it_began(
    open_store: OpenStore,
) -> None:
    clock, worker = Rounds(), Worker("test")
    store = open_store(clock=clock, **ROOMY)
    send_to_all(store, 3)
    store.flush.step()
    before = store.reput.dispatcher.dispatched_offset
    store.queue_flush.expedite()
    task = asyncio.create_task(store.queue_flush.run(worker))
    await clock.paused.wait()
    send_to_all(store, 2)  # some of the queues were written already, others were not
    store.flush.step()
    await clock.done.wait()
    task.cancel()
    worker.stop()
    assert clock.pauses >= QUEUES // 64
    assert store.checkpoint.value.dispatched_offset == before
    assert keeping(store)
    abandon(store)
    again = open_store(**ROOMY)
    for queue_id in range(QUEUES):
        bodies = [each.body for each in read_all(again, queue_id=queue_id)]
        assert bodies == [b"0", b"1", b"2", b"0", b"1"]


@pytest.mark.parametrize("bytes_of_a_queue", [0, 1 << 20])
async def test_a_checkpoint_of_many_queues_waits_for_more_of_the_log(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, bytes_of_a_queue: int
) -> None:
    """It costs a sync of each."""
    monkeypatch.setattr(flush_queues, "CHECKPOINT_BYTES", 1000)
    monkeypatch.setattr(flush_queues, "CHECKPOINT_BYTES_PER_QUEUE", bytes_of_a_queue)
    clock, worker = Rounds(), Worker("test")
    store = open_store(clock=clock, **ROOMY)
    for rounds in (0, 3):  # the first one after a start is written in any case
        send_to_all(store, rounds)
        store.flush.step()
        clock.begin_again()
        task = asyncio.create_task(store.queue_flush.run(worker))
        await clock.done.wait()
        task.cancel()
    worker.stop()
    assert (store.checkpoint.value.dispatched_offset > 0) == (bytes_of_a_queue == 0)


def test_a_stop_is_not_clean_if_they_cannot_be_written(open_store: OpenStore) -> None:
    disk = FaultyDisk()
    store = open_store(disk=disk, **ROOMY)
    send_to_all(store, 3)
    disk.fail_write_of = "consumequeue"
    store.close()
    disk.fail_write_of = ""
    again = open_store(**ROOMY)
    for queue_id in range(QUEUES):
        assert len(read_all(again, queue_id=queue_id)) == 3


def test_a_disk_that_takes_no_writes_is_read_and_keeps_what_was_not_written(
    store: MessageStore,
) -> None:
    send_to_all(store, 3)
    queue = keeping(store)[0]
    kept, file = queue.kept, queue.writing
    assert file is not None
    real = file.file
    written = real.read(0, 20)
    file.file = FailingFile(real)  # type: ignore[assignment]
    for first in range(4):
        assert queue.entries(first, 10) == (written + kept)[first * 20 :]
        assert queue.entries(first, 1) == (written + kept)[first * 20 : first * 20 + 20]
    with pytest.raises(OSError, match="worn out"):
        queue.write_kept()
    assert queue.kept == kept
    file.file = real
    queue.write_kept()
    assert real.read(20, 60) == kept


class FailingFile:
    """A disk that takes no write."""

    def __init__(self, real: object) -> None:
        self._real = real

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)

    def write(self, position: int, data: bytes) -> None:
        raise OSError("worn out")


def test_times_that_a_thread_asks_for_touch_nothing_that_the_loop_writes(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a scrape of the metrics does. A thread that wrote kept entries, or dispatched, beside the
    loop lost entries."""
    send_to_all(store, 3)
    store.put([message(queue_id=5)])  # not dispatched: that is the loop's
    asked = [store.store_time_later("T", 5, number) for number in range(6)]
    expected = [store.store_time("T", 5, number) for number in range(6)]
    assert expected[4] > 0 and expected[5] == -1

    def from_a_thread(*_: object, **__: object) -> None:
        raise AssertionError("a thread has changed the queues")

    for owner, name in (
        (ConsumeQueue, "write_kept"),
        (ConsumeQueue, "put_run"),
        (type(store.reput), "catch_up"),
    ):
        monkeypatch.setattr(owner, name, from_a_thread)
    with ThreadPoolExecutor(1) as thread:
        assert [thread.submit(each).result() for each in asked] == expected


def test_a_gap_beyond_the_file_drops_kept_entries_with_it(store: MessageStore) -> None:
    send_to_all(store, 2)
    queue = keeping(store)[0]
    beyond = queue.files.file_size // 20 * 3
    assert queue.put(beyond, 1 << 20, 100, 0)
    assert queue.min_offset == beyond and queue.entry(beyond) == (1 << 20, 100, 0)
