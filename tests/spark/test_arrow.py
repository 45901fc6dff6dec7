"""The bulk decoder and the store reader, without Spark: the same values as the plain decoder."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from spark.store_writer import StoreWriter, write_store

from aerobee.pipeline import arrow
from aerobee.pipeline.columns import COLUMNS, UnknownColumn
from aerobee.pipeline.source.store_files import StoreError
from aerobee.pipeline.source.topic_filter import topic_filter
from aerobee.protocol.files import properties
from aerobee.protocol.files.java_hash import index_hash
from aerobee.protocol.files.record import (
    COMPRESSED,
    TRANSACTION_PREPARED,
    Message,
    StoredMessage,
    decode_record,
    decode_records,
    encode_record,
)
from aerobee.protocol.files.record_columns import record_positions
from aerobee.protocol.files.record_layout import CorruptRecord

BASE_MS = 1_700_000_000_000
V4 = bytes([10, 1, 2, 3, 0, 0, 0x13, 0x88])
V6 = bytes.fromhex("20010db8000000000000000000000001") + bytes([0, 0, 0x13, 0x88])
ODD_PROPERTIES = (
    "",
    "TAGS\x01TagA\x02KEYS\x01k1 k2\x02UNIQ_KEY\x01ABC\x02",
    "TAGS\x01TagA\x02KEYS\x01k1",  # no last mark, as 4.9 to 5.1 write it
    "\x02\x01nameless\x02valueless\x01\x02alone\x02X\x01a\x01b\x02TAGS\x01q",
    "\x02\x02TAGS\x01é中文\x02",
    "KEYSX\x01no key\x02XKEYS\x01neither\x02",
    "\x01",
)


def odd_message(number: int, rng: random.Random) -> Message:
    return Message(
        "t" * 140 if number % 11 == 5 else f"topic-{number % 3}",
        number % 4,
        rng.randbytes(rng.choice((0, 1, 30, 700))),
        ODD_PROPERTIES[number % len(ODD_PROPERTIES)],
        flag=number - 5,
        born_timestamp=BASE_MS + number,
        born_host=V6 if number % 5 == 1 else V4,
        store_host=V6 if number % 7 == 2 else V4,
        reconsume_times=number % 3,
    )


def expected_row(message: StoredMessage) -> dict[str, object]:
    pairs = {name: v for name, v in message.property_map().items() if name != "__CRC32#"}
    return {
        "key": pairs["KEYS"].encode() if "KEYS" in pairs else None,
        "value": message.body,
        "topic": message.topic,
        "partition": message.queue_id,
        "offset": message.queue_offset,
        "timestamp": datetime.fromtimestamp(message.store_timestamp / 1000, UTC),
        "tags": pairs.get("TAGS"),
        "properties": pairs,
        "bornTimestamp": datetime.fromtimestamp(message.born_timestamp / 1000, UTC),
        "messageId": pairs.get("UNIQ_KEY", message.message_id),
        "offsetMessageId": message.message_id,
        "reconsumeTimes": message.reconsume_times,
        "bornHost": "[2001:db8::1]:5000" if message.sys_flag & 16 else "10.1.2.3:5000",
        "storeHost": "[2001:db8::1]:5000" if message.sys_flag & 32 else "10.1.2.3:5000",
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "broker": "broker-a",
        "headers": [{"key": k, "value": v.encode()} for k, v in pairs.items()],
        "keys": pairs["KEYS"].split(" ") if "KEYS" in pairs else None,
        "storeTimestamp": datetime.fromtimestamp(message.store_timestamp / 1000, UTC),
        "physicalOffset": message.physical_offset,
        "storeSize": message.size,
        "bodyCrc": message.body_crc,
        "preparedTransactionOffset": message.prepared_transaction_offset,
    }


@pytest.mark.parametrize("seed", range(8))
def test_every_column_equals_what_the_plain_decoder_says(seed: int) -> None:
    rng = random.Random(seed)
    numbers = [rng.randrange(1000) for _ in range(rng.choice((1, 2, 300)))]
    body = b""
    for number in numbers:
        message = odd_message(number, rng)
        body += encode_record(
            message, number, 10_000 + number, BASE_MS + number, append_crc=number % 2 == 0
        )
    batch = arrow.decode(body, tuple(COLUMNS), broker="broker-a")
    batch.validate(full=True)
    rows = batch.to_pylist(maps_as_pydicts="strict")
    assert rows == [expected_row(message) for message in decode_records(body)]


def test_compressed_bodies_are_given_decompressed() -> None:
    text = b"a body that was worth it " * 200
    with pa.BufferOutputStream() as sink:
        with pa.CompressedOutputStream(sink, "lz4") as stream:
            stream.write(text)
        lz4 = sink.getvalue().to_pybytes()
    with pa.BufferOutputStream() as sink:
        with pa.CompressedOutputStream(sink, "zstd") as stream:
            stream.write(text)
        zstd = sink.getvalue().to_pybytes()
    forms = [(text, 0), (zlib.compress(text), 0x1), (zlib.compress(text), 0x301)]
    forms += [(lz4, 0x101), (zstd, 0x201)]
    body = b"".join(
        encode_record(Message("t", 0, data, sys_flag=flags), n, 0, BASE_MS)
        for n, (data, flags) in enumerate(forms)
    )
    assert arrow.decode(body, ["value"]).to_pydict() == {"value": [text] * 5}


def test_bodies_that_decompress_to_much_come_in_more_batches(tmp_path: Path) -> None:
    """A batch of thousands of them would not fit into Arrow's 2 GiB, nor into a worker."""
    large = zlib.compress(bytes(4 * 1024 * 1024))
    message = Message("t", 0, large, sys_flag=COMPRESSED)
    small = Message("t", 0, b"small")
    rows = [(small if n % 3 else message, BASE_MS + n) for n in range(150)]
    store = write_store(tmp_path / "store", rows, file_size=1 << 20, queue_entries=200)
    offsets: list[int] = []
    for batch in arrow.read_store(str(store), columns=["offset", "value"]):
        assert batch.nbytes < 80 * 1024 * 1024
        offsets += batch.column("offset").to_pylist()
        for row, value in zip(batch.column("offset"), batch.column("value"), strict=True):
            assert len(value.as_buffer()) == (5 if row.as_py() % 3 else 4 * 1024 * 1024)
    assert offsets == list(range(150))


