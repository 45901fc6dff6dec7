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


def fill(store: MessageStore, count: int, start: int = 0, body: int = 200) -> None:
    for n in range(start, start + count):
        text = f"UNIQ_KEY\x01u{n}\x02TAGS\x01t\x02"
        store.put([message(queue_id=n % 2, body=b"%06d" % n + b"." * body, properties=text)])


def numbers(store: MessageStore) -> list[int]:
    """The message numbers of both queues, after checking that each queue is gapless."""
    found: list[int] = []
    for queue_id in (0, 1):
        messages = read_all(store, "T", queue_id)
        assert [m.queue_offset for m in messages] == list(range(len(messages)))
        found += [int(m.body[:6]) for m in messages]
    return sorted(found)


def log_path(folder: Path, number: int = 0) -> Path:
    return folder / "store" / "commitlog" / f"{number * 65536:020d}"


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


def crashed_image(open_store: OpenStore, tmp_path: Path, count: int) -> tuple[Path, list[int]]:
    """A store killed with `count` messages; its folder and where each record begins."""
    store = open_store(root=tmp_path / "image")
    fill(store, count // 2)
    dispatch(store)
    store.flush.step()
    store.queue_flush.step(thorough=True)
    fill(store, count - count // 2, count // 2)
    dispatch(store)
    starts = []
    for queue_id in (0, 1):
        starts += [m.physical_offset for m in read_all(store, "T", queue_id)]
    starts.append(store.max_physical_offset)
    abandon(store)
    return tmp_path / "image", sorted(starts)


@pytest.mark.parametrize("unclean", [True, False])
def test_the_last_record_cut_at_any_byte_is_dropped_and_the_rest_kept(
    open_store: OpenStore, tmp_path: Path, unclean: bool
) -> None:
    image, starts = crashed_image(open_store, tmp_path, 8)
    begin, end = starts[-2:]
    if not unclean:
        (image / "abort").unlink()
    for cut in range(begin, end, 7):
        root = tmp_path / "store"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(image, root)
        with log_path(tmp_path).open("r+b") as file:
            file.seek(cut)
            file.write(bytes(end - cut))
        store = open_store()
        assert numbers(store) == list(range(7))
        assert store.max_physical_offset == begin
        fill(store, 1, 7, body=100)
        dispatch(store)
        assert numbers(store) == list(range(8))
        abandon(store)


def test_any_flipped_byte_of_the_last_record_ends_the_log_before_it(
    open_store: OpenStore, tmp_path: Path
) -> None:
    image, starts = crashed_image(open_store, tmp_path, 4)
    begin, end = starts[-2:]
    for at in range(begin, end, 5):
        root = tmp_path / "store"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(image, root)
        with log_path(tmp_path).open("r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 0x10]))
        store = open_store()
        assert numbers(store) == list(range(3)), f"byte {at - begin} of the record"
        abandon(store)


@pytest.mark.parametrize("byte", [0xFF, ord("/")], ids=["not UTF-8", "not a folder"])
def test_a_damaged_topic_ends_the_log_where_no_checksum_tells(
    open_store: OpenStore, tmp_path: Path, byte: int
) -> None:
    store = open_store(enabled_append_prop_crc=False)
    results = store.put([message("orders", body=b"%d" % n) for n in range(5)])
    dispatch(store)
    path = store.commit_log.files.files[0].path
    abandon(store)
    with open(path, "r+b") as file:
        topic_at = results[3].physical_offset + file.read().find(b"orders")
        file.seek(topic_at)
        file.write(bytes([byte]))
    store = open_store(enabled_append_prop_crc=False)
    assert [each.body for each in read_all(store, "orders")] == [b"0", b"1", b"2"]
    assert store.max_physical_offset == results[3].physical_offset
    assert store.put([message("orders", body=b"next")])[0].queue_offset == 3


def test_rmq_10666_a_cut_tail_is_zeros_that_no_later_scan_can_take_for_records(
    open_store: OpenStore, tmp_path: Path
) -> None:
    image, starts = crashed_image(open_store, tmp_path, 20)
    shutil.copytree(image, tmp_path / "store")
    with log_path(tmp_path).open("r+b") as file:
        file.seek(starts[10] + 100)
        file.write(b"\xff")
    store = open_store()
    assert numbers(store) == list(range(10))
    assert not any(log_path(tmp_path).read_bytes()[starts[10] :])
    # The same size as the lost one: behind it the old life's records would fit exactly.
    fill(store, 1, 10)
    abandon(store)
    store = open_store()
    assert numbers(store) == list(range(11))


def test_rmq_10017_a_record_of_an_earlier_life_is_known_by_its_offset(
    open_store: OpenStore, tmp_path: Path
) -> None:
    image, starts = crashed_image(open_store, tmp_path, 6)
    shutil.copytree(image, tmp_path / "store")
    data = log_path(tmp_path).read_bytes()
    with log_path(tmp_path).open("r+b") as file:
        file.seek(starts[6])
        file.write(data[starts[2] : starts[3]])  # sound in itself, in the wrong place
    store = open_store()
    assert numbers(store) == list(range(6))


def test_the_tail_of_the_log_is_allocated_again_after_the_cut(
    open_store: OpenStore, tmp_path: Path
) -> None:
    image, _ = crashed_image(open_store, tmp_path, 4)
    shutil.copytree(image, tmp_path / "store")
    open_store()
    status = log_path(tmp_path).stat()
    assert status.st_size == 65536
    assert status.st_blocks * 512 >= 65536


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


def test_torn_queue_entries_behind_the_checkpoint_are_built_anew(
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
def test_lost_queues_are_built_anew_from_the_log(
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


def damage(tmp_path: Path, number: int, at: int = -88, data: bytes = bytes(8)) -> None:
    """Overwrite bytes of one message, counted from its body."""
    body = log_path(tmp_path).read_bytes().index(b"%06d" % number)
    with log_path(tmp_path).open("r+b") as file:
        file.seek(body + at)
        file.write(data)


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


@pytest.mark.parametrize(("at", "data"), [(-88, bytes(8)), (50, b"\xff"), (-60, b"\xff" * 8)])
@pytest.mark.parametrize("unclean", [True, False])
def test_one_damaged_record_does_not_take_those_after_it_along(
    open_store: OpenStore, tmp_path: Path, at: int, data: bytes, unclean: bool
) -> None:
    store = open_store()
    fill(store, 20)
    dispatch(store)
    if unclean:
        store.flush.step()
        store.queue_flush.step(thorough=True)
        fill(store, 4, 20)
        abandon(store)
    else:
        fill(store, 4, 20)
        store.close()
    damage(tmp_path, 10, at, data)
    store = open_store()
    found = [int(m.body[:6]) for queue_id in (0, 1) for m in read_all(store, "T", queue_id)]
    assert sorted(found) == [n for n in range(24) if n != 10]
    fill(store, 2, 24)
    dispatch(store)
    assert store.max_offset("T", 0) == store.max_offset("T", 1) == 13


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


def test_a_log_that_ends_with_a_file_goes_on_in_the_next(open_store: OpenStore) -> None:
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


def test_progress_is_told_and_ends_at_the_whole(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    fill(store, 2000)
    abandon(store)
    told: list[tuple[int, int]] = []
    again = MessageStore(store.settings, clock=store.clock, ahead=False)
    again.load(progress=lambda done, total: told.append((done, total)))
    assert told and all(done <= total for done, total in told)
    abandon(again)


def test_rmq_7437_torn_properties_do_not_pass(open_store: OpenStore, tmp_path: Path) -> None:
    for crc in (True, False):
        root = tmp_path / f"crc{crc}"
        store = open_store(root=root, enabled_append_prop_crc=crc)
        store.put([message(body=b"whole", properties="A\x01b\x02")])
        text = "K\x01" + "v" * 900 + "\x02"
        last = store.put([message(body=b"torn", properties=text)])[0]
        abandon(store)
        with (root / "commitlog" / ("0" * 20)).open("r+b") as file:
            file.seek(512)
            file.write(bytes(last.end_offset - 512))  # the second sector never came to the disk
        store = open_store(root=root, enabled_append_prop_crc=crc)
        assert [m.body for m in read_all(store)] == [b"whole"]


def test_rmq_9121_a_crc_of_zero_is_a_value_like_any_other(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store(enabled_append_prop_crc=False)
    store.put([message(body=b"first"), message(body=b"second")])
    abandon(store)
    with log_path(tmp_path).open("r+b") as file:
        second = log_path(tmp_path).read_bytes().index(b"second") - 88
        file.seek(second + 8)
        file.write(bytes(4))
    store = open_store(enabled_append_prop_crc=False)
    assert [m.body for m in read_all(store)] == [b"first"]


def test_queues_built_anew_have_what_follows_a_damaged_record(
    open_store: OpenStore, tmp_path: Path
) -> None:
    """An operator removes consumequeue to have it built anew, and the log has a bad spot."""
    store = open_store()
    results = store.put([message(body=b"%d" % n * 50) for n in range(2000)])
    dispatch(store)
    store.close()
    shutil.rmtree(tmp_path / "store" / "consumequeue")
    for number in (0, 700, 701, 1999):
        offset = results[number].physical_offset
        path = tmp_path / "store" / "commitlog" / f"{offset // 65536 * 65536:020d}"
        data = bytearray(path.read_bytes())
        data[offset % 65536 + 4] ^= 1
        path.write_bytes(data)
    store = open_store()
    expected = [b"%d" % n * 50 for n in range(2000) if n not in (0, 700, 701, 1999)]
    assert [each.body for each in read_all(store)] == expected
    assert store.put([message()])[0].ok


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


@pytest.mark.parametrize("text", ["A\x01b\0", "A\x01" + "\0" * 20 + "\x02", "\0"])
def test_zeros_in_properties_are_not_taken_for_a_torn_write(
    open_store: OpenStore, text: str
) -> None:
    """Without checksums of records, which RocketMQ has off, zeros in a text tell of a torn one."""
    store = open_store(enabled_append_prop_crc=False)
    for properties in ("", text, "B\x01c\x02"):
        assert store.put([message(properties=properties)])[0].ok
    store.flush.step()
    end = store.max_physical_offset
    abandon(store)
    store = open_store(enabled_append_prop_crc=False)
    assert store.max_physical_offset == end
