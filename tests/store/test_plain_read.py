"""The read that selects nothing gives what the general read gives, or falls back to it."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from aerobee.broker.compiled import hot
from aerobee.broker.store.files import page_cache
from aerobee.broker.store.files import residence as residence_module
from aerobee.broker.store.files.mapped_file import MappedFile, MappingCounters
from aerobee.broker.store.files.real_disk import RealDisk
from aerobee.broker.store.files.residence import Residence
from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.store.reading.plain_read import FASTEST, Take, answer, take
from aerobee.protocol.files.queue_entry import BLANK_ENTRY, ENTRY

from .conftest import OpenStore, dispatch, message

QUEUES = 3


def filled(open_store: OpenStore, count: int = 900) -> MessageStore:
    """Records of all lengths in runs of all lengths, over several files of log and queues."""
    store = open_store(mapped_file_size_consume_queue=20 * 200)
    chance = random.Random(7)
    left = count
    while left:
        run, queue_id = min(left, chance.choice((1, 1, 2, 9, 70))), chance.randrange(QUEUES)
        store.put([message("T", queue_id, bytes(chance.randrange(300))) for _ in range(run)])
        left -= run
    dispatch(store)
    assert len(store.commit_log.files.files) > 3
    return store


@pytest.mark.parametrize("way", dict.fromkeys((take, FASTEST)))
def test_a_plain_read_gives_the_same_bytes_as_the_general_one(
    open_store: OpenStore, way: Take
) -> None:
    store = filled(open_store)
    store.reader.take = way
    chance = random.Random(11)
    plain = 0
    for _ in range(3000):
        queue_id = chance.randrange(QUEUES)
        offset = chance.randrange(-2, store.max_offset("T", queue_id) + 2)
        count = chance.choice((1, 2, 31, 32, 63, 64, 65, 150))
        most = chance.choice((1, 200, 1000, 4000, 1 << 20))
        queue = store.queue_table.table["T", queue_id]
        found = store.read_plain(queue, offset, count, most)
        if found is None:
            continue
        plain += 1
        file, start, end, views, size, taken, behind = found
        general = store.read_queue("T", queue_id, offset, count, max_bytes=most)
        assert b"".join(views) == b"".join(general.views)
        assert bytes(answer(b"head", views)) == b"head" + b"".join(views)
        assert (size, taken) == (general.size, general.count)
        assert offset + taken == general.next_offset
        assert (queue.min_offset, queue.max_offset) == (general.min_offset, general.max_offset)
        first_file, first, _ = general.spans[0]
        last_file, last, length = general.spans[-1]
        assert file is first_file is last_file
        assert (start, end) == (first, last + length)
        assert behind == store.max_physical_offset - file.start - first
        general.release()
    assert plain > 1500  # the others cross a file's end or begin outside of the queue
    assert {file.holders for file in store.commit_log.files.files} == {0}


@pytest.mark.parametrize("way", dict.fromkeys((take, FASTEST)))
def test_what_is_out_of_the_ordinary_is_left_to_the_general_read(
    open_store: OpenStore, way: Take
) -> None:
    store = filled(open_store)
    store.reader.take = way
    queue = store.queue_table.get("T", 0)
    assert queue is not None
    assert store.read_plain(queue, 10, 5, 1 << 20) is not None
    assert store.read_plain(queue, -1, 5, 1 << 20) is None
    assert store.read_plain(queue, queue.max_offset, 5, 1 << 20) is None
    assert store.read_plain(queue, 10, 0, 1 << 20) is None
    for count in (5, 100):
        saved = bytes(queue.entries(12, 1))
        queue.files.files[0].write(12 * 20, BLANK_ENTRY)
        assert store.read_plain(queue, 10, count, 1 << 20) is None
        queue.files.files[0].write(12 * 20, saved)
        assert store.read_plain(queue, 10, count, 1 << 20) is not None
    first = store.commit_log.files.files[0]
    first.usable = False  # it is being removed
    assert store.read_plain(queue, 0, 5, 1 << 20) is None
    first.usable = True
    store.reader.check_records = True
    assert store.read_plain(queue, 10, 5, 1 << 20) is None


@pytest.mark.parametrize("way", dict.fromkeys((take, FASTEST)))
def test_an_entry_of_no_size_is_damage_even_inside_a_run(open_store: OpenStore, way: Take) -> None:
    file = filled(open_store).commit_log.files.files[0]
    whole = [ENTRY.pack(0, 100, 0), ENTRY.pack(100, 50, 0)]
    assert way(b"".join(whole), file, 1 << 20) is not None
    backwards = [whole[0], ENTRY.pack(100, -50, 0), ENTRY.pack(50, 100, 0)]
    assert way(b"".join(backwards), file, 1 << 20) is None


def test_what_is_far_behind_the_logs_end_is_left_to_the_general_read(
    open_store: OpenStore,
) -> None:
    store = filled(open_store)
    store.reader.hot_bytes = 50_000
    queue = store.queue_table.table["T", 0]
    last = queue.max_offset - 1
    assert store.read_plain(queue, 0, 5, 1 << 20) is None
    assert store.read_plain(queue, last, 5, 1 << 20) is not None


def test_a_block_that_is_in_memory_is_asked_for_once_in_a_while(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(open_store)
    first, second = store.commit_log.files.files[:2]
    asked: list[tuple[int, int]] = []
    cached = True
    time = 100.0

    def is_cached(_descriptor: int, position: int, length: int) -> bool:
        asked.append((position, length))
        return cached

    monkeypatch.setattr(page_cache, "is_cached", is_cached)
    monkeypatch.setattr(residence_module, "monotonic", lambda: time)
    residence = Residence()
    assert residence.holds_range(first, 1000, 2000)
    assert residence.holds_range(first, 30_000, 40_000)
    assert residence.holds([(first, 5000, 200), (first, 9000, 200)], 400)
    assert asked == [(0, first.wrote)]
    assert residence.holds([(first, 5000, 200), (second, 0, 200)], 400)  # one by one
    assert asked == [(0, first.wrote), (0, second.wrote)]
    time += 1
    cached = False
    asked.clear()
    assert not residence.holds_range(first, 1000, 2000)
    assert not residence.holds_range(second, 1000, 2000)
    assert not residence.holds([(first, 5000, 200), (first, 9000, 200)], 400)
    assert asked == [(0, first.wrote), (0, second.wrote), *2 * [(0, first.wrote)], (5000, 200)]
    asked.clear()
    cached = True
    monkeypatch.setattr(residence_module, "_BLOCK", 1000)
    monkeypatch.setattr(residence_module, "_WIDE", 4000)
    assert residence.holds_range(first, 1000, 10_000)
    assert residence.holds_range(first, 8000, 15_000)
    assert len(asked) == 14
    residence._until.clear()
    assert residence.holds_range(first, 1500, 14_500)  # all of it was found a moment ago
    assert len(asked) == 14
    assert not residence._is_in_wide(id(first), 1000, 15_001, time)
    time += 1
    assert not residence._is_in_wide(id(first), 1000, 10_000, time)


@pytest.mark.skipif(hot is None, reason="this installation is pure Python")
def test_records_are_in_memory_though_pages_beside_them_are_not(tmp_path: Path) -> None:
    """The system drops single pages: a block with such a hole must not make all its pulls cold."""
    assert hot is not None
    path = tmp_path / "log"
    path.write_bytes(bytes(1 << 20))
    with path.open("r+b") as stream:
        os.fsync(stream.fileno())
        file = RealDisk().open(str(path))
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if page_cache.is_cached(stream.fileno(), 0, 1 << 20):
            pytest.skip("this file system does not drop pages")
        os.pread(stream.fileno(), 8192, 40960)
    mapped = MappedFile(file, 0, MappingCounters())
    mapped.wrote = 1 << 20
    residence = Residence()

    def holds(*offsets: int) -> bool:
        entries = b"".join(ENTRY.pack(offset, 1000, 0) for offset in offsets)
        begin, end, records, _, _ = hot.take_records(entries, mapped.view, 0, 1 << 20, 1 << 20)
        return residence.holds_records([mapped], begin, end, records)

    assert holds(41000, 47000)
    assert not holds(41000, 47000, 49000)  # its last bytes are on a page that was not read
    assert not holds(4096)
    assert not residence.holds_range(mapped, 41000, 48000)


@pytest.mark.parametrize("way", dict.fromkeys((take, FASTEST)))
def test_entries_that_are_not_in_the_order_of_the_log_are_read_as_the_general_read_does(
    open_store: OpenStore, way: Take
) -> None:
    """This never happens in a sound store; a reader must still not get other bytes."""
    store = filled(open_store)
    store.reader.take = way
    queue = store.queue_table.get("T", 0)
    assert queue is not None
    first, second = (bytes(queue.entries(number, 1)) for number in (10, 14))
    queue.files.files[0].write(10 * 20, second)
    queue.files.files[0].write(14 * 20, first)
    for begin in (8, 10, 12, 14):
        general = store.read_queue("T", 0, begin, 6, max_bytes=1 << 20)
        found = store.read_plain(queue, begin, 6, 1 << 20)
        if found is not None:
            assert bytes(answer(b"", found[3])) == b"".join(general.views)
        general.release()


def test_what_was_forgotten_is_read_from_the_disk_again(tmp_path: Path) -> None:
    file = RealDisk().create(str(tmp_path / "log"), 1 << 20)
    file.write(0, b"x" * (1 << 20))
    file.sync()
    file.forget(0, 1 << 20)
    assert file.read(0, 1 << 20) == b"x" * (1 << 20)


def test_the_system_drops_pages_that_were_forgotten(tmp_path: Path) -> None:
    file, other = (RealDisk().create(str(tmp_path / name), 1 << 20) for name in ("log", "other"))
    for one in (file, other):
        one.write(0, b"x" * (1 << 20))
        one.sync()
    file.forget(0, 1 << 20)
    with (tmp_path / "other").open("rb") as stream:
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if page_cache.is_cached(stream.fileno(), 0, 1 << 20):
            pytest.skip("this file system does not drop pages")
    assert not file.is_cached(0, 1 << 20)