def test_a_body_that_cannot_be_decompressed_is_an_error_that_says_where() -> None:
    body = encode_record(Message("t", 0, b"not zlib", sys_flag=COMPRESSED), 0, 0, BASE_MS)
    with pytest.raises(CorruptRecord, match="at 0: its body cannot be decompressed"):
        arrow.decode(body, ["value"])


@pytest.mark.parametrize("at", [0, 4, 84, 93, 99])
def test_a_damaged_length_or_magic_is_an_error_and_never_a_row(at: int) -> None:
    sound = encode_record(Message("topic", 0, b"body!", "A\x01b\x02"), 0, 0, BASE_MS)
    damaged = bytearray(sound * 2)
    damaged[len(sound) + at] ^= 0x55
    with pytest.raises(CorruptRecord):
        arrow.decode(bytes(damaged))


def test_a_column_that_does_not_exist_is_refused_with_the_list_of_those_that_do() -> None:
    with pytest.raises(UnknownColumn, match="no column 'body'; the columns are key, value"):
        arrow.schema(["body"])


def small_message(number: int) -> Message:
    tag = f"TAGS\x01tag-{number % 2}\x02"
    return Message(f"topic-{number % 3}", number % 2, b"%06d" % number * 20, tag)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """3000 messages in 3 topics, a second apart, over a dozen log files."""
    rows = ((small_message(n), BASE_MS + n * 1000) for n in range(3000))
    return write_store(tmp_path / "store", rows, queue_entries=128)


def numbers(batches: object) -> list[int]:
    return [int(v[:6]) for batch in batches for v in batch.column("value").to_pylist()]  # type: ignore[attr-defined]


def test_a_store_is_read_in_log_order_across_files(store: Path) -> None:
    assert len(list((store / "commitlog").iterdir())) > 8
    assert numbers(arrow.read_store(str(store), batch_rows=100)) == list(range(3000))


