"""Recovery: the plan for every kind of facts, and stores cut, torn, flipped and left over."""

from __future__ import annotations

import itertools
import shutil
import struct
from pathlib import Path

import pytest
from waiting import finish

from aerobee.broker.store.errors import StoreError, StoreLocked, WrongFileSize
from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.store.recovery.plan import (
    IndexFileFacts,
    LogFileFacts,
    Mode,
    RecoveryFacts,
    plan_recovery,
)
from aerobee.protocol.files.checkpoint import StoreCheckpoint
from store.recovered import crashed_image, damage, fill, log_path, numbers

from .conftest import OpenStore, abandon, dispatch, message, read_all

SIZE = 1000


def test_every_combination_of_facts_has_a_plan_that_loses_nothing() -> None:
    """Whatever is said: scanning starts at a file, at or before all that is to be rebuilt."""
    tried: dict[str, Mode] = {}
    for clean, count, dispatched, times, first in itertools.product(
        (True, False),
        range(5),
        (-1, 0, 500, 1000, 2999, 5000, 9999),
        ((0, 0, 0), (50_000, 60_000, 0), (60_000, 50_000, 55_000), (99_000, 99_000, 99_000)),
        (0, 2000),
    ):
        files = tuple(LogFileFacts(first + n * SIZE, 40_000 + n * 5000) for n in range(count))
        for indexes in itertools.product((0, 45_000, 70_000), repeat=2):
            index_files = tuple(
                IndexFileFacts(n + 1, n * 800, end, 10) for n, end in enumerate(indexes)
            )
            point = StoreCheckpoint(*times, dispatched_offset=dispatched, index_file=1)
            facts = RecoveryFacts(clean, SIZE, files, point, index_files)
            plan = plan_recovery(facts)
            tried[repr(facts)] = plan.mode
            starts = [file.start for file in files]
            if plan.mode is Mode.EMPTY:
                assert not files and len(plan.drop_index) == 2
                continue
            ours = 0 <= dispatched <= starts[-1] + SIZE
            covered = max(dispatched, first)  # the first files were removed meanwhile
            holding = max(start for start in starts if start <= covered)
            assert plan.scan_from in starts
            assert plan.durable_to == (covered if ours else -1)
            if plan.mode is Mode.NORMAL:
                assert clean
                assert plan.scan_from == (holding if ours else starts[max(0, count - 3)])
                assert plan.rebuild_queues_from == -1 and not plan.drop_index
                continue
            assert not clean
            assert plan.scan_from <= plan.dispatch_from <= plan.rebuild_queues_from
            if ours:
                assert plan.dispatch_from == covered and plan.drop_index == (2,)
                continue
            # RocketMQ's times: nothing older than the oldest of them, less three seconds.
            begin = next(f for f in files if f.start == plan.rebuild_queues_from)
            limit = min(times[:2]) - 3000
            assert begin is files[0] or begin.first_timestamp <= limit
            assert all(file.first_timestamp > limit for file in files if file.start > begin.start)
            for file in index_files:
                assert (file.number in plan.drop_index) == (file.end_timestamp > times[2])
                if file.number in plan.drop_index and file.begin_offset >= first:
                    assert plan.dispatch_from <= file.begin_offset
    # Without a log file it does not matter where the first one begins.
    assert len(tried) == 2 * (1 + 4 * 2) * 7 * 4 * 9
    assert set(tried.values()) == set(Mode)


