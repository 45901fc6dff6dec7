"""Flush: what an acknowledgement means, what the checkpoint may claim, what a failed sync does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from peers.tools import wait_for
from waiting import until

from aerobee.broker.base.clock import Clock
from aerobee.broker.store.dispatch.reput import STEP_FACTS
from aerobee.broker.store.durability import flush_queues, queue_dates
from aerobee.broker.store.files.mapped_file import MappedFile
from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.store.queues.consume_queue import ConsumeQueue
from aerobee.broker.store.results import PutStatus
from aerobee.protocol.files.checkpoint import StoreCheckpoint, decode_checkpoint

from .conftest import ManualClock, OpenStore, dispatch, message, read_all
from .faulty_disk import FaultyDisk

SYNC = {"flush_disk_type": "SYNC_FLUSH"}


def page(folder: Path) -> StoreCheckpoint:
    return decode_checkpoint((folder / "store" / "checkpoint").read_bytes())


def test_sync_flush_answers_only_after_the_sync_and_all_waiters_at_once(
    open_store: OpenStore,
) -> None:
    disk = FaultyDisk()
    store = open_store(disk=disk, **SYNC)
    answers: list[PutStatus] = []
    for result in store.put([message() for _ in range(10)]):
        store.when_durable(result.end_offset, answers.append)
    disk.synced.clear()
    assert answers == []
    assert store.flush.step()
    assert answers == [PutStatus.PUT_OK] * 10
    assert len(disk.synced) == 1
    assert store.flushed_offset == store.max_physical_offset
    assert not store.flush.step()


def test_async_flush_answers_at_once(open_store: OpenStore) -> None:
    store = open_store()
    answers: list[PutStatus] = []
    store.when_durable(store.put([message()])[0].end_offset, answers.append)
    assert answers == [PutStatus.PUT_OK]
    assert store.flushed_offset == 0


def test_consumers_do_not_see_what_is_not_flushed_in_sync_flush(open_store: OpenStore) -> None:
    store = open_store(**SYNC)
    store.put([message(body=b"1")])
    store.flush.step()
    store.put([message(body=b"2")])
    dispatch(store)
    assert [m.body for m in read_all(store)] == [b"1"]
    store.flush.step()
    dispatch(store)
    assert [m.body for m in read_all(store)] == [b"1", b"2"]


def flush_wakes_dispatch(store: MessageStore) -> bool:
    store.reput.wake.is_set = store.reput.wake_late.is_set = False
    store.flush.step()
    assert store.reput.wake.is_set or store.reput.wake_late.is_set  # now or shortly
    return store.reput.wake.is_set


def test_what_is_flushed_is_dispatched_at_once_for_listeners(open_store: OpenStore) -> None:
    store = open_store(**SYNC)
    wanted: set[str] = set()
    store.add_arrival_listener(lambda arrivals: None, lambda topic, _: topic in wanted)
    store.put([message()])
    assert not flush_wakes_dispatch(store)
    store.put([message()])
    wanted.add("T")  # after the put: a pull that found nothing
    store.listening_changed("T", 0)
    assert flush_wakes_dispatch(store)
    store.put([message(topic="other")])
    assert not flush_wakes_dispatch(store)
    assert (store.max_offset("T", 0), store.max_offset("other", 0)) == (2, 1)


def test_what_is_flushed_is_dispatched_at_once_when_it_is_much(open_store: OpenStore) -> None:
    store = open_store(**SYNC)
    store.put([message() for _ in range(STEP_FACTS - 1)])
    assert not flush_wakes_dispatch(store)
    store.put([message()])
    assert flush_wakes_dispatch(store)


def test_a_flush_over_a_files_end_syncs_both_files(open_store: OpenStore) -> None:
    disk = FaultyDisk()
    store = open_store(disk=disk, **SYNC)
    store.put([message(body=b"x" * 30_000) for _ in range(3)])
    answers: list[PutStatus] = []
    store.when_durable(store.max_physical_offset, answers.append)
    disk.synced.clear()
    store.flush.step()
    assert [path[-20:] for path in disk.synced] == [f"{n * 65536:020d}" for n in range(2)]
    assert answers == [PutStatus.PUT_OK]


def test_a_waiter_is_told_after_five_seconds_that_it_is_not_confirmed(
    open_store: OpenStore, clock: ManualClock
) -> None:
    store = open_store(**SYNC)
    answers: list[PutStatus] = []
    store.when_durable(store.put([message()])[0].end_offset, answers.append)
    clock.time_ms += 4999
    assert store.flush.waiters.expire() == pytest.approx(0.001, abs=1e-5)
    assert answers == []
    clock.time_ms += 2
    assert store.flush.waiters.expire() == 0
    assert answers == [PutStatus.FLUSH_DISK_TIMEOUT]
    store.flush.step()
    assert answers == [PutStatus.FLUSH_DISK_TIMEOUT]


def test_a_failed_sync_fails_the_waiting_puts_and_fences_the_store(
    open_store: OpenStore, tmp_path: Path
) -> None:
    disk = FaultyDisk()
    store = open_store(disk=disk, **SYNC)
    answers: list[PutStatus] = []
    store.when_durable(store.put([message(body=b"1")])[0].end_offset, answers.append)
    disk.fail_sync_of = "commitlog"
    store.flush.step()
    assert answers == [PutStatus.UNKNOWN_ERROR]
    disk.fail_sync_of = ""
    refused = store.put([message(body=b"2")])[0]
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "could not be synced" in refused.reason and "restart" in refused.reason
    # A second sync could report success for pages that the kernel has dropped: it is never tried.
    disk.synced.clear()
    assert not store.flush.step()
    assert disk.synced == []
    dispatch(store)
    assert store.max_offset("T", 0) == 0
    store.close()
    assert (tmp_path / "store" / "abort").exists()
    store = open_store(**SYNC)
    assert store.put([message(body=b"3")])[0].ok


def test_a_failed_queue_sync_keeps_the_checkpoint_where_it_was(
    open_store: OpenStore, tmp_path: Path
) -> None:
    disk = FaultyDisk()
    store = open_store(disk=disk)
    store.put([message()])
    dispatch(store)
    store.flush.step()
    store.queue_flush.step(thorough=True)
    before = page(tmp_path)
    store.put([message()])
    dispatch(store)
    store.flush.step()
    disk.fail_sync_of = "consumequeue"
    store.queue_flush.step(thorough=True)
    assert page(tmp_path) == before
    assert "could not be synced" in store.put([message()])[0].reason


def test_pages_decide_when_an_async_flush_is_due(open_store: OpenStore) -> None:
    store = open_store()
    store.put([message(body=b"x" * 10_000)])
    assert not store.flush.step(least_pages=4)
    store.put([message(body=b"x" * 10_000)])
    assert store.flush.step(least_pages=4)
    store.put([message()])
    assert not store.flush.step(least_pages=4)
    assert store.flush.step()


def test_the_checkpoint_claims_only_what_is_on_disk(
    open_store: OpenStore, tmp_path: Path, clock: ManualClock
) -> None:
    store = open_store()
    store.put([message(properties="KEYS\x01k\x02")])
    first_time = clock.time_ms
    store.flush.step()
    flushed = store.flushed_offset
    clock.time_ms += 1000
    store.put([message(properties="KEYS\x01k\x02")])
    dispatch(store)
    store.queue_flush.step(thorough=True)
    claimed = page(tmp_path)
    assert claimed.dispatched_offset == flushed  # the second record is not on disk yet
    assert claimed.physic_msg_timestamp == first_time
    assert claimed.logics_msg_timestamp == clock.time_ms
    assert claimed.index_count == 3
    store.put([message()])
    store.flush.step()
    store.queue_flush.step(thorough=True)
    assert page(tmp_path).dispatched_offset < store.max_physical_offset  # not dispatched yet


def test_a_round_that_is_not_thorough_writes_no_checkpoint(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store(mapped_file_size_consume_queue=20_000)
    store.put([message() for _ in range(450)])  # more than two pages of entries
    dispatch(store)
    store.flush.step()
    assert store.queue_flush.step(thorough=False)
    assert not (tmp_path / "store" / "checkpoint").exists()
    assert store.queue_flush.step(thorough=True)
    assert page(tmp_path).dispatched_offset == store.max_physical_offset


def test_a_page_that_rocketmq_changed_is_trusted_for_its_times_alone() -> None:
    ours = StoreCheckpoint(1, 2, 3, 4, 5, 600, 20260101000000000, 8)
    data = ours.encode()
    assert len(data) == 4096
    assert decode_checkpoint(data) == ours
    theirs = (99).to_bytes(8, "big") + data[8:]
    assert decode_checkpoint(theirs) == StoreCheckpoint(99, 2, 3, 4, 5)
    assert decode_checkpoint(b"") == StoreCheckpoint()


async def test_what_nobody_waits_for_is_flushed_and_shown_too(open_store: OpenStore) -> None:
    """WAIT=false, and the broker's own messages: flushed without a later send."""
    store = open_store(flush_disk_type="SYNC_FLUSH", clock=Clock())
    await store.start()
    store.put([message()])
    await until(lambda: store.max_offset("T", 0) == 1)
    assert store.flushed_offset == store.max_physical_offset
    await store.stop()