def test_topics_tags_and_times_select_the_messages(store: Path) -> None:
    path = str(store)
    assert numbers(arrow.read_store(path, topics=["topic-1"])) == list(range(1, 3000, 3))
    assert numbers(arrow.read_store(path, topic_pattern="topic-[02]")) == [
        n for n in range(3000) if n % 3 != 1
    ]
    assert numbers(arrow.read_store(path, tags=["tag-1"])) == list(range(1, 3000, 2))
    start = datetime.fromtimestamp(BASE_MS / 1000 + 1000, UTC)
    assert numbers(arrow.read_store(path, start=start, end=BASE_MS + 1_500_000)) == list(
        range(1000, 1500)
    )


def test_files_outside_the_times_and_without_the_topic_are_not_read(store: Path) -> None:
    path = str(store)
    everything = arrow.store_splits(path)
    late = arrow.store_splits(path, start=BASE_MS + 2_900_000)
    assert 1 <= len(late) <= 2 < len(everything)
    assert arrow.store_splits(path, topics=["nobody"]) == []


def test_splits_of_any_size_hold_every_message_once(store: Path) -> None:
    from aerobee.pipeline.source.split_reader import Selection, read_split

    selection = Selection(("value",), topic_filter(None, None))
    for split_bytes in (1000, 10_000, 1 << 30):
        splits = arrow.store_splits(str(store), split_bytes=split_bytes)
        rows = [number for split in splits for number in numbers(read_split(split, selection))]
        assert rows == list(range(3000))


def test_a_log_without_consume_queues_is_walked(store: Path) -> None:
    log = str(store / "commitlog")
    assert numbers(arrow.read_store(log)) == list(range(3000))
    assert numbers(arrow.read_store(log, topics=["topic-2"])) == list(range(2, 3000, 3))


def test_records_that_no_queue_knows_yet_are_found_and_half_messages_are_not(
    tmp_path: Path,
) -> None:
    writer = StoreWriter(tmp_path / "store")
    for number in range(600):
        message = small_message(number)
        if number == 590:
            message.sys_flag = TRANSACTION_PREPARED
        writer.add(message, BASE_MS, dispatch=number < 580)
    found = numbers(arrow.read_store(str(writer.close())))
    assert found == [n for n in range(600) if n != 590]


@pytest.mark.parametrize("flushed", [None, 0, 300, 570, 599])
def test_after_a_crash_queues_that_lost_their_last_entries_cost_no_message(
    tmp_path: Path, flushed: int | None
) -> None:
    """Their files come to the disk one by one: what one knows, another may have lost. Only the
    entries of records before the checkpoint's time are sure to be there."""
    writer = StoreWriter(tmp_path / "store")
    for number in range(600):
        lost = number > (flushed or 0) and number % 3 == 1
        writer.add(small_message(number), BASE_MS + number * 10, dispatch=not lost)
    store = writer.close()
    (store / "abort").touch()
    if flushed is not None:
        times = [BASE_MS + flushed * 10] * 3
        (store / "checkpoint").write_bytes(struct.pack(">qqq", *times).ljust(4096, b"\0"))
    assert numbers(arrow.read_store(str(store))) == list(range(600))
    assert numbers(arrow.read_store(str(store), topics=["topic-1"])) == list(range(1, 600, 3))


def test_damage_where_the_queues_end_is_an_error_unless_the_log_ends_there(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "store")
    places = [
        writer.add(small_message(number), BASE_MS, dispatch=number < 100) for number in range(600)
    ]
    store = writer.close()
    file = store / "commitlog" / f"{0:020d}"
    data = bytearray(file.read_bytes())
    data[places[100] + 4] ^= 0xFF
    file.write_bytes(data)
    with pytest.raises(StoreError, match=f"damaged at {places[100]}: "):
        numbers(arrow.read_store(str(store)))


def test_sealed_only_leaves_out_the_newest_file(store: Path) -> None:
    sealed = numbers(arrow.read_store(str(store), sealed_only=True))
    assert sealed == list(range(len(sealed))) and 2500 < len(sealed) < 3000


def test_damage_in_a_walked_file_is_an_error_that_names_the_place(store: Path) -> None:
    file = sorted((store / "commitlog").iterdir())[2]
    data = bytearray(file.read_bytes())
    (size,) = struct.unpack_from(">i", data)
    data[size + 90] ^= 0xFF  # in the second record's body
    file.write_bytes(data)
    with pytest.raises(
        StoreError, match=f"damaged at {int(file.name) + size}: the record does not"
    ):
        numbers(arrow.read_store(str(store / "commitlog")))


