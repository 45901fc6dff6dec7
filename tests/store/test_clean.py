"""Cleaning: which files go when, the guard against a full disk, files that are still read."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from aerobee.broker.store.files.disk import DiskSpace
from aerobee.broker.store.files.real_disk import RealDisk
from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.store.refusals import Cause
from aerobee.broker.store.results import ReadStatus
from aerobee.broker.store.retention.clean import COVER_PAUSE_S, Chosen

from .conftest import ManualClock, OpenStore, abandon, dispatch, message, read_all
from .faulty_disk import FaultyDisk

HOUR_MS = 3_600_000
GB = 1 << 30


def fill_files(store: MessageStore, files: int) -> None:
    """So many full commitlog files and a begun one, flushed and dispatched."""
    while store.max_physical_offset < files * 65536 + 1000:
        store.put([message(body=b"x" * 700, properties="KEYS\x01k\x02") for _ in range(10)])
    dispatch(store)
    store.flush.step()
    store.queue_flush.step(thorough=True)


def age(store: MessageStore, clock: ManualClock, hours: float) -> None:
    """Let every file be this old by the store's clock."""
    for file in store.commit_log.files.files:
        seconds = clock.time_ms / 1000 - hours * 3600
        os.utime(file.path, (seconds, seconds))


def log_files(folder: Path) -> int:
    return len(list((folder / "store" / "commitlog").iterdir()))


def test_expired_files_go_oldest_first_with_their_queue_and_index_files(
    open_store: OpenStore, tmp_path: Path, clock: ManualClock
) -> None:
    store = open_store(max_index_num=50)
    fill_files(store, 4)
    age(store, clock, 73)
    total = store.max_offset("T", 0)
    store.clean.trigger()
    waits = [store.clean.step() for _ in range(5)]
    assert waits == [0.1, 0.1, 0.1, 0.1, 10.0]
    assert log_files(tmp_path) == 1  # the file that is written stays
    low = store.min_offset("T", 0)
    assert low > 0
    entry = store.queue_entry("T", 0, low)
    assert entry is not None and entry[0] >= store.min_physical_offset
    queue_files = sorted(p.name for p in (tmp_path / "store/consumequeue/T/0").iterdir())
    assert int(queue_files[0]) > 0
    assert int(queue_files[0]) <= low * 20
    assert store.index is not None
    assert all(file.end_offset >= store.min_physical_offset for file in store.index.files)
    small = store.read_queue("T", 0, 0, 32, max_bytes=1000)
    assert (small.status, small.next_offset) == (ReadStatus.OFFSET_TOO_SMALL, low)
    assert store.put([message()])[0].queue_offset == total
    store.close()
    store = open_store(max_index_num=50)
    assert store.min_offset("T", 0) == low


