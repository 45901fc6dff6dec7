"""The index: bytes of a file, chains, batches, queries that never return a wrong message."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import finish

from aerobee.broker.compiled import hot
from aerobee.broker.store.files.mapped_file import MappedFile, MappingCounters
from aerobee.broker.store.files.real_disk import RealDisk
from aerobee.broker.store.index.index_file import IndexFile
from aerobee.protocol.files.index_layout import index_file_size
from aerobee.protocol.files.java_hash import index_hash, java_hash
from aerobee.protocol.files.java_hash_columns import hash_keys
from aerobee.protocol.files.record import decode_record

from .conftest import ManualClock, OpenStore, abandon, dispatch, message

FOREVER = 1 << 60
BIG = {"max_hash_slot_num": 5_000_000, "max_index_num": 20_000_000}


def bodies(store: object, topic: str, key: str, **more: object) -> list[bytes]:
    result = finish(store.search(topic, key, 64, 0, FOREVER, **more))  # type: ignore[attr-defined]
    return [bytes(decode_record(view).body) for view in result.views]


def index_files(folder: Path) -> list[Path]:
    return sorted((folder / "store" / "index").iterdir())


def test_the_first_entry_is_number_one_in_rocketmqs_place(
    open_store: OpenStore, tmp_path: Path, clock: ManualClock
) -> None:
    store = open_store(**BIG)
    store.put([message(topic="TopicTest", body=b"-")])
    result = store.put([message(topic="TopicTest", properties="KEYS\x01KEY1\x02")])[0]
    dispatch(store)
    assert store.index is not None
    store.index.write_pending()
    store.index.files[0].write_slots()  # as before a sync
    (path,) = index_files(tmp_path)
    assert path.stat().st_size == 420_000_040
    assert len(path.name) == 17
    with path.open("rb") as file:
        header = struct.unpack(">qqqqii", file.read(40))
        at, now = result.physical_offset, clock.time_ms
        assert header == (now, now, at, at, 1, 2)
        file.seek(40 + 4 * 1969516)
        assert struct.unpack(">i", file.read(4)) == (1,)
        file.seek(40 + 20_000_000 + 20)
        assert struct.unpack(">iqii", file.read(20)) == (1656969516, at, 0, 0)
    assert path.stat().st_blocks * 512 < 30_000_000  # entries are not allocated ahead of need


TWICE = (
    "MY_UNIQ_KEY\x01no\x02XTAGS\x01no\x02MY_KEYS\x01no\x02"
    "UNIQ_KEY\x01U0\x02KEYS\x01k0\x02TAGS\x01t0\x02UNIQ_KEY\x01U1\x02KEYS\x01k1\x02TAGS\x01t1\x02"
)


@pytest.mark.parametrize("kill", [False, True], ids=["dispatched", "recovered"])
def test_of_properties_given_twice_the_last_counts_and_names_are_whole(
    open_store: OpenStore, tmp_path: Path, kill: bool
) -> None:
    """As consumers read them: a filter by tag must not drop what the consumer would take."""
    store = open_store()
    store.put([message(properties=TWICE, body=b"%d" % number) for number in range(20)])
    if kill:
        store.flush.step()
        abandon(store)
        store = open_store()
    dispatch(store)
    for number in range(20):
        entry = store.queue_entry("T", 0, number)
        assert entry is not None and entry[2] == java_hash("t1")
    assert len(bodies(store, "T", "U1")) == len(bodies(store, "T", "k1")) == 20
    assert bodies(store, "T", "U0") == bodies(store, "T", "k0") == bodies(store, "T", "no") == []


def test_a_message_is_found_by_its_unique_key_and_each_of_its_keys(open_store: OpenStore) -> None:
    store = open_store()
    text = "UNIQ_KEY\x01U1\x02KEYS\x01red green  blue\x02XKEYS\x01no\x02"
    store.put([message(properties=text, body=b"1"), message(properties="KEYS\x01red", body=b"2")])
    store.put([message(topic="other", properties="KEYS\x01red", body=b"3")])
    dispatch(store)
    assert bodies(store, "T", "U1") == [b"1"]
    assert bodies(store, "T", "red") == [b"2", b"1"]  # newest first
    assert bodies(store, "T", "green") == bodies(store, "T", "blue") == [b"1"]
    assert bodies(store, "T", "no") == bodies(store, "T", "r") == []
    assert bodies(store, "other", "red") == [b"3"]
    assert bodies(store, "T", "red", unique=True) == []
    assert bodies(store, "T", "U1", unique=True) == [b"1"]


def test_two_keys_with_one_hash_are_distinguished(open_store: OpenStore) -> None:
    store = open_store()
    assert java_hash("T#Aa") == java_hash("T#BB")
    store.put(
        [message(properties="KEYS\x01Aa", body=b"a"), message(properties="KEYS\x01BB", body=b"b")]
    )
    dispatch(store)
    assert bodies(store, "T", "Aa") == [b"a"]
    assert bodies(store, "T", "BB") == [b"b"]


def test_keys_beyond_ascii_hash_as_java_does(open_store: OpenStore) -> None:
    keys = ["ключ", "订单-1", "😀", "plain", "x" * 300]
    prefix = java_hash("T#") & 0xFFFFFFFF
    for repeat in (1, 10):
        found = hash_keys(keys * repeat, [prefix] * len(keys) * repeat)
        assert list(found) == [index_hash("T", key) for key in keys] * repeat
    store = open_store()
    store.put([message(properties=f"KEYS\x01{key}\x02", body=key.encode()) for key in keys * 9])
    dispatch(store)
    for key in keys:
        assert bodies(store, "T", key) == [key.encode()] * 9


def test_hashes_made_in_bulk_are_those_made_one_by_one() -> None:
    rng = random.Random(7)
    keys = ["".join(rng.choices("abcXYZ0189_%|", k=rng.randint(1, 40))) for _ in range(3000)]
    topics = [f"topic{rng.randrange(5)}" for _ in keys]
    prefixes = [java_hash(topic + "#") & 0xFFFFFFFF for topic in topics]
    wanted = [index_hash(topic, key) for topic, key in zip(topics, keys, strict=True)]
    assert list(hash_keys(keys, prefixes)) == wanted


def test_a_batch_writes_what_single_adds_write(open_store: OpenStore, tmp_path: Path) -> None:
    rng = random.Random(11)
    keys = [f"k{rng.randrange(60)}" for _ in range(350)]
    images = []
    for name, size in (("one", 1), ("many", 175)):
        store = open_store(root=tmp_path / name)
        for start in range(0, len(keys), size):
            batch = keys[start : start + size]
            store.put([message(properties=f"KEYS\x01{key}\x02") for key in batch])
            dispatch(store)
            assert store.index is not None
            store.index.write_pending()
        (path,) = sorted((tmp_path / name / "index").iterdir())
        images.append(path.read_bytes())
    assert images[0] == images[1]


@pytest.mark.skipif(hot is None, reason="this installation is pure Python")
def test_entries_and_slots_made_in_c_are_those_made_by_numpy(tmp_path: Path) -> None:
    chance = random.Random(3)
    slots, most, disk = 1500, 6000, RealDisk()
    files = []
    for name in ("one", "two"):
        made = disk.create(str(tmp_path / name), index_file_size(slots, most))
        files.append(IndexFile(MappedFile(made, 0, MappingCounters()), slots, most))
        files[-1].prepare()
    files[0].compiled = None
    offset, now = 0, 1_700_000_000_000
    while files[0].room > 700:
        hashes, offsets, times = [], [], []
        for _ in range(chance.choice([1, 2, 12, 13, 300, 600])):
            offset += chance.randrange(2)
            now += chance.choice([0, 1, 3000, -500])
            hashes.append(chance.choice([chance.randrange(2**31), chance.randrange(40), 2**31 - 1]))
            offsets.append(offset << 33)
            times.append(now)
        for file in files:
            file.add(hashes, offsets, times)
        assert files[0].used_slots == files[1].used_slots
    for file in files:
        file.write_slots()
        file.file.close()
    assert (tmp_path / "two").read_bytes() == (tmp_path / "one").read_bytes()


def test_a_full_file_is_followed_by_another_and_both_are_searched(
    open_store: OpenStore, tmp_path: Path, clock: ManualClock
) -> None:
    store = open_store()
    for n in range(1000):
        store.put([message(properties=f"KEYS\x01key{n} all\x02", body=b"%d" % n)])
        clock.time_ms += 1000
        if n % 40 == 0:
            dispatch(store)
    dispatch(store)
    for n in range(0, 1000, 37):
        assert bodies(store, "T", f"key{n}") == [b"%d" % n]
    files = index_files(tmp_path)
    assert len(files) == 6  # 399 entries each
    assert bodies(store, "T", "all") == [b"%d" % n for n in range(999, 999 - 64, -1)]
    header = struct.unpack(">qqqqii", files[0].read_bytes()[:40])
    assert header[5] == 400


def test_a_query_keeps_to_its_time_range(open_store: OpenStore, clock: ManualClock) -> None:
    store = open_store()
    start = clock.time_ms
    for n in range(20):
        store.put([message(properties="KEYS\x01k\x02", body=b"%d" % n)])
        clock.time_ms += 1500
    dispatch(store)
    result = finish(store.search("T", "k", 64, start + 3000, start + 6000))
    assert [decode_record(v).body for v in result.views] == [b"4", b"3", b"2"]
    assert result.index_last_update_timestamp == start + 19 * 1500
    assert len(finish(store.search("T", "k", 2, 0, FOREVER)).views) == 2


def test_a_damaged_chain_ends(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    store.put([message(properties="KEYS\x01k\x02") for _ in range(5)])
    dispatch(store)
    assert len(bodies(store, "T", "k")) == 5
    assert store.index is not None
    entry_3 = 40 + 400 + 3 * 20
    store.index.files[0].file.write(entry_3 + 16, struct.pack(">i", 5))  # a circle
    assert len(bodies(store, "T", "k")) == 3


TORN: dict[str, Callable[[int, int], int]] = {  # of another message's offset and the log's end
    "the old half is zeros": lambda other, end: 0,
    "bytes of it are old": lambda other, end: 0x0001_0000_0000_0012,
    "beyond the log": lambda other, end: end,
    "far beyond the log": lambda other, end: (1 << 63) - 1,
    "negative": lambda other, end: -1,
    "the most negative": lambda other, end: -(1 << 63),
    "in the middle of a record": lambda other, end: other + 7,
    "in the last bytes of the log": lambda other, end: end - 1,
    "at another message": lambda other, end: other,
}


@pytest.mark.parametrize("where", TORN)
@pytest.mark.parametrize("killed", [False, True], ids=["running", "after a kill"])
def test_an_entry_with_a_torn_offset_finds_no_wrong_message(
    open_store: OpenStore, where: str, killed: bool
) -> None:
    store = open_store()
    store.put([message(properties="KEYS\x01k\x02", body=b"older")])
    other = store.put([message(properties="KEYS\x01other\x02", body=b"other")])[0]
    store.put([message(properties="KEYS\x01k\x02", body=b"torn")])
    dispatch(store)
    assert bodies(store, "T", "k") == [b"torn", b"older"]
    offset = TORN[where](other.physical_offset, store.max_physical_offset)
    assert store.index is not None
    entry_3 = 40 + 400 + 3 * 20
    store.index.files[0].file.write(entry_3 + 4, struct.pack(">q", offset))
    if killed:
        abandon(store)
        store = open_store()
        assert bodies(store, "T", "k") == [b"torn", b"older"]  # rebuilt from the log
    else:
        assert bodies(store, "T", "k") == [b"older"]
    assert bodies(store, "T", "other") == [b"other"]


@pytest.mark.parametrize("keep", [1, 2, 57, 200])
def test_a_cut_file_is_as_if_the_rest_had_never_been_added(
    open_store: OpenStore, tmp_path: Path, keep: int
) -> None:
    images = []
    for name, amount in (("short", keep - 1), ("long", 300)):
        store = open_store(root=tmp_path / name)
        store.put([message(properties=f"KEYS\x01k{n % 70}\x02") for n in range(amount or 1)])
        dispatch(store)
        assert store.index is not None
        store.index.write_pending()
        file = store.index.files[0]
        if name == "long" or keep == 1:
            file.cut(keep)
        file.write_slots()
        images.append(file.file.read(0, file.file.size))
    assert images[0][40:] == images[1][40:]
    assert images[0][32:40] == images[1][32:40]


def test_keys_of_rolled_back_messages_are_not_indexed(open_store: OpenStore) -> None:
    store = open_store()
    store.put([message(properties="KEYS\x01k\x02", sys_flag=flag) for flag in (0xC, 0x4)])
    dispatch(store)
    assert len(bodies(store, "T", "k")) == 1


def test_the_index_survives_a_kill(open_store: OpenStore) -> None:
    store = open_store()
    for n in range(500):
        store.put([message(properties=f"UNIQ_KEY\x01u{n}\x02", body=b"%d" % n)])
        if n == 200:
            dispatch(store)
            store.flush.step()
            store.queue_flush.step(thorough=True)
    dispatch(store)
    abandon(store)
    store = open_store()
    for n in range(500):
        assert bodies(store, "T", f"u{n}") == [b"%d" % n]


def test_a_record_whose_keys_are_in_two_files_keeps_both_when_the_second_is_built_again(
    open_store: OpenStore, tmp_path: Path, clock: ManualClock
) -> None:
    """RocketMQ's checkpoint says up to which time the index is on disk: whole files."""
    store = open_store()
    for number in range(210):
        clock.time_ms += 1
        store.put([message(properties=f"UNIQ_KEY\x01u{number}\x02KEYS\x01k{number}\x02")])
    dispatch(store)
    assert store.index is not None
    store.index.write_pending()
    first, _ = store.index.files
    assert first.room == 0 and first.count % 2 == 0  # so the last record has one key in each file
    times = struct.pack(">qqq", clock.time_ms, clock.time_ms, first.end_timestamp)
    first.write_slots()  # as before the sync that the checkpoint speaks of
    abandon(store)
    (tmp_path / "store" / "checkpoint").write_bytes(times.ljust(4096, b"\0"))
    again = open_store()
    assert again.index is not None and len(again.index.files) == 2
    for number in range(210):
        for key in (f"u{number}", f"k{number}"):
            assert len(bodies(again, "T", key)) == 1, key


def test_a_clock_set_back_costs_the_next_index_file_no_time(
    open_store: OpenStore, tmp_path: Path, clock: ManualClock
) -> None:
    store = open_store(max_index_num=10)
    assert store.index is not None
    for letter in "abc":
        store.put([message(body=letter.encode(), properties=f"KEYS\x01{letter}") for _ in range(9)])
        dispatch(store)
        store.index.write_pending()  # a name for each millisecond since would take for ever
        clock.time_ms -= 10 * 365 * 86_400_000
    names = [path.name for path in index_files(tmp_path)]
    assert len(names) == 3 and all(len(name) == 17 for name in names)
    store.close()
    store = open_store(max_index_num=10)
    for letter in "abc":
        assert bodies(store, "T", letter) == [letter.encode()] * 9
