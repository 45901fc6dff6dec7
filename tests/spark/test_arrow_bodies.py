"""A pull's body and its properties as columns."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
import pytest
from spark.hosts import BASE_MS, V4, V6
from spark.store_writer import write_store

from aerobee.pipeline import arrow
from aerobee.pipeline.columns import COLUMNS, UnknownColumn
from aerobee.protocol.files import properties
from aerobee.protocol.files.record import (
    COMPRESSED,
    Message,
    StoredMessage,
    decode_record,
    decode_records,
    encode_record,
)
from aerobee.protocol.files.record_columns import record_positions
from aerobee.protocol.files.record_layout import CorruptRecord

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