def test_files_go_only_at_the_hour_unless_the_disk_asks(
    open_store: OpenStore, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FaultyDisk()
    store = open_store(disk=disk, disk_guard_enable=True, disk_reserved_bytes=100 * GB)
    fill_files(store, 2)
    age(store, clock, 80)
    disk.reported = DiskSpace(100 * GB, 50 * GB)
    monkeypatch.setattr(store.clean, "_is_time", lambda: False)
    store.clean.step()
    assert log_files(tmp_path) == 3
    disk.reported = DiskSpace(100 * GB, 20 * GB)  # 80 % used
    store.clean.step()
    assert log_files(tmp_path) == 2
    disk.reported = DiskSpace(100 * GB, 50 * GB)
    monkeypatch.setattr(store.clean, "_is_time", lambda: True)
    store.clean.step()
    assert log_files(tmp_path) == 1


def test_ratios_act_alone_when_no_bytes_are_reserved(open_store: OpenStore) -> None:
    disk = FaultyDisk()
    store = open_store(disk=disk, disk_guard_enable=True, disk_reserved_bytes=0)
    disk.reported = DiskSpace(1000 * GB, 80 * GB)  # 92 % used
    store.clean.step()
    assert Cause.DISK_FULL in store.refusals


@pytest.mark.parametrize(
    ("used", "removed", "refused"), [(70, 0, False), (80, 0, False), (86, 1, False), (91, 1, True)]
)
def test_young_files_go_only_above_85_percent(
    open_store: OpenStore, tmp_path: Path, used: int, removed: int, refused: bool
) -> None:
    disk = FaultyDisk()
    store = open_store(disk=disk, disk_guard_enable=True, disk_reserved_bytes=100 * GB)
    fill_files(store, 2)
    now_ms = store.clock.now_ms()
    for file in store.commit_log.files.files:
        os.utime(file.path, (now_ms / 1000, now_ms / 1000))
    disk.reported = DiskSpace(100 * GB, (100 - used) * GB)
    store.clean.step()
    assert log_files(tmp_path) == 3 - removed
    assert (Cause.DISK_FULL in store.refusals) == refused


def test_a_full_disk_refuses_puts_and_takes_them_again_at_85_percent(
    open_store: OpenStore,
) -> None:
    disk = FaultyDisk()
    store = open_store(disk=disk, disk_guard_enable=True, disk_reserved_bytes=100 * GB)
    fill_files(store, 1)
    disk.reported = DiskSpace(100 * GB, 8 * GB)
    store.clean.step()
    reason = store.put([message()])[0].reason
    for part in ("92.0 %", "diskSpaceWarningLevelRatio=90", "commitlog", "free", "85 %"):
        assert part in reason
    assert store.read_queue("T", 0, store.min_offset("T", 0), 1, max_bytes=9).count == 1
    disk.reported = DiskSpace(100 * GB, 12 * GB)
    store.clean.step()
    assert not store.put([message()])[0].ok
    disk.reported = DiskSpace(100 * GB, 15 * GB)
    store.clean.step()
    assert store.put([message()])[0].ok


def test_a_large_disk_with_much_space_left_is_not_full(open_store: OpenStore) -> None:
    disk = FaultyDisk()
    store = open_store(disk=disk, disk_guard_enable=True, disk_reserved_bytes=10 * GB)
    disk.reported = DiskSpace(1000 * GB, 60 * GB)  # 94 % used
    store.clean.step()
    assert store.put([message()])[0].ok


def test_a_disk_that_cannot_be_measured_is_said_once_and_does_not_stop_the_store(
    open_store: OpenStore, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = FaultyDisk()
    store = open_store(disk=disk, disk_guard_enable=True)
    disk.reported = OSError(5, "Input/output error")
    store.clean.step()
    store.clean.step()
    assert capsys.readouterr().out.count("cannot be measured") <= 2
    assert store.put([message()])[0].ok


def test_a_file_that_is_read_stays_until_it_is_released_or_120_seconds(
    open_store: OpenStore, tmp_path: Path, clock: ManualClock
) -> None:
    store = open_store()
    fill_files(store, 3)
    reading = store.read_queue("T", 0, 0, 4, max_bytes=1 << 20)
    content = [bytes(view) for view in reading.views]
    age(store, clock, 100)
    store.clean_expired()
    assert log_files(tmp_path) == 4
    assert store.read_queue("T", 0, 0, 1, max_bytes=9).status is ReadStatus.MESSAGE_WAS_REMOVING
    clock.time_ms += 121_000
    store.clean_expired()
    assert log_files(tmp_path) == 1
    assert [bytes(view) for view in reading.views] == content  # the views outlive the file
    reading.release()


def test_a_released_file_goes_at_the_next_round(
    open_store: OpenStore, tmp_path: Path, clock: ManualClock
) -> None:
    store = open_store()
    fill_files(store, 1)
    reading = store.read_queue("T", 0, 0, 4, max_bytes=1 << 20)
    age(store, clock, 100)
    store.clean_expired()
    assert log_files(tmp_path) == 2
    reading.release()
    reading.release()
    store.clean_expired()
    assert log_files(tmp_path) == 1


def test_at_most_ten_files_go_in_a_round(
    open_store: OpenStore, tmp_path: Path, clock: ManualClock
) -> None:
    store = open_store()
    fill_files(store, 13)
    age(store, clock, 100)
    store.clean_expired()
    assert log_files(tmp_path) == 4
    store.clean_expired()
    assert log_files(tmp_path) == 1


def test_what_is_not_flushed_is_never_removed(
    open_store: OpenStore, tmp_path: Path, clock: ManualClock
) -> None:
    store = open_store()
    store.put([message(body=b"x" * 700) for _ in range(200)])
    age(store, clock, 100)
    store.clean_expired()
    assert log_files(tmp_path) == 3


def test_a_file_stays_until_its_queue_entries_are_on_disk(
    open_store: OpenStore, tmp_path: Path, clock: ManualClock
) -> None:
    """After a power cut the queue would begin to count again where its last entries were."""
    store = open_store()
    store.put([message(body=b"x" * 700) for _ in range(200)])
    store.flush.step()
    dispatch(store)
    age(store, clock, 100)
    store.clean_expired()
    assert log_files(tmp_path) == 3
    store.queue_flush.step(thorough=False)  # without a checkpoint the next start does not know
    store.clean_expired()
    assert log_files(tmp_path) == 3
    store.queue_flush.step(thorough=True)
    store.clean_expired()
    assert log_files(tmp_path) == 1


def test_an_expired_file_does_not_wait_for_the_next_periodic_checkpoint(
    open_store: OpenStore, tmp_path: Path, clock: ManualClock
) -> None:
    store = open_store(flush_consume_queue_thorough_interval=3_600_000)
    store.put([message(body=b"x" * 700) for _ in range(200)])
    store.flush.step()
    dispatch(store)
    age(store, clock, 100)
    store.clean_expired()
    assert store.clean.pause(removed=False) == COVER_PAUSE_S
    assert store.queue_flush._is_time_for_thorough()
    store.queue_flush.step(thorough=True)
    store.clean_expired()
    assert log_files(tmp_path) == 1


def test_counters_follow_the_mapped_files(open_store: OpenStore, clock: ManualClock) -> None:
    store = open_store()
    fill_files(store, 3)
    read_all(store)  # through the maps of the log's files
    before = store.counters.files, store.counters.bytes
    age(store, clock, 100)
    store.clean_expired()
    assert store.counters.files < before[0]
    assert store.counters.bytes < before[1]
    store.close()
    assert (store.counters.files, store.counters.bytes) == (0, 0)


def test_a_file_that_nobody_may_read_any_more_goes_though_the_hour_is_over(
    open_store: OpenStore, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    fill_files(store, 2)
    age(store, clock, 80)
    reading = store.read_queue("T", 0, 0, 1, max_bytes=1 << 20)
    is_time = [True]
    monkeypatch.setattr(store.clean, "_is_time", is_time.pop)
    store.clean.step()
    assert log_files(tmp_path) == 3
    monkeypatch.setattr(store.clean, "_is_time", lambda: False)
    reading.release()
    store.clean.step()
    assert log_files(tmp_path) == 2  # the next one has not been begun with
    found = store.read_queue("T", 0, store.min_offset("T", 0), 1, max_bytes=1 << 20)
    assert found.status is ReadStatus.FOUND
    found.release()


@pytest.mark.parametrize("part", ["/commitlog/", "/consumequeue/", "/index/"])
def test_a_file_that_cannot_be_removed_leaves_no_hole_behind_it(
    open_store: OpenStore,
    tmp_path: Path,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    part: str,
) -> None:
    disk = FaultyDisk()
    store = open_store(disk=disk, max_index_num=50)
    fill_files(store, 5)
    age(store, clock, 80)
    unlink, stuck = disk.unlink, ["/" + "0" * 20, "/index/20"]

    def refuse(path: str) -> None:
        if any(each in path and part in path for each in stuck):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), path)
        unlink(path)

    monkeypatch.setattr(disk, "unlink", refuse)
    store.clean.trigger()
    for _ in range(3):
        store.clean.step()
        if part == "/index/":
            stuck.clear()
    before = store.min_offset("T", 0), store.max_offset("T", 0)
    abandon(store)
    store = open_store(max_index_num=50)
    assert (store.min_offset("T", 0), store.max_offset("T", 0)) == before
    store.clean.trigger()
    for _ in range(6):
        store.clean.step()
    assert log_files(tmp_path) == 1


def test_a_file_that_somebody_else_removed_is_released(
    open_store: OpenStore, tmp_path: Path, clock: ManualClock
) -> None:
    store = open_store()
    fill_files(store, 3)
    age(store, clock, 80)
    first = store.commit_log.files.files[0]
    assert len(first.view) == first.size
    mapped = store.counters.bytes
    store.clean.trigger()
    assert store.clean.choose() == (store.commit_log.files, first)
    os.unlink(first.path)
    assert store.clean.remove((store.commit_log.files, first))
    assert store.counters.bytes == mapped - first.size


def test_files_that_an_operator_removed_do_not_end_the_cleaning(
    open_store: OpenStore, tmp_path: Path, clock: ManualClock
) -> None:
    store = open_store()
    store.put([message(topic="A") for _ in range(120)])
    fill_files(store, 3)
    store.close()
    store = open_store()
    shutil.rmtree(tmp_path / "store/consumequeue/A")
    age(store, clock, 80)
    os.unlink(store.commit_log.files.files[0].path)
    store.clean.trigger()
    for _ in range(4):
        store.clean.step()
    assert log_files(tmp_path) == 1
    queue_files = sorted(p.name for p in (tmp_path / "store/consumequeue/T/0").iterdir())
    assert int(queue_files[0]) > 0


def expired_queue_file(store: MessageStore, clock: ManualClock) -> Chosen:
    """One that is to be removed: the log that it points to is gone."""
    fill_files(store, 2)
    age(store, clock, 73)
    store.clean.trigger()
    chosen = store.clean.choose()
    assert chosen is not None and store.clean.remove(chosen)
    derived = next(store.clean.choose_derived())
    assert derived is not None
    return derived


def test_a_topic_recreated_before_its_expired_queue_file_was_removed_keeps_its_own(
    open_store: OpenStore, tmp_path: Path, clock: ManualClock
) -> None:
    """The thread that removes files may be waiting for a sync meanwhile."""
    store = open_store()
    derived = expired_queue_file(store, clock)
    assert os.path.basename(derived[1].path) == f"{0:020d}"
    store.delete_topic("T")
    store.put([message(body=b"new")])
    dispatch(store)
    with capture_logs() as lines:
        assert store.clean.remove(derived)
    assert lines == []
    assert (tmp_path / "store/consumequeue/T/0" / f"{0:020d}").exists()
    store.close()
    assert [bytes(found.body) for found in read_all(open_store())] == [b"new"]


def test_a_topic_deleted_before_its_expired_queue_file_was_removed_is_no_failure(
    open_store: OpenStore, clock: ManualClock
) -> None:
    store = open_store()
    derived = expired_queue_file(store, clock)
    store.delete_topic("T")
    with capture_logs() as lines:
        assert store.clean.remove(derived)
    assert lines == []


def test_a_full_disk_that_cannot_be_measured_any_more_is_still_full(open_store: OpenStore) -> None:
    disk = FaultyDisk()
    store = open_store(disk=disk, disk_guard_enable=True)
    disk.reported = DiskSpace(100 * GB, 5 * GB)
    store.clean.step()
    assert not store.put([message()])[0].ok
    disk.reported = OSError(5, "Input/output error")
    store.clean.step()
    assert not store.put([message()])[0].ok
    disk.reported = DiskSpace(100 * GB, 50 * GB)
    store.clean.step()
    assert store.put([message()])[0].ok


def test_a_read_that_fails_holds_no_file(open_store: OpenStore) -> None:
    store = open_store()
    fill_files(store, 1)

    def fail(_record: memoryview) -> bool:
        raise ValueError("the filter cannot read this")

    with pytest.raises(ValueError, match="filter"):
        store.read_queue("T", 0, 0, 32, max_bytes=1 << 20, matches_record=fail)
    assert [file.holders for file in store.commit_log.files.files] == [0, 0]


def test_what_a_disk_keeps_for_root_counts_neither_as_used_nor_as_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = list(os.statvfs(tmp_path))
    facts[1:5] = [4096, 1000, 500, 400]  # f_frsize, f_blocks, f_bfree, f_bavail: 100 are root's
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(facts))
    space = RealDisk().space(str(tmp_path))
    assert space.used_ratio == pytest.approx(500 / 900)  # what df, mqadmin and `doctor` show
    assert space.free == 400 * 4096
