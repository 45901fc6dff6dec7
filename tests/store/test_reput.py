"""Dispatch without listeners: in blocks, file by file, once it has waited long enough."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
import structlog
from waiting import finish, until

from aerobee.broker.base.clock import Clock
from aerobee.broker.store.dispatch import facts, reput
from aerobee.broker.store.dispatch.dispatcher import RecordDispatcher
from aerobee.broker.store.log.facts import Fact
from aerobee.broker.store.message_store import MessageStore

from .conftest import OpenStore, dispatch, message, read_all
from .faulty_disk import FaultyDisk


def test_records_of_two_files_are_dispatched_in_two_blocks(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    blocks: list[int] = []
    as_block = RecordDispatcher._dispatch_as_block

    def noting(self: RecordDispatcher, batch: list[Fact]) -> bool:
        done = as_block(self, batch)
        blocks.append(len(batch) if done else 0)
        return done

    monkeypatch.setattr(RecordDispatcher, "_dispatch_as_block", noting)
    bodies = [b"%04d" % number for number in range(900)]
    store.put([message(body=body, properties="KEYS\x01k") for body in bodies])
    assert len(store.commit_log.files.files) == 2
    dispatch(store)
    assert sum(blocks) == len(bodies), "none was refused"
    assert len(blocks) == 2
    assert [each.body for each in read_all(store)] == bodies


async def test_what_came_after_a_dispatch_waits_its_own_time(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reput, "LINGER_S", 0.3)
    store = open_store(clock=Clock())
    store.put([message()])
    late = asyncio.ensure_future(store.reput.run_late())
    store.reput.wake_late.set()
    await asyncio.sleep(0)
    dispatch(store)
    store.put([message() for _ in range(5)])
    counts = []
    for _ in range(8):
        await asyncio.sleep(reput.LINGER_S / 3)
        if store.reput.wake.is_set:
            store.reput.wake.is_set = False
            dispatch(store)
        counts.append(store.stats.dispatched)
    late.cancel()
    await asyncio.gather(late, return_exceptions=True)
    assert counts[3] == 1, "the time of the first record has nothing to do with those that followed"
    assert counts[-1] == 6


async def test_dispatch_continues_when_somebody_else_wrote_the_keys_that_failed(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reput, "RETRY_S", 0.1)
    disk = FaultyDisk()
    store = open_store(clock=Clock(), disk=disk)
    disk.no_space_for = "index"
    tasks = [asyncio.ensure_future(run()) for run in (store.reput.run, store.reput.run_late)]
    store.put([message(properties="KEYS\x01k")])
    await until(lambda: store.reput.failures > 0)
    store.put([message()])
    disk.no_space_for = ""
    assert store.index is not None
    store.index.write_pending()  # as the flush of the queues does
    await until(lambda: store.reput.failures == 0 and store.stats.dispatched == 2)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_reader_is_told_the_queues_end_that_is_not_dispatched_yet(
    open_store: OpenStore, flush: str
) -> None:
    store = open_store(flush_disk_type=flush)
    store.put([message() for _ in range(5)])
    store.flush.step()
    dispatch(store)
    store.put([message() for _ in range(3)])
    visible = 8 if flush == "ASYNC_FLUSH" else 5  # what a crash may take back is not shown
    queue = store.queue_table.table["T", 0]
    assert store.read_plain(queue, 1, 2, 1 << 20) is not None
    assert store.visible_end(queue) == visible
    general = store.read_queue("T", 0, 1, 2, max_bytes=1 << 20)
    assert (general.count, general.max_offset) == (2, visible)
    general.release()
    store.flush.step()
    assert store.visible_end(queue) == 8


def test_keys_of_records_before_one_that_could_not_be_dispatched_are_kept(
    open_store: OpenStore,
) -> None:
    disk = FaultyDisk()
    store = open_store(disk=disk, mapped_file_size_consume_queue=20 * 50)
    store.put([message(properties=f"KEYS\x01k{n}") for n in range(40)])
    dispatch(store)
    store.put([message(properties=f"KEYS\x01k{n}") for n in range(40, 60)])
    disk.no_space_for = "consumequeue"  # the queue's second file, for the 51st record
    for _ in range(2):  # a store to a page without a block would end the process
        with pytest.raises(OSError, match="space"):
            dispatch(store)
        assert store.queue_table.table["T", 0].max_offset == 50
    disk.no_space_for = ""
    dispatch(store)
    assert [len(finish(store.search("T", f"k{n}", 2, 0, 1 << 62)).views) for n in range(60)] == [
        1
    ] * 60


def test_a_block_resumes_where_its_queue_could_not_be_written(
    open_store: OpenStore,
) -> None:
    disk = FaultyDisk()
    store = open_store(disk=disk, mapped_file_size_commit_log=1 << 20)
    bodies = [b"%04d" % number for number in range(300)]
    messages = [message(body=body) for body in bodies]
    store.put(messages[:40])
    dispatch(store)
    store.put(messages[40:])
    disk.no_space_for = "consumequeue"
    with pytest.raises(OSError, match="space"):
        dispatch(store)
    disk.no_space_for = ""
    with structlog.testing.capture_logs() as logs:
        dispatch(store)
    assert [each.body for each in read_all(store)] == bodies
    assert not [each for each in logs if each["log_level"] != "info"]


def test_both_keys_of_a_record_are_kept_when_the_next_index_file_could_not_be_made(
    open_store: OpenStore,
) -> None:
    disk = FaultyDisk()
    sizes = {"mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 20 * 1000}
    store = open_store(disk=disk, **sizes)
    many = range(store.settings.max_index_num * 3 // 4)  # with two keys each: in two files
    messages = [message(properties=f"KEYS\x01a{n} b{n}") for n in many]
    store.put(messages[:1])
    dispatch(store)
    assert store.index is not None
    store.index.write_pending()
    store.put(messages[1:])
    disk.no_space_for = "index"
    with pytest.raises(OSError, match="space"):
        dispatch(store)
    disk.no_space_for = ""
    dispatch(store)
    for letter in "ab":
        found = [len(finish(store.search("T", f"{letter}{n}", 2, 0, 1 << 62)).views) for n in many]
        assert found == [1] * len(many), letter


def test_keys_that_a_full_disk_kept_back_are_written_once(open_store: OpenStore) -> None:
    """A listener is added between two attempts: the second goes record by record."""
    disk = FaultyDisk()
    sizes = {"mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 20 * 1000}
    store = open_store(disk=disk, **sizes)
    listening: list[str] = []
    store.add_arrival_listener(lambda _arrivals: None, lambda topic, _: topic in listening)
    many = store.settings.max_index_num + 10  # in two files
    offsets = [r.physical_offset for r in store.put([message(properties="KEYS\x01k")] * many)]
    disk.no_space_for = "/index/"
    with pytest.raises(OSError, match="space"):
        dispatch(store)
    disk.no_space_for = ""
    listening.append("T")
    store.listening_changed("T", 0)
    dispatch(store)
    assert store.index is not None
    store.index.write_pending()
    found = [offset for offset in store.index.find("T", "k", 0, 1 << 62) if offset is not None]
    assert found == offsets[::-1]


def test_a_topic_deleted_while_dispatch_is_behind_starts_again_at_zero(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "WAITING_MAX", 10)
    disk = FaultyDisk()
    store = open_store(disk=disk)
    disk.no_space_for = "consumequeue"
    for _ in range(120):  # more than are kept in memory: the log is walked
        store.put([message(body=b"old", properties="KEYS\x01old") for _ in range(10)])
    assert store.reput.facts.behind
    store.delete_topic("T")
    assert store.put([message(body=b"1"), message(topic="other")])[0].queue_offset == 0
    disk.no_space_for = ""
    dispatch(store)
    store.put([message(body=b"2")])
    dispatch(store)
    assert [each.body for each in read_all(store)] == [b"1", b"2"]
    assert store.max_offset("T", 0) == 2 and store.max_offset("other", 0) == 1
    assert store.dispatched_offset == store.max_physical_offset


def test_a_topic_deleted_before_dispatch_falls_behind_does_not_come_back(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "WAITING_MAX", 10)
    store = open_store(flush_disk_type="SYNC_FLUSH")
    store.put([message(body=b"old") for _ in range(5)])
    store.put([message("gone") for _ in range(5)])
    store.delete_topic("T")  # nothing is flushed, so nothing is dispatched
    store.delete_topic("gone")
    assert not store.reput.facts.behind
    for _ in range(20):
        store.put([message("other"), message(body=b"new")])
    assert store.reput.facts.behind
    store.flush.step()
    dispatch(store)
    assert [each.body for each in read_all(store)] == [b"new"] * 20
    assert store.queues() == {"T": [0], "other": [0]}


def test_a_deleted_topic_does_not_come_back_when_queues_are_rebuilt(open_store: OpenStore) -> None:
    """From the last checkpoint on, because a full disk has lost entries."""
    store = open_store()
    store.put([message(body=b"old") for _ in range(5)])
    store.put([message("gone") for _ in range(5)])
    dispatch(store)
    store.delete_topic("T")
    store.delete_topic("gone")
    store.put([message(body=b"new") for _ in range(2)])
    dispatch(store)
    store.flush.step()
    store.queue_flush.lost = True
    for _ in store.queue_flush.try_rebuild():
        pass
    assert [each.body for each in read_all(store)] == [b"new"] * 2
    assert store.queues() == {"T": [0]} and store.max_offset("T", 0) == 2
    assert store.dispatched_offset == store.max_physical_offset


def test_topics_deleted_long_ago_are_forgotten_with_their_log(
    open_store: OpenStore,
) -> None:
    store = open_store()
    for number in range(300):
        store.put([message(f"T{number}", body=b"x" * 700)])
        dispatch(store)
        store.delete_topic(f"T{number}")
        store.delete_topic(f"never there {number}")
    assert len(store.reput._walk._deleted) == 300
    store.flush.step()
    store.queue_flush.step(thorough=True)
    for file in store.commit_log.files.files:
        os.utime(file.path, (0, 0))
    store.clean_expired()
    store.put([message("last")])
    store.delete_topic("last")
    assert len(store.reput._walk._deleted) < 100


async def test_a_copys_last_few_records_are_dispatched_with_those_that_follow(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a steady stream a few records arrive at the end of each step: one by one they would
    cost more than all the others."""
    roomy = {"mapped_file_size_commit_log": 1 << 20}
    master = open_store(**roomy)
    results = master.put([message(body=b"%04d" % number) for number in range(410)])
    end, middle = master.max_physical_offset, results[400].physical_offset
    data = memoryview(master.read_log(0, end))
    slave = open_store(root=tmp_path / "slave", clock=Clock(), **roomy)
    in_columns = RecordDispatcher.dispatch_written

    def and_more_comes(self: RecordDispatcher, *args: Any) -> bool:
        done = in_columns(self, *args)
        if slave.max_physical_offset == middle:
            slave.append_copy(middle, data[middle:])
        return done

    monkeypatch.setattr(RecordDispatcher, "dispatch_written", and_more_comes)
    slave.append_copy(0, data[:middle])
    await slave.reput._dispatch_all()
    assert (slave.dispatched_offset, slave.max_physical_offset) == (middle, end)
    assert slave.reput.wake_late.is_set, "they wait for a moment only"
    await slave.reput._dispatch_all()
    assert slave.dispatched_offset == end
    assert len(read_all(slave)) == 410