def test_a_clean_stop_and_start_keeps_everything(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    fill(store, 1500)
    store.close()
    assert not (tmp_path / "store" / "abort").exists()
    for again in range(3):
        store = open_store()
        assert (tmp_path / "store" / "abort").exists()
        assert numbers(store) == list(range(1500 + again))
        fill(store, 1, 1500 + again)
        store.close()


def test_a_killed_store_keeps_everything_that_was_in_memory(open_store: OpenStore) -> None:
    total = 0
    for life in range(6):
        store = open_store()
        assert numbers(store) == list(range(total))
        fill(store, 333, total)
        total += 333
        if life % 2:
            dispatch(store)
        if life % 3 == 1:
            store.flush.step()
            store.queue_flush.step(thorough=True)
        abandon(store)
    store = open_store()
    assert numbers(store) == list(range(total))
    for n in (0, 500, total - 1):
        assert len(finish(store.search("T", f"u{n}", 5, 0, 1 << 60)).views) == 1


def test_a_start_after_a_kill_looks_at_no_file_that_the_checkpoint_covers(
    open_store: OpenStore,
) -> None:
    """Else a start takes the longer, the longer the log: old files are not in memory."""
    store = open_store()
    fill(store, 2000)
    dispatch(store)
    store.flush.step()
    store.queue_flush.step(thorough=True)
    covered = store.checkpoint.value.dispatched_offset
    fill(store, 5, 2000)
    abandon(store)
    store = open_store()
    files = store.commit_log.files.files
    assert len(files) > 8 and covered > files[-2].start
    assert [file.start for file in files if file._counted] == [
        file.start for file in files if file.end > covered
    ]
    assert numbers(store) == list(range(2005))


def test_a_tail_over_two_files_is_dispatched(open_store: OpenStore) -> None:
    store = open_store()
    fill(store, 100)
    dispatch(store)
    store.flush.step()
    store.queue_flush.step(thorough=True)
    fill(store, 500, 100)  # more than a file, never dispatched
    abandon(store)
    store = open_store()
    assert numbers(store) == list(range(600))


def test_torn_queue_entries_behind_the_checkpoint_are_built_again(
    open_store: OpenStore, tmp_path: Path
) -> None:
    image, starts = crashed_image(open_store, tmp_path, 40)
    shutil.copytree(image, tmp_path / "store")
    path = tmp_path / "store" / "consumequeue" / "T" / "0" / ("0" * 20)
    with path.open("r+b") as file:
        file.seek(12 * 20)
        file.write(struct.pack(">qiq", starts[1], 300, 5))  # sound-looking, wrong
        file.write(bytes(40))
    store = open_store()
    assert numbers(store) == list(range(40))


@pytest.mark.parametrize("unclean", [True, False])
def test_lost_queues_are_built_again_from_the_log(
    open_store: OpenStore, tmp_path: Path, unclean: bool
) -> None:
    store = open_store()
    fill(store, 900)
    if unclean:
        dispatch(store)
        abandon(store)
    else:
        store.close()
    shutil.rmtree(tmp_path / "store" / "consumequeue")
    (tmp_path / "store" / "checkpoint").unlink(missing_ok=True)
    store = open_store()
    assert numbers(store) == list(range(900))


def test_queues_are_cut_where_the_log_ends_after_a_clean_stop_too(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store()
    fill(store, 20)
    store.close()
    damage(tmp_path, 15)
    (tmp_path / "store" / "checkpoint").unlink()  # nothing says that the record was on disk
    store = open_store()
    assert numbers(store) == list(range(15))
    fill(store, 1, 15)
    dispatch(store)
    assert numbers(store) == list(range(16))


def test_an_empty_commitlog_empties_the_queues(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    fill(store, 100)
    store.close()
    shutil.rmtree(tmp_path / "store" / "commitlog")
    store = open_store()
    assert numbers(store) == []
    assert store.index is not None and store.index.files == []
    fill(store, 3)
    dispatch(store)
    assert numbers(store) == [0, 1, 2]


@pytest.mark.parametrize(
    ("path", "setting"),
    [
        ("commitlog/" + "0" * 20, "mappedFileSizeCommitLog"),
        ("consumequeue/T/0/" + "0" * 20, "mappedFileSizeConsumeQueue"),
    ],
)
def test_a_file_of_the_wrong_length_refuses_the_start(
    open_store: OpenStore, tmp_path: Path, path: str, setting: str
) -> None:
    store = open_store()
    fill(store, 10)
    store.close()
    file = tmp_path / "store" / path
    size = file.stat().st_size
    with file.open("r+b") as opened:
        opened.truncate(size + 1)
    with pytest.raises(WrongFileSize) as caught:
        open_store()
    text = str(caught.value)
    assert str(file) in text and str(size) in text and str(size + 1) in text and setting in text
    with file.open("r+b") as opened:
        opened.truncate(size)
    assert numbers(open_store()) == list(range(10))


def test_a_missing_file_in_the_middle_refuses_the_start(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store()
    fill(store, 900)
    store.close()
    log_path(tmp_path, 1).unlink()
    with pytest.raises(StoreError, match="has a hole"):
        open_store()


def test_rmq_9728_an_empty_last_queue_file_does_not_stop_the_start(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store()
    fill(store, 100)
    store.close()
    (tmp_path / "store" / "consumequeue" / "T" / "0" / f"{1000:020d}").touch()
    (tmp_path / "store" / "commitlog" / f"{65536:020d}").touch()
    assert numbers(open_store()) == list(range(100))


def test_a_file_made_ahead_and_never_written_is_no_harm(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store()
    fill(store, 50)
    abandon(store)
    log_path(tmp_path, 1).write_bytes(bytes(65536))
    store = open_store()
    assert numbers(store) == list(range(50))
    fill(store, 400, 50)
    dispatch(store)
    assert numbers(store) == list(range(450))


def test_a_log_that_ends_with_a_file_continues_in_the_next(open_store: OpenStore) -> None:
    store = open_store()
    fill(store, 10)
    last = store.commit_log.files.last
    assert last is not None
    store.commit_log._end_file(last)
    abandon(store)
    store = open_store()
    assert store.max_physical_offset == 65536
    fill(store, 10, 10)
    dispatch(store)
    assert numbers(store) == list(range(20))


def test_a_second_broker_on_the_directory_is_refused(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    assert (tmp_path / "store" / "lock").read_bytes() == b"lock"
    with pytest.raises(StoreLocked, match="in use by another broker"):
        open_store()
    store.close()
    open_store()


def test_progress_is_reported_and_ends_at_the_whole(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    fill(store, 2000)
    abandon(store)
    told: list[tuple[int, int]] = []
    again = MessageStore(store.settings, clock=store.clock, ahead=False)
    again.load(progress=lambda done, total: told.append((done, total)))
    assert told and all(done <= total for done, total in told)
    abandon(again)


def test_the_checkpoint_of_a_log_that_is_gone_says_nothing_of_the_next_one(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store()
    store.put([message(body=b"x" * 500) for _ in range(50)])
    dispatch(store)
    store.close()
    shutil.rmtree(tmp_path / "store" / "commitlog")
    store = open_store(flush_disk_type="SYNC_FLUSH")
    end = store.put([message(body=b"new")])[0].end_offset
    store.flush.step()
    dispatch(store)
    assert store.flushed_offset == end
    abandon(store)
    shutil.rmtree(tmp_path / "store" / "consumequeue")  # the power went before it was on disk
    store = open_store()
    assert [each.body for each in read_all(store)] == [b"new"]
    assert store.max_physical_offset == end