async def started_sync_store(open_store: OpenStore, disk: FaultyDisk) -> MessageStore:
    store = open_store(flush_disk_type="SYNC_FLUSH", clock=Clock(), disk=disk)
    await store.start()
    await asyncio.sleep(0)  # its coroutines run, and so does the thread
    return store


def _has_synced(disk: FaultyDisk, count: int) -> bool:
    return log_syncs(disk) == count


def hold_the_loop(until: Callable[[], bool]) -> None:
    wait_for(until, timeout=30, what="the thread has done it", interval=0.001)


async def test_what_is_put_during_a_sync_is_synced_next_without_a_turn_of_the_loop(
    open_store: OpenStore,
) -> None:
    disk = FaultyDisk()
    store = await started_sync_store(open_store, disk)
    answers: list[PutStatus] = []
    for number in range(1, 4):
        store.when_durable(store.put([message()])[-1].end_offset, answers.append)
        hold_the_loop(until=partial(_has_synced, disk, number))
        assert log_syncs(disk) == number
    assert answers == [] and store.max_offset("T", 0) == 0
    await until(lambda: len(answers) == 3)
    assert answers == [PutStatus.PUT_OK] * 3
    await store.stop()


async def test_the_thread_never_syncs_again_after_a_sync_that_failed(
    open_store: OpenStore,
) -> None:
    disk = FaultyDisk()
    store = await started_sync_store(open_store, disk)
    answers: list[PutStatus] = []
    disk.fail_sync_of = "commitlog"
    store.when_durable(store.put([message()])[-1].end_offset, answers.append)
    hold_the_loop(until=lambda: store.flush.failed)
    disk.fail_sync_of = ""
    store.when_durable(store.put([message()])[-1].end_offset, answers.append)
    # Both may be answered before the loop sees the failure: the thread is quick.
    await until(lambda: len(answers) == 2 and store.refusals.current)
    assert answers == [PutStatus.UNKNOWN_ERROR] * 2
    assert log_syncs(disk) == 1
    assert not store.put([message()])[0].ok
    await store.stop()
    assert log_syncs(disk) == 1