def copied_to_a_replica(
    open_store: OpenStore, tmp_path: Path, count: int
) -> tuple[MessageStore, int]:
    """A replica with a master's messages, none of them confirmed; the size of each record."""
    master = open_store(root=tmp_path / "master")
    size = {result.size for result in master.put([message()] * count)}
    replica = open_store(root=tmp_path / "replica", has_arbiter=True)
    replica.confirm(0)
    for file in master.commit_log.files.files:
        replica.append_copy(file.start, memoryview(file.read(0, file.wrote)))
    return replica, size.pop()


@pytest.mark.parametrize("past", [1, 7, 8, 60])
def test_a_replica_dispatches_whole_records_where_a_java_one_has_confirmed_a_part_of_the_next(
    open_store: OpenStore, tmp_path: Path, past: int
) -> None:
    replica, size = copied_to_a_replica(open_store, tmp_path, 3)
    for whole in range(3):
        replica.confirm(whole * size + past)
        dispatch(replica)
        assert replica.dispatched_offset == whole * size
        assert len(read_all(replica)) == whole
    replica.confirm(3 * size)
    dispatch(replica)
    assert [each.queue_offset for each in read_all(replica)] == [0, 1, 2]


def test_a_replica_dispatches_the_next_file_where_the_end_of_one_was_confirmed_in_part(
    open_store: OpenStore, tmp_path: Path
) -> None:
    replica, size = copied_to_a_replica(open_store, tmp_path, 800)
    first, *others = replica.commit_log.files.files
    records = (first.size - 8) // size * size
    assert others and records + 4 < first.size
    replica.confirm(records + 4)
    dispatch(replica)
    assert replica.dispatched_offset == records
    replica.confirm(replica.max_physical_offset)
    dispatch(replica)
    assert [each.queue_offset for each in read_all(replica)] == list(range(800))