@pytest.mark.parametrize("folder", ["", "commitlog"])
def test_a_file_whose_first_record_is_damaged_is_an_error_and_not_left_out(
    store: Path, folder: str
) -> None:
    file = sorted((store / "commitlog").iterdir())[2]
    data = bytearray(file.read_bytes())
    data[4] ^= 0xFF  # its magic
    file.write_bytes(data)
    some: dict[str, Any] = {"start": BASE_MS + 100_000, "end": BASE_MS + 1_000_000}
    for times in ({}, some):
        with pytest.raises(StoreError, match=f"damaged at {int(file.name)}: "):
            numbers(arrow.read_store(str(store / folder), **times))


def test_the_newest_file_damaged_at_its_start_is_an_error_when_queues_know_of_it(
    store: Path,
) -> None:
    file = max((store / "commitlog").iterdir())
    file.write_bytes(b"\xff" * 8 + file.read_bytes()[8:])
    with pytest.raises(StoreError, match=f"damaged at {int(file.name)}: "):
        numbers(arrow.read_store(str(store)))
    sealed = numbers(arrow.read_store(str(store), sealed_only=True))
    assert sealed == list(range(len(sealed))) and 2500 < len(sealed) < 3000


def test_damage_of_a_record_that_a_queue_knows_is_told_by_its_place_in_the_log(
    store: Path,
) -> None:
    file = sorted((store / "commitlog").iterdir())[2]
    data = bytearray(file.read_bytes())
    (size,) = struct.unpack_from(">i", data)
    data[size + 4] ^= 0xFF
    file.write_bytes(data)
    with pytest.raises(StoreError, match=f"damaged at {int(file.name) + size}: its magic"):
        numbers(arrow.read_store(str(store)))


def test_a_time_that_no_timestamp_holds_is_null() -> None:
    """Times come from clients: one in nanoseconds must not turn up as a day in another century."""
    last = 253_402_300_799_999  # of the year 9999, the last that SQL and Python know
    times = [BASE_MS, BASE_MS * 1_000_000, 2**63 - 1, -(2**63), -1, last, last + 1]
    body = b"".join(
        encode_record(Message("t", 0, b"", born_timestamp=ms), n, 0, BASE_MS)
        for n, ms in enumerate(times)
    )
    column = arrow.decode(body, ["bornTimestamp"]).column(0).cast(pa.int64())
    assert column.to_pylist() == [BASE_MS * 1000, None, None, None, -1000, last * 1000, None]


def test_an_audit_tells_of_a_queue_file_that_was_cut_inside_an_entry(store: Path) -> None:
    from aerobee.pipeline.jobs.store_audit import audit_parts, check_part

    file = sorted((store / "consumequeue" / "topic-1" / "1").iterdir())[1]
    with file.open("r+b") as opened:
        opened.truncate(20 * 5 + 7)
    findings = [one for part in audit_parts(str(store)) for one in check_part(part).findings]
    queue = [one for one in findings if one.file == str(file)]
    assert [one.problem for one in queue if "107 bytes" in one.problem]
    lost = [one.problem for one in findings if one not in queue]
    assert "the record has no entry 133 in queue topic-1/1" in lost


def test_an_audit_knows_the_tags_that_rocketmq_5_5_keeps_in_the_index(store: Path) -> None:
    from aerobee.pipeline.jobs.store_audit import audit_parts, check_part

    hashes = [index_hash("topic-0", key) for key in ("T#tag-0", "T#tag-1")]
    chained = zip((0, *hashes), (0, 0, 1), strict=True)
    entries = b"".join(struct.pack(">iqii", key_hash, 0, 0, prev) for key_hash, prev in chained)
    header = struct.pack(">qqqqii", BASE_MS, BASE_MS, 0, 0, 1, 3)
    data = header + struct.pack(">i", 2) + entries + bytes(20)
    (store / "index").mkdir()
    (store / "index" / "20260101000000000").write_bytes(data)
    tasks = [task for task in audit_parts(str(store)) if task.part.kind == "index"]
    report = check_part(tasks[0])
    assert report.checked == 2
    (finding,) = report.findings
    assert finding.problem.startswith("index entry 2: no record at 0 has")  # it has tag-0


