"""The coroutines: started, fed, stopped, all on a real loop and a real disk."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from loop_turns import counted_calls
from waiting import until

from aerobee.broker.base.clock import Clock, VirtualClock
from aerobee.broker.store.durability.log_job import LogJob
from aerobee.broker.store.errors import StoreError, StoreLocked
from aerobee.broker.store.inspect.files import kept_at_rest
from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.store.refusals import Cause
from aerobee.broker.store.results import Arrival, PutStatus
from aerobee.broker.store.settings import StoreSettings

from .conftest import SMALL, OpenStore, message, read_all
from .faulty_disk import FaultyDisk


def make(folder: Path, clock: Clock | None = None, **changes: Any) -> MessageStore:
    disk = changes.pop("disk", None)
    settings = StoreSettings(store_path_root_dir=str(folder), **(SMALL | changes))
    store = MessageStore(settings, clock=clock or Clock(), disk=disk, ahead=True)
    store.load()
    return store


async def test_messages_arrive_by_themselves_and_a_stop_loses_nothing(tmp_path: Path) -> None:
    store = make(tmp_path)
    arrived: list[Arrival] = []
    store.add_arrival_listener(arrived.extend)
    await store.start()
    names = {task.get_name() for task in asyncio.all_tasks()}
    assert {"store.reput", "store.flush", "store.clean"} <= names
    for n in range(300):
        store.put([message(body=b"%d" % n, properties=f"KEYS\x01k{n}\x02") for _ in range(3)])
        if n % 50 == 0:
            await asyncio.sleep(0)
    await until(lambda: len(arrived) == 900)
    index = store.index
    assert index is not None
    await until(lambda: not index.keys)
    store.put([message(body=b"last")])
    await store.stop()
    assert len(arrived) == 901
    assert not (tmp_path / "abort").exists()
    refused = store.put([message()])[0]
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE and "shutting down" in refused.reason
    assert not {task.get_name() for task in asyncio.all_tasks()} & names - {"store"} - _own(names)
    again = make(tmp_path)
    assert len(read_all(again)) == 901
    again.close()


def _own(names: set[str]) -> set[str]:
    return {name for name in names if not name.startswith("store.")}


async def test_an_empty_store_starts_with_few_calls(tmp_path: Path) -> None:
    with counted_calls() as calls:
        store = make(tmp_path, mapped_file_size_commit_log=16 << 20)
        await store.start()
    await store.stop()
    assert calls.count < 2_000  # 600 when this was written


async def test_the_next_file_is_made_ahead_and_removed_when_not_needed(tmp_path: Path) -> None:
    store = make(tmp_path)
    await store.start()
    store.put([message(body=b"x" * 20_000)])
    store.put([message()])  # a quarter is written: the next file is made
    await until(lambda: len(list((tmp_path / "commitlog").iterdir())) == 2)
    await store.stop()
    assert [p.name for p in (tmp_path / "commitlog").iterdir()] == ["0" * 20]


async def test_sync_flush_confirms_many_puts_with_few_syncs(tmp_path: Path) -> None:
    disk = FaultyDisk()
    store = make(tmp_path, disk=disk, flush_disk_type="SYNC_FLUSH")
    await store.start()
    answers: list[PutStatus] = []
    disk.synced.clear()
    for _ in range(200):
        result = store.put([message()])[0]
        store.when_durable(result.end_offset, answers.append)
    await until(lambda: len(answers) == 200)
    assert set(answers) == {PutStatus.PUT_OK}
    assert len(disk.synced) <= 5
    await until(lambda: store.max_offset("T", 0) == 200)
    await store.stop()


async def test_a_slow_sync_is_answered_by_a_timeout_and_the_message_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = VirtualClock()
    store = make(tmp_path, clock, disk=FaultyDisk(), flush_disk_type="SYNC_FLUSH")
    await store.start()
    go_on = threading.Event()
    real_sync = store.flush.sync
    begun = threading.Event()

    def held(job: LogJob) -> LogJob:
        begun.set()
        go_on.wait(10)
        return real_sync(job)

    monkeypatch.setattr(store.flush, "sync", held)
    answers: list[PutStatus] = []
    store.when_durable(store.put([message()])[0].end_offset, answers.append)
    await until(begun.is_set)
    await clock.advance(5.1)
    assert answers == [PutStatus.FLUSH_DISK_TIMEOUT]
    go_on.set()
    await until(lambda: store.max_offset("T", 0) == 1)
    await store.stop()


async def test_async_flush_happens_by_time(tmp_path: Path) -> None:
    clock = VirtualClock()
    store = make(tmp_path, clock)
    await store.start()
    store.put([message()])
    await clock.advance(1)
    assert store.flushed_offset == 0  # less than four pages wait
    await clock.advance(10)
    await until(lambda: store.flushed_offset == store.max_physical_offset)
    await clock.advance(60)
    await until(lambda: (tmp_path / "checkpoint").exists())
    await store.stop()


@pytest.mark.parametrize("timed", [True, False])
async def test_the_pool_is_committed_and_flushed_by_time_and_at_the_stop(
    tmp_path: Path, timed: bool
) -> None:
    store = make(tmp_path, transient_store_pool_enable=True, flush_commit_log_timed=timed)
    await store.start()
    store.put([message(body=b"1")])
    await until(lambda: store.max_offset("T", 0) == 1)
    store.put([message(body=b"2")])
    await store.stop()
    again = make(tmp_path)
    assert [m.body for m in read_all(again)] == [b"1", b"2"]
    again.close()


async def test_a_queue_that_cannot_be_written_refuses_puts_after_thirty_tries(
    tmp_path: Path,
) -> None:
    clock = VirtualClock()
    disk = FaultyDisk()
    store = make(tmp_path, clock, disk=disk)
    await store.start()
    disk.no_space_for = "consumequeue"
    assert store.put([message(body=b"kept")])[0].ok
    await until(lambda: store.reput.failures)
    await clock.advance(20)
    assert store.put([message()])[0].ok
    await clock.advance(12)
    refused = store.put([message()])[0]
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "No space left" in refused.reason and "30 times" in refused.reason
    disk.no_space_for = ""
    await clock.advance(2)
    assert store.max_offset("T", 0) == 2  # what was taken is dispatched all the same
    assert store.put([message()])[0].ok  # and puts are taken again
    await store.stop()
    assert not (tmp_path / "abort").exists()


async def test_reput_lets_others_run_while_it_catches_up(tmp_path: Path) -> None:
    store = make(
        tmp_path, mapped_file_size_commit_log=4 << 20, mapped_file_size_consume_queue=200_000
    )
    for _ in range(200):
        store.put([message(body=b"x" * 10) for _ in range(100)])
    store.reput.start_at(0)
    await store.start()
    turns = 0
    while store.max_offset("T", 0) < 20_000:
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 20_000 // 1024
    await store.stop()


async def test_a_slave_takes_no_puts(tmp_path: Path) -> None:
    store = make(tmp_path, broker_role="SLAVE")
    refused = store.put([message()])[0]
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE and "slave" in refused.reason
    store.close()


async def test_a_batch_is_refused_with_the_same_reasons(tmp_path: Path) -> None:
    store = make(tmp_path)
    assert "no message" in store.put_batch([]).reason
    store.close()
    assert "shutting down" in store.put_batch([message()]).reason


async def test_the_self_check_names_what_is_wrong(tmp_path: Path) -> None:
    store = make(tmp_path)
    store.put([message()])
    while store.reput.step():
        pass
    assert store.self_check.step() == []
    path = tmp_path / "consumequeue" / "T" / "0" / ("0" * 20)
    path.unlink()
    (problem,) = store.self_check.step()
    assert str(path) in problem and "removed" in problem
    store.close()


async def test_a_coroutine_that_fails_fences_the_store_with_its_name(tmp_path: Path) -> None:
    store = make(tmp_path)

    def broken(before: int | None = None) -> bool:
        raise ValueError("planted")

    await store.start()
    store.reput.step = broken  # type: ignore[method-assign]
    assert store.put([message()])[0].ok
    await until(lambda: store.refusals.current is not None)
    reason = store.put([message()])[0].reason
    assert "store.reput failed" in reason and "planted" in reason
    await store.stop()
    assert (tmp_path / "abort").exists()
    again = make(tmp_path)
    assert len(read_all(again)) == 1
    again.close()


def test_a_start_that_is_refused_leaves_nothing_open(tmp_path: Path) -> None:
    store = make(tmp_path)
    store.put([message()])
    store.close()
    path = tmp_path / "commitlog" / ("0" * 20)
    path.write_bytes(b"short")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with pytest.raises(StoreError):
            make(tmp_path)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


@pytest.mark.parametrize("part", ["commitlog", "consumequeue"])
async def test_a_sync_that_fails_during_the_stop_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    disk = FaultyDisk()
    often: dict[str, Any] = {"flush_interval_commit_log": 5, "flush_interval_consume_queue": 5}
    pages: dict[str, Any] = {
        "flush_commit_log_least_pages": 0,
        "flush_consume_queue_least_pages": 0,
    }
    store = make(tmp_path, disk=disk, **often, **pages)
    flush: Any = store.flush if part == "commitlog" else store.queue_flush
    sync = flush.sync
    entered, leave = threading.Event(), threading.Event()

    def fail_once(job: object) -> object:
        if entered.is_set():
            return sync(job)
        entered.set()
        assert leave.wait(10)
        disk.fail_sync_of = part
        try:
            return sync(job)
        finally:
            disk.fail_sync_of = ""

    monkeypatch.setattr(flush, "sync", fail_once)
    await store.start()
    store.put([message()])
    store.max_offset("T", 0)  # dispatches it
    await until(entered.is_set)
    stopping = asyncio.ensure_future(store.stop())
    await until(lambda: Cause.SHUT_DOWN in store.refusals)
    leave.set()
    await stopping
    assert (tmp_path / "abort").read_bytes() == b"a sync failed"


async def test_what_the_pool_cannot_commit_waits_until_the_disk_takes_it(tmp_path: Path) -> None:
    clock = VirtualClock()
    disk = FaultyDisk()
    store = make(tmp_path, clock, disk=disk, transient_store_pool_enable=True)
    await store.start()
    disk.fail_write_of = "commitlog"
    assert store.put([message(body=b"kept")])[0].ok
    await clock.advance(2)
    refused = store.put([message()])[0]
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "transient store pool" in refused.reason and "Input/output error" in refused.reason
    disk.fail_write_of = ""
    await clock.advance(2)
    assert store.put([message(body=b"more")])[0].ok
    await store.stop()
    again = make(tmp_path)
    assert [m.body for m in read_all(again)] == [b"kept", b"more"]
    again.close()


async def test_a_stop_whose_commit_fails_lets_go_of_the_directory(tmp_path: Path) -> None:
    disk = FaultyDisk()
    store = make(tmp_path, disk=disk, transient_store_pool_enable=True)
    await store.start()
    store.put([message(body=b"lost")])
    disk.fail_write_of = "commitlog"
    await store.stop()
    assert (tmp_path / "abort").exists()
    make(tmp_path).close()


def test_a_file_system_without_locks_is_not_taken_for_another_broker(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    open_store().close()

    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.lockf", refused)
    with pytest.raises(StoreError, match="No locks available") as caught:
        open_store()
    assert not isinstance(caught.value, StoreLocked)
    with pytest.raises(StoreError, match="No locks") as seen, kept_at_rest(str(tmp_path / "store")):
        pass
    assert not isinstance(seen.value, StoreLocked)
