"""The commitlog: the bytes of a record, and what is refused with which reason."""

from __future__ import annotations

import errno
import itertools
import os
import struct
import zlib
from pathlib import Path

import crcmod.predefined
import pytest

from aerobee.broker.store.results import PutStatus
from aerobee.protocol.files.ids import encode_host
from aerobee.protocol.files.record import (
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    Message,
    decode_record,
)
from aerobee.protocol.files.record_layout import BLANK_MAGIC, MAGIC_V2

from .conftest import SMALL, ManualClock, OpenStore, abandon, dispatch, message, read_all
from .faulty_disk import FaultyDisk, ShortWrite

VECTOR = (
    "00000068daa320a758932aac000000010000000000000000000000050000000000000064000000000000018bcfe568"
    "000a000001000013880000018bcfe568010a00000200002a9f00000000000000000000000000000002686901540"
    "00a54414753015461674102"
)


def log_bytes(folder: Path, start: int = 0) -> bytes:
    return (folder / "store" / "commitlog" / f"{start:020d}").read_bytes()


def test_a_record_has_rocketmqs_bytes(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store(clock=ManualClock(1700000000001), enabled_append_prop_crc=False)
    filler = Message("T", 1, b"", "")
    # The vector stands at offset 100 as message 5 of its queue: put it there with fillers.
    queue = store.queue_table.get_or_create("T", 1)
    queue.assigned = 4
    filler = Message("T", 1, b"x" * (100 - 92))
    assert store.put([filler])[0].end_offset == 100
    vector = Message(
        "T",
        1,
        b"hi",
        "TAGS\x01TagA\x02",
        born_timestamp=1700000000000,
        born_host=encode_host("10.0.0.1", 5000),
        store_host=encode_host("10.0.0.2", 10911),
    )
    result = store.put([vector])[0]
    assert (result.physical_offset, result.size, result.queue_offset) == (100, 104, 5)
    assert log_bytes(tmp_path)[100:204].hex() == VECTOR


def test_the_tail_checksum_covers_the_whole_record(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    result = store.put([message(body=b"b" * 900, properties="KEYS\x01k")])[0]
    record = log_bytes(tmp_path)[: result.size]
    assert record[-20:-11] == b"__CRC32#\x01"
    assert record[-1:] == b"\x02"
    independent = crcmod.predefined.mkCrcFun("crc-32")
    assert int(record[-11:-1][::-1]) == independent(record[:-20]) & 0x7FFFFFFF
    assert record[-21:-20] == b"\x02"  # the pair before it is ended
    assert int.from_bytes(record[8:12], "big") == independent(b"b" * 900) & 0x7FFFFFFF
    decoded = decode_record(record, check=True)
    assert decoded.property_map()["KEYS"] == "k"


def test_a_checksum_copied_from_an_earlier_record_is_replaced(open_store: OpenStore) -> None:
    store = open_store()
    first = store.put([message(properties="TAGS\x01a\x02")])[0]
    copied = decode_record(store.record_at(first.physical_offset) or b"")
    assert "__CRC32#" in copied.properties
    second = store.put([message(properties=copied.properties)])[0]
    again = decode_record(store.record_at(second.physical_offset) or b"", check=True)
    assert again.properties.count("__CRC32#") == 1
    assert again.property_map()["TAGS"] == "a"


def test_ipv6_hosts_and_long_topics_take_their_own_forms(open_store: OpenStore) -> None:
    store = open_store()
    host = encode_host("2001:db8::1", 5000)
    topic = "t" * 200
    results = store.put(
        [
            message(born_host=host, store_host=host),
            message(born_host=host),
            message(store_host=host),
            message(topic=topic, properties="TAGS\x01x\x02"),
        ]
    )
    decoded = [
        decode_record(store.record_at(r.physical_offset) or b"", check=True) for r in results
    ]
    assert [m.sys_flag for m in decoded] == [0x30, 0x10, 0x20, 0]
    assert decoded[0].born_host == decoded[0].store_host == host
    assert decoded[3].topic == topic
    raw = store.record_at(results[3].physical_offset)
    assert raw is not None
    assert struct.unpack_from(">i", raw, 4)[0] == MAGIC_V2
    dispatch(store)
    assert read_all(store, topic)[0].topic == topic


def test_a_record_that_does_not_fit_goes_to_the_next_file(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store()
    body = b"x" * 1000
    results = store.put([message(body=body) for _ in range(100)])
    assert all(result.ok for result in results)
    size = SMALL["mapped_file_size_commit_log"]
    starts = sorted({result.physical_offset // size for result in results})
    assert starts == [0, 1]
    last_in_first = max(r.end_offset for r in results if r.end_offset < size)
    blank = log_bytes(tmp_path)[last_in_first : last_in_first + 8]
    assert struct.unpack(">ii", blank) == (size - last_in_first, BLANK_MAGIC)
    assert [r.queue_offset for r in results] == list(range(100))
    dispatch(store)
    assert len(read_all(store)) == 100


@pytest.mark.parametrize("left", [0, 1, 4, 7, 8, 9, 20])
def test_a_file_always_keeps_room_for_the_blank_record(open_store: OpenStore, left: int) -> None:
    store = open_store(enabled_append_prop_crc=False)
    size = store.settings.mapped_file_size_commit_log
    empty = 92  # an empty body to topic T
    store.put([message(body=b"x" * (size - left - 3 * empty))])
    store.put([message(body=b"")])
    last = store.put([message(body=b"")])[0]
    dispatch(store)
    assert len(read_all(store)) == 3
    assert last.end_offset == (size - left if left >= 8 else size + empty)


def test_a_batch_is_one_piece_in_one_file(open_store: OpenStore) -> None:
    store = open_store()
    size = store.settings.mapped_file_size_commit_log
    store.put([message(body=b"x" * (size - 2000))])
    result = store.put_batch(
        [message(body=b"y" * 300, properties=f"KEYS\x01{n}") for n in range(5)]
    )
    assert result.ok and result.physical_offset == size
    assert result.queue_offset == 1
    offsets = result.physical_offsets
    assert offsets is not None and len(offsets) == 5
    sizes = [decode_record(store.record_at(o) or b"", check=True).size for o in offsets]
    assert [b - a for a, b in itertools.pairwise(offsets)] == sizes[:-1]
    assert result.end_offset == offsets[-1] + sizes[-1]


def test_a_batch_with_a_message_that_cannot_be_stored_stores_nothing(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store()
    store.put([message()])
    before = store.max_physical_offset
    bad = message(flag=1 << 40)
    result = store.put_batch([message(), bad, message()])
    assert result.status is PutStatus.MESSAGE_ILLEGAL
    assert store.max_physical_offset == before
    assert not any(log_bytes(tmp_path)[before : before + 1000])
    assert store.put([message()])[0].queue_offset == 1


def test_one_bad_message_does_not_harm_its_neighbours(open_store: OpenStore) -> None:
    store = open_store()
    results = store.put([message(), message(queue_id=-1), message(flag=1 << 40), message()])
    assert [r.status.name for r in results] == [
        "PUT_OK",
        "MESSAGE_ILLEGAL",
        "MESSAGE_ILLEGAL",
        "PUT_OK",
    ]
    assert [r.queue_offset for r in results if r.ok] == [0, 1]
    dispatch(store)
    assert len(read_all(store)) == 2


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"topic": "t" * 256}, "MESSAGE_ILLEGAL", "256 bytes long; 1 to 255"),
        ({"topic": ""}, "MESSAGE_ILLEGAL", "0 bytes long"),
        ({"topic": "../up"}, "MESSAGE_ILLEGAL", "folder's name"),
        ({"body": b"x" * 5000}, "MESSAGE_ILLEGAL", "maxMessageSize"),
        ({"properties": "k\x01" + "v" * 32767}, "PROPERTIES_SIZE_EXCEEDED", "limit"),
        ({"queue_id": 1 << 31}, "MESSAGE_ILLEGAL", "out of range"),
    ],
)
def test_what_is_too_long_is_refused_with_its_limit(
    open_store: OpenStore, fields: dict[str, object], status: str, words: str
) -> None:
    store = open_store(max_message_size=4096)
    result = store.put([message(**fields)])[0]  # type: ignore[arg-type]
    assert result.status.name == status
    assert words in result.reason


def test_a_message_larger_than_a_file_is_refused(open_store: OpenStore) -> None:
    store = open_store()
    results = store.put([message(), message(body=b"x" * 70_000), message()])
    assert [r.ok for r in results] == [True, False, True]
    assert "mappedFileSizeCommitLog" in results[1].reason
    assert not store.put_batch([message(body=b"x" * 40_000)] * 2).ok


def test_the_store_time_never_goes_back(open_store: OpenStore, clock: ManualClock) -> None:
    store = open_store()
    first = store.put([message()])[0]
    clock.time_ms -= 3_600_000
    second = store.put([message()])[0]
    clock.time_ms += 7_200_000
    third = store.put([message()])[0]
    times = [first.store_timestamp, second.store_timestamp, third.store_timestamp]
    assert times == sorted(times)
    assert times[2] == clock.time_ms


@pytest.mark.parametrize("kind", [TRANSACTION_PREPARED, TRANSACTION_ROLLBACK])
def test_prepared_and_rolled_back_messages_get_no_queue_entry(
    open_store: OpenStore, kind: int
) -> None:
    store = open_store()
    results = store.put([message(), message(sys_flag=kind), message()])
    dispatch(store)
    assert [r.queue_offset for r in results] == [0, 0, 1]
    assert store.max_offset("T", 0) == 2
    assert store.dispatched_offset == store.max_physical_offset


def test_a_file_that_cannot_be_made_fails_the_put_with_the_reason(open_store: OpenStore) -> None:
    disk = FaultyDisk()
    store = open_store(disk=disk)
    assert store.put([message()])[0].ok
    disk.no_space_for = "commitlog"
    results = store.put([message(body=b"x" * 30_000) for _ in range(4)])
    assert [r.ok for r in results] == [True, True, False, False]
    assert results[2].status is PutStatus.CREATE_MAPEDFILE_FAILED
    assert "No space left" in results[2].reason and "commitlog" in results[2].reason
    disk.no_space_for = ""
    assert store.put([message(body=b"x" * 30_000)])[0].ok
    dispatch(store)
    assert [m.queue_offset for m in read_all(store)] == [0, 1, 2, 3]


@pytest.mark.parametrize("body", [b"small", b"x" * 5000])
def test_a_write_that_fails_half_way_is_refused_and_leaves_no_trace(
    body: bytes, open_store: OpenStore
) -> None:
    disk = FaultyDisk()
    store = open_store(disk=disk)
    store.put([message(body=b"before"), message(queue_id=1)])
    disk.fail_write_of = "commitlog"
    refused = store.put([message(body=body), message(queue_id=1), message(body=body)])
    assert {result.status for result in refused} == {PutStatus.CREATE_MAPEDFILE_FAILED}
    assert "could not be written to" in refused[0].reason
    assert "Input/output error" in refused[0].reason
    batch = store.put_batch([message(body=body), message(body=body)])
    assert batch.status is PutStatus.CREATE_MAPEDFILE_FAILED
    new_queue = store.put([message(topic="new")])
    assert new_queue[0].status is PutStatus.CREATE_MAPEDFILE_FAILED
    disk.fail_write_of = ""
    assert store.put([message(body=b"after")])[0].queue_offset == 1
    dispatch(store)
    assert [each.body for each in read_all(store)] == [b"before", b"after"]
    abandon(store)
    again = open_store()
    assert [each.body for each in read_all(again)] == [b"before", b"after"]
    assert again.max_offset("new", 0) == 0


def test_nothing_is_left_of_a_batch_whose_second_write_failed_and_could_not_be_undone(
    open_store: OpenStore, tmp_path: Path
) -> None:
    """The first message of a queue is written by itself."""
    disk = FaultyDisk()
    store = open_store(disk=disk)
    write = DiskFaults(disk, fail_from=2)
    refused = store.put_batch([message(body=b"first"), message(body=b"second" * 50)])
    assert refused.status is PutStatus.CREATE_MAPEDFILE_FAILED
    assert b"second" in log_bytes(tmp_path), "half of it was written"
    write.heal()
    assert store.put([message(body=b"new")])[0].physical_offset == 0
    assert b"second" not in log_bytes(tmp_path)


class DiskFaults:
    """Writes of the log fail from one on, the first of them half way."""

    def __init__(self, disk: FaultyDisk, fail_from: int) -> None:
        self._disk = disk
        self._left = fail_from
        self._real = disk.check
        disk.check = self._check  # type: ignore[method-assign]

    def _check(self, call: str, path: str) -> None:
        if call == "write" and "/commitlog/" in path:
            self._left -= 1
            if self._left == 0:
                raise ShortWrite(path)
            if self._left < 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        self._real(call, path)

    def heal(self) -> None:
        self._disk.check = self._real  # type: ignore[method-assign]


def test_the_body_crc_is_kept_in_31_bits(open_store: OpenStore) -> None:
    store = open_store()
    result = store.put([message(body=b"hi")])[0]
    raw = store.record_at(result.physical_offset)
    assert raw is not None
    assert raw[8:12].hex() == "58932aac"
    assert zlib.crc32(b"hi") == 0xD8932AAC