def test_a_reader_for_duckdb_and_polars_has_the_schema_before_the_first_row(store: Path) -> None:
    reader = arrow.open_store(str(store), columns=["topic", "offset"], topics=["topic-0"])
    assert reader.schema.names == ["topic", "offset"]
    assert reader.read_all().num_rows == 1000


def test_a_folder_that_is_no_store_is_refused_with_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds no commitlog file"):
        list(arrow.read_store(str(tmp_path)))
    with pytest.raises(StoreError, match="is not a folder"):
        list(arrow.read_store(str(tmp_path / "missing")))


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="has no time zone"):
        list(arrow.read_store("/", start=datetime(2026, 1, 1)))


def test_property_strings_of_random_bytes_parse_as_the_plain_parser_does() -> None:
    rng = random.Random(7)
    texts = ["".join(rng.choices("aTAGS\x01\x02", k=rng.randrange(30))) for _ in range(3000)]
    texts = [text for text in texts if len(properties.parse(text)) == _pairs(text)]
    body = b"".join(encode_record(Message("t", 0, b"", t), n, 0, 0) for n, t in enumerate(texts))
    rows = arrow.decode(body, ["properties", "tags"]).to_pylist(maps_as_pydicts="strict")
    assert [row["properties"] for row in rows] == [properties.parse(text) for text in texts]
    assert [row["tags"] for row in rows] == [properties.parse(t).get("TAGS") for t in texts]


@pytest.mark.parametrize("last", ["\x02", ""])
def test_properties_with_the_same_names_in_every_record_parse_as_the_plain_parser_does(
    last: str,
) -> None:
    rng = random.Random(11)
    shapes: list[tuple[str, ...]] = [("KEYS", "TAGS", "UNIQ_KEY"), ("a",), ("__CRC32#",)]
    shapes += [("TAGS", "__CRC32#"), ("x", "__CRC32#", "y")]
    for names in shapes:
        texts = [
            "\x02".join(f"{name}\x01{'v' * rng.randrange(1, 9)}" for name in names) + last
            for _ in range(50)
        ]
        for odd in (None, f"TAGX\x01v{last}", "", f"KEYS\x01{last}", "a\x01b\x01c\x02"):
            some = texts if odd is None else [*texts[:20], odd, *texts[20:]]
            check_properties(some)


def check_properties(texts: list[str]) -> None:
    messages = [Message("t", 0, b"", text) for text in texts]
    body = b"".join(encode_record(one, n, 0, 0, append_crc=False) for n, one in enumerate(messages))
    batch = arrow.decode(body, ["properties", "tags", "headers", "messageId", "key"])
    batch.validate(full=True)
    for row, stored in zip(
        batch.to_pylist(maps_as_pydicts="strict"), one_by_one(body), strict=True
    ):
        assert row == {name: expected_row(stored)[name] for name in row}


def one_by_one(body: bytes) -> Iterator[StoredMessage]:
    """The records as they stand there: a checksum that is none is no matter here."""
    position = 0
    while position < len(body):
        message = decode_record(body, position)
        yield message
        position += message.size


def test_records_of_any_mix_of_sizes_are_found_in_a_body() -> None:
    rng = random.Random(5)
    for sizes in ([7], [40] * 500, [rng.randrange(90) for _ in range(3000)], [5] * 99 + [6] * 99):
        records = [
            encode_record(Message("t", 0, bytes(size)), n, 0, 0) for n, size in enumerate(sizes)
        ]
        positions = record_positions(b"".join(records))
        assert positions.tolist() == [0, *accumulate(len(record) for record in records)][:-1]


@pytest.mark.parametrize("size", [0, -1, 10_000])
@pytest.mark.parametrize("row", [0, 40, 99])
def test_a_record_of_a_wrong_size_in_a_body_is_an_error_that_says_where(
    row: int, size: int
) -> None:
    record = encode_record(Message("t", 0, b"body"), 0, 0, 0)
    body = bytearray(record * 100)
    struct.pack_into(">i", body, row * len(record), size)
    with pytest.raises(CorruptRecord, match=f"{row * len(record)}.*size {size} "):
        record_positions(bytes(body))


def _pairs(text: str) -> int:
    """Pairs with a name and a value: more than the parser keeps when a name comes twice."""
    return sum(
        1 for p in text.split("\x02") if (c := p.partition("\x01")) and c[0] and c[1] and c[2]
    )
