"""Consume queues: entries, the beginning and the end, filters, time, extra units."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.store.queues import queue_start
from aerobee.broker.store.queues.consume_queue import ConsumeQueue
from aerobee.broker.store.queues.consume_queue_ext import is_address
from aerobee.broker.store.results import Arrival, Boundary, ReadStatus
from aerobee.protocol.files.java_hash import java_hash
from aerobee.protocol.files.record import decode_records

from .conftest import ManualClock, OpenStore, dispatch, message, read_all

ENTRY = struct.Struct(">qiq")
START_MS = ManualClock().time_ms


def queue_bytes(folder: Path, topic: str = "T", queue_id: int = 0, start: int = 0) -> bytes:
    path = folder / "store" / "consumequeue" / topic / str(queue_id) / f"{start:020d}"
    return path.read_bytes()


def test_an_entry_is_offset_size_and_the_tags_hash(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    results = store.put(
        [
            message(properties="TAGS\x01TagA\x02"),
            message(properties="KEYS\x01k\x02TAGS\x01订单"),
            message(properties="XTAGS\x01no\x02"),
            message(),
        ]
    )
    dispatch(store)
    codes = [java_hash("TagA"), java_hash("订单"), 0, 0]
    raw = queue_bytes(tmp_path)
    assert len(raw) == store.settings.mapped_file_size_consume_queue
    for number, (result, code) in enumerate(zip(results, codes, strict=True)):
        entry = ENTRY.unpack_from(raw, 20 * number)
        assert entry == (result.physical_offset, result.size, code)
        assert store.queue_entry("T", 0, number) == entry
    assert not any(raw[80:])
    assert store.queue_entry("T", 0, 4) is None


def test_a_queue_continues_in_the_next_file(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    for _ in range(7):
        store.put([message() for _ in range(19)])
        dispatch(store)
    folder = tmp_path / "store" / "consumequeue" / "T" / "0"
    assert sorted(p.name for p in folder.iterdir()) == [f"{n * 1000:020d}" for n in range(3)]
    assert [m.queue_offset for m in read_all(store)] == list(range(133))


def test_a_repeated_record_is_ignored(open_store: OpenStore) -> None:
    store = open_store()
    store.put([message() for _ in range(30)])
    dispatch(store)
    before = store.queue_table.get_or_create("T", 0).entries(0, 30)
    store.reput.start_at(0)
    dispatch(store)
    queue = store.queue_table.get_or_create("T", 0)
    assert queue.max_offset == 30
    assert queue.entries(0, 50) == before


def test_a_queue_that_begins_in_the_middle_is_filled_with_blanks(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store()
    queue = store.queue_table.get_or_create("T", 0)
    queue.assigned = 123
    result = store.put([message()])[0]
    dispatch(store)
    assert (queue.min_offset, queue.max_offset) == (123, 124)
    raw = queue_bytes(tmp_path, start=2000)
    for number in range(100, 123):
        assert ENTRY.unpack_from(raw, (number - 100) * 20) == (0, 0x7FFFFFFF, 0)
    assert ENTRY.unpack_from(raw, 23 * 20)[0] == result.physical_offset
    assert store.read_queue("T", 0, 5, 32, max_bytes=1000).status is ReadStatus.OFFSET_TOO_SMALL
    store.close()
    store = open_store()
    assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (123, 124)
    assert store.put([message()])[0].queue_offset == 124


def with_blanks(store: MessageStore, total: int, blank: range) -> ConsumeQueue:
    """A queue as it is rebuilt from a log in which some records are damaged; its store times are
    its numbers."""
    queue, clock = store.queue_table.get_or_create("T", 0), store.clock
    assert isinstance(clock, ManualClock)
    for number in range(total):
        if number not in blank:
            queue.assigned = number
            clock.time_ms = START_MS + number
            assert store.put([message(body=b"%d" % number)])[0].ok
            dispatch(store)
    return queue


@pytest.mark.parametrize("blank", [range(3, 4), range(1, 6), range(40, 90), range(95, 130)])
def test_slots_of_damaged_records_hide_no_other_message(
    open_store: OpenStore, blank: range
) -> None:
    store = open_store()
    with_blanks(store, blank.stop + 3, blank)
    for _ in range(2):
        store.close()
        store = open_store()
        assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (0, blank.stop + 3)
        for number in range(blank.stop + 3):
            after, before = (blank.stop, blank.start - 1) if number in blank else (number, number)
            time_ms = START_MS + number
            assert store.offset_by_time("T", 0, time_ms) == after
            assert store.offset_by_time("T", 0, time_ms, Boundary.UPPER) == before


def test_a_file_that_ends_with_slots_of_damaged_records_stays_with_the_others(
    open_store: OpenStore,
) -> None:
    store = open_store()
    queue = with_blanks(store, 60, range(45, 55))
    assert not queue_start.is_file_expired(queue, 0)
    entry = queue.entry(44)
    assert entry is not None and queue_start.is_file_expired(queue, sum(entry[:2]))


@pytest.mark.parametrize(
    ("offset", "status", "following"),
    [
        (0, ReadStatus.FOUND, 3),
        (3, ReadStatus.OFFSET_OVERFLOW_ONE, 3),
        (9, ReadStatus.OFFSET_OVERFLOW_BADLY, 3),
        (-1, ReadStatus.OFFSET_TOO_SMALL, 0),
    ],
)
def test_an_offset_outside_the_queue_says_how(
    open_store: OpenStore, offset: int, status: ReadStatus, following: int
) -> None:
    store = open_store()
    store.put([message() for _ in range(3)])
    dispatch(store)
    result = store.read_queue("T", 0, offset, 32, max_bytes=1 << 20)
    assert (result.status, result.next_offset) == (status, following)
    assert (result.min_offset, result.max_offset) == (0, 3)
    result.release()


def test_a_queue_without_messages_says_so(open_store: OpenStore) -> None:
    store = open_store()
    absent = store.read_queue("none", 0, 0, 32, max_bytes=100)
    assert absent.status is ReadStatus.NO_MATCHED_LOGIC_QUEUE
    store.queue_table.get_or_create("T", 3)
    assert store.read_queue("T", 3, 0, 1, max_bytes=9).status is ReadStatus.NO_MESSAGE_IN_QUEUE


def test_a_read_stops_at_count_and_bytes_but_gives_one_at_least(open_store: OpenStore) -> None:
    store = open_store()
    sizes = [r.size for r in store.put([message(body=b"x" * 500) for _ in range(10)])]
    dispatch(store)
    by_count = store.read_queue("T", 0, 0, 4, max_bytes=1 << 20)
    assert (by_count.count, by_count.next_offset, by_count.size) == (4, 4, 4 * sizes[0])
    assert len(by_count.views) == 1  # neighbours in the log are one view
    by_bytes = store.read_queue("T", 0, 0, 32, max_bytes=3 * sizes[0] + 5)
    assert by_bytes.count == 3
    tiny = store.read_queue("T", 0, 0, 32, max_bytes=1)
    assert tiny.count == 1
    for result in (by_count, by_bytes, tiny):
        result.release()


def test_records_of_other_queues_in_between_split_the_views(open_store: OpenStore) -> None:
    store = open_store()
    store.put([message(queue_id=n % 2, body=b"%d" % n) for n in range(10)])
    dispatch(store)
    result = store.read_queue("T", 1, 0, 32, max_bytes=1 << 20)
    assert len(result.views) == 5
    assert [m.body for v in result.views for m in decode_records(v)] == [
        b"1",
        b"3",
        b"5",
        b"7",
        b"9",
    ]
    assert store.read_cold(result) == b"".join(result.views)
    result.release()


def test_a_filter_by_tag_moves_on_past_what_it_skips(open_store: OpenStore) -> None:
    store = open_store()
    store.put([message(properties=f"TAGS\x01{'ab'[n % 2]}\x02", body=b"%d" % n) for n in range(8)])
    dispatch(store)
    wanted = java_hash("b")
    result = store.read_queue("T", 0, 0, 3, max_bytes=1 << 20, matches=wanted.__eq__)
    assert [m.body for v in result.views for m in decode_records(v)] == [b"1", b"3", b"5"]
    assert result.next_offset == 6 or result.next_offset == 7
    none = store.read_queue("T", 0, 0, 3, max_bytes=1 << 20, matches=lambda _code: False)
    assert (none.status, none.next_offset) == (ReadStatus.NO_MATCHED_MESSAGE, 8)
    by_record = store.read_queue(
        "T", 0, 0, 9, max_bytes=1 << 20, matches_record=lambda view: b"7" in bytes(view[88:89])
    )
    assert (by_record.count, by_record.next_offset) == (1, 8)
    for each in (result, none, by_record):
        each.release()


def test_time_finds_the_first_not_before_and_the_last_not_after(
    open_store: OpenStore, clock: ManualClock
) -> None:
    store = open_store()
    start = clock.time_ms
    for _ in range(60):  # over a file's end; three messages each 10 ms
        store.put([message() for _ in range(3)])
        clock.time_ms += 10
    dispatch(store)
    for step in range(60):
        at = start + step * 10
        assert store.offset_by_time("T", 0, at, Boundary.LOWER) == 3 * step
        assert store.offset_by_time("T", 0, at, Boundary.UPPER) == 3 * step + 2
        assert store.offset_by_time("T", 0, at + 5, Boundary.LOWER) == 3 * step + 3
        assert store.offset_by_time("T", 0, at + 5, Boundary.UPPER) == 3 * step + 2
    assert store.offset_by_time("T", 0, 0, Boundary.LOWER) == 0
    assert store.offset_by_time("T", 0, 0, Boundary.UPPER) == 0
    assert store.offset_by_time("T", 0, 1 << 50, Boundary.LOWER) == 180
    assert store.offset_by_time("T", 0, 1 << 50, Boundary.UPPER) == 179
    assert store.earliest_time("T", 0) == start
    assert store.store_time("T", 0, 180) == -1


def test_the_schedule_topics_code_is_the_deliver_time(
    open_store: OpenStore, clock: ManualClock
) -> None:
    store = open_store()
    topic = "SCHEDULE_TOPIC_XXXX"
    store.put(
        [
            message(topic=topic, queue_id=2, properties="TAGS\x01a\x02DELAY\x013\x02"),
            message(topic=topic, queue_id=17, properties="DELAY\x0199\x02"),
        ]
    )
    dispatch(store)
    expected = [(2, clock.time_ms + 10_000), (17, clock.time_ms + 7_200_000)]
    clock.time_ms += 5000
    for again in range(2):  # and again when the queue is rebuilt from the log
        for queue_id, due in expected:
            entry = store.queue_entry(topic, queue_id, 0)
            assert entry is not None and entry[2] == due
        if not again:
            store.queue_table.remove_topic(topic)
            store.reput.start_at(0)
            dispatch(store)


def test_arrivals_are_reported_in_batches_after_the_queue_has_them(open_store: OpenStore) -> None:
    store = open_store()
    told: list[list[Arrival]] = []

    def listen(arrivals: list[Arrival]) -> None:
        assert store.max_offset("T", 0) > arrivals[-1].queue_offset
        told.append(arrivals)

    store.add_arrival_listener(listen)
    results = store.put([message(properties="TAGS\x01a\x02") for _ in range(5)])
    dispatch(store)
    assert len(told) == 1
    assert [a.queue_offset for a in told[0]] == list(range(5))
    assert told[0][2].physical_offset == results[2].physical_offset
    assert told[0][2].tags_code == java_hash("a")


def test_ext_units_with_rocketmqs_filter_bitmaps_are_read_and_followed_by_others(
    open_store: OpenStore, tmp_path: Path
) -> None:
    settings = {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": 256}
    store = open_store(**settings)
    store.put([message(properties="TAGS\x01a\x02")])
    dispatch(store)
    store.close()
    file = tmp_path / "store/consumequeue_ext/T/0" / ("0" * 20)
    own = file.read_bytes()
    with_bitmap = b"\x00\x1c" + own[2:18] + b"\x00\x08" + b"\x05" * 8
    file.write_bytes(with_bitmap + bytes(len(own) - 28))
    store = open_store(**settings)
    store.put([message(properties="TAGS\x01b\x02")])
    dispatch(store)
    codes = [entry[2] for n in range(2) if (entry := store.queue_entry("T", 0, n))]
    assert codes == [java_hash("a"), java_hash("b")]
    assert ENTRY.unpack_from(queue_bytes(tmp_path), 20)[2] == 28 - (1 << 63)


def test_ext_units_carry_the_tags_code_and_survive_a_restart(
    open_store: OpenStore, tmp_path: Path
) -> None:
    settings = {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": 256}
    store = open_store(**settings)
    told: list[Arrival] = []
    store.add_arrival_listener(told.extend)
    store.put([message(properties=f"TAGS\x01t{n}\x02") for n in range(30)])
    dispatch(store)
    raw = ENTRY.unpack_from(queue_bytes(tmp_path), 0)[2]
    assert raw == -(1 << 63) and is_address(raw)
    assert [a.tags_code for a in told] == [java_hash(f"t{n}") for n in range(30)]
    unit = (tmp_path / "store/consumequeue_ext/T/0" / ("0" * 20)).read_bytes()[:20]
    assert unit[:2] == b"\x00\x14" and unit[18:] == b"\x00\x00"
    store.close()
    for changes in (settings, {**settings, "enable_consume_queue_ext": False}):
        store = open_store(**changes)
        codes = [entry[2] for n in range(30) if (entry := store.queue_entry("T", 0, n))]
        assert codes == [java_hash(f"t{n}") for n in range(30)]
        found = store.read_queue("T", 0, 0, 9, max_bytes=9999, matches=java_hash("t7").__eq__)
        assert found.count == 1
        found.release()
        store.put([message(properties="TAGS\x01more\x02")])
        dispatch(store)
        entry = store.queue_entry("T", 0, store.max_offset("T", 0) - 1)
        assert entry is not None and entry[2] == java_hash("more")
        store.close()


def test_a_deleted_topic_starts_again_at_zero(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    store.put([message() for _ in range(60)] + [message(topic="other")])
    dispatch(store)
    store.delete_topic("T")
    assert store.queues() == {"other": [0]}
    assert not (tmp_path / "store" / "consumequeue" / "T").exists()
    assert store.put([message(body=b"anew")])[0].queue_offset == 0
    dispatch(store)
    assert [m.body for m in read_all(store)] == [b"anew"]
    assert store.clean_unused_topics({"T"}) == 1
    assert store.queues() == {"T": [0]}
    # A walk over the whole log meets the old life first and must end with the new one.
    store.queue_table.remove_topic("T")
    store.reput.start_at(0)
    dispatch(store)
    assert [m.body for m in read_all(store)] == [b"anew"]


def test_deleting_a_topic_with_records_that_wait_for_the_flush_does_no_harm(
    open_store: OpenStore,
) -> None:
    store = open_store(flush_disk_type="SYNC_FLUSH")
    store.put([message(), message(topic="other")])
    store.delete_topic("T")
    store.flush.step()
    dispatch(store)
    assert store.max_offset("other", 0) == 1
    assert store.dispatched_offset == store.max_physical_offset


def test_units_outlive_messages_that_came_without_them(open_store: OpenStore) -> None:
    """enableConsumeQueueExt on, off and on again: each entry keeps its own tag."""
    settings = {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": 256}
    tags: list[str] = []
    for enabled in (True, False, False, True, True):
        store = open_store(**(settings | {"enable_consume_queue_ext": enabled}))
        count = store.max_offset("T", 0)
        codes = [entry[2] for n in range(count) if (entry := store.queue_entry("T", 0, n))]
        assert codes == [java_hash(tag) for tag in tags]
        new = [f"t{len(tags) + n}" for n in range(60)]
        store.put([message(properties=f"TAGS\x01{tag}\x02") for tag in new])
        dispatch(store)
        tags += new
        store.close()


def test_one_damaged_unit_does_not_take_the_others_along(
    open_store: OpenStore, tmp_path: Path
) -> None:
    settings = {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": 256}
    store = open_store(**settings)
    store.put([message(properties=f"TAGS\x01t{n}\x02") for n in range(30)])
    dispatch(store)
    assert store.queue_table.table["T", 0].ext is not None
    last = store.queue_table.table["T", 0].ext.end - 20
    store.close()
    path = tmp_path / "store/consumequeue_ext/T/0" / f"{last - last % 256:020}"
    data = path.read_bytes()
    path.write_bytes(data[: last % 256] + bytes(20) + data[last % 256 + 20 :])
    for _ in range(2):
        store = open_store(**settings)
        codes = [entry[2] for n in range(29) if (entry := store.queue_entry("T", 0, n))]
        assert codes == [java_hash(f"t{n}") for n in range(29)]
        store.put([message(properties="TAGS\x01more\x02")])
        dispatch(store)
        entry = store.queue_entry("T", 0, store.max_offset("T", 0) - 1)
        assert entry is not None and entry[2] == java_hash("more")
        store.close()


@pytest.mark.parametrize(
    "settings", [{"flush_disk_type": "SYNC_FLUSH"}, {"transient_store_pool_enable": True}]
)
def test_a_topic_deleted_while_many_records_wait_does_not_come_back(
    open_store: OpenStore, settings: dict[str, object]
) -> None:
    store = open_store(mapped_file_size_commit_log=1 << 20, **settings)
    store.put([message() for _ in range(300)])
    store.delete_topic("T")
    if store.commit is not None:
        store.commit.step()
    store.flush.step()
    dispatch(store)
    assert store.queues() == {}
    assert store.dispatched_offset == store.max_physical_offset