def log_syncs(disk: FaultyDisk) -> int:
    return sum("commitlog" in path for path in disk.synced)


def test_one_answer_that_fails_keeps_no_other_from_its_own(
    open_store: OpenStore, clock: ManualClock
) -> None:
    store = open_store(**SYNC)
    answers: list[PutStatus] = []

    def fail(_status: PutStatus) -> None:
        raise RuntimeError("the connection is broken")

    def put_for_both() -> None:
        for callback in (fail, answers.append):
            store.when_durable(store.put([message()])[0].end_offset, callback)

    put_for_both()
    store.flush.step()
    put_for_both()
    clock.time_ms += 5000
    store.flush.waiters.expire()
    assert answers == [PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT]


def test_a_topic_deleted_between_two_moments_of_a_flush_fences_nothing(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FaultyDisk()
    store = open_store(disk=disk)
    store.put([message(), message(topic="other")])
    dispatch(store)
    job = store.queue_flush.prepare(thorough=True)
    assert job is not None
    syncdir = disk.syncdir

    def syncdir_too_late(path: str) -> None:
        if path.endswith("/T") and "T" in store.queues():
            store.delete_topic("T")
        syncdir(path)

    monkeypatch.setattr(disk, "syncdir", syncdir_too_late)
    store.queue_flush.complete(store.queue_flush.sync(job))
    assert store.queues() == {"other": [0]}
    assert store.put([message()])[0].ok


def test_a_topic_deleted_before_its_full_file_gets_a_date_fences_nothing(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    store.put([message() for _ in range(60)])
    dispatch(store)
    job = store.queue_flush.prepare(thorough=True)
    assert job is not None

    def is_full_and_deleted(queue: ConsumeQueue, mapped: MappedFile) -> bool:
        is_full = queue_dates.is_full(queue, mapped)
        if is_full:
            store.delete_topic("T")
        return is_full

    monkeypatch.setattr(flush_queues, "is_full", is_full_and_deleted)
    store.queue_flush.complete(store.queue_flush.sync(job))
    assert not store.queues()
    assert store.put([message()])[0].ok


def test_the_rest_of_a_file_that_no_other_follows_is_no_message_that_waits(
    open_store: OpenStore, tmp_path: Path
) -> None:
    disk = FaultyDisk()
    store = open_store(disk=disk)
    assert store.put([message(body=b"x" * 60_000)])[0].ok
    disk.no_space_for = "commitlog"
    assert not store.put([message(body=b"x" * 60_000)])[0].ok
    store.close()
    assert not (tmp_path / "store" / "abort").exists()  # the stop was clean
    store = open_store()
    assert store.put([message(body=b"x" * 60_000)])[0].ok
    dispatch(store)
    assert len(read_all(store)) == 2


def test_units_of_a_topic_deleted_during_a_flush_fence_nothing(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a start the flush is the first to open them."""
    settings = {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": 256}
    store = open_store(**settings)
    store.put([message(properties="TAGS\x01a") for _ in range(60)])
    dispatch(store)
    store.close()
    store = open_store(**settings)
    store.put([message(properties="TAGS\x01a")])
    dispatch(store)
    job = store.queue_flush.prepare(thorough=True)
    assert job is not None
    unlink = store.disk.unlink

    def unlink_and_flush(path: str) -> None:
        unlink(path)
        if "consumequeue_ext" in path and path.endswith("0256"):
            store.queue_flush.sync(job)

    monkeypatch.setattr(store.disk, "unlink", unlink_and_flush)
    store.delete_topic("T")
    store.queue_flush.complete(job)
    assert store.put([message()])[0].ok


def test_an_index_file_that_fills_up_during_its_sync_is_synced_again(
    open_store: OpenStore,
) -> None:
    """Else the checkpoint would cover entries not on disk, once the next file exists."""
    disk = FaultyDisk()
    store = open_store(disk=disk, max_index_num=20)
    put_keys(store, 10)
    job = store.queue_flush.prepare(thorough=True)
    assert job is not None
    store.queue_flush.sync(job)
    put_keys(store, 15)  # while it is under way: the file is full, the next one begun
    assert store.index is not None
    store.index.write_pending()
    first, second = store.index.files
    store.queue_flush.complete(job)
    disk.synced.clear()
    assert store.queue_flush.step(thorough=True)
    assert {first.path, second.path} <= set(disk.synced)


def test_entries_that_take_the_place_of_others_during_a_flush_are_flushed_by_the_next(
    open_store: OpenStore,
) -> None:
    """A replica gets messages of a topic that was deleted and created again before it hears of
    either."""
    disk = FaultyDisk()
    store = open_store(disk=disk)
    store.put([message() for _ in range(3)])
    dispatch(store)
    job = store.queue_flush.prepare(thorough=True)
    assert job is not None
    store.queue_flush.sync(job)
    queue = store.queue_table.table["T", 0]
    for number in range(3):
        assert queue.put(number, 10_000 + 100 * number, 100, 0)
    assert queue.cuts == 1
    store.queue_flush.complete(job)
    disk.synced.clear()
    assert store.queue_flush.step(thorough=True)
    assert queue.files.files[0].path in disk.synced


def put_keys(store: MessageStore, number: int) -> None:
    for n in range(number):
        assert store.put([message(properties=f"KEYS\x01k{n}\x02")])[0].ok
    dispatch(store)
