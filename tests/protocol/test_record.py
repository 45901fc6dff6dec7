"""Records and batches: the format's example, round trips, and wrong values in every length."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee.protocol.files.batch import check_batch, decode_batch, encode_batch
from aerobee.protocol.files.ids import (
    UniqueIds,
    decode_host,
    encode_host,
    offset_message_id,
    parse_offset_message_id,
)
from aerobee.protocol.files.record import (
    Message,
    decode_record,
    decode_records,
    encode_record,
    split_records,
)
from aerobee.protocol.files.record_layout import (
    BORN_HOST_V6,
    CRC_PROPERTY_SIZE,
    MAGIC_V2,
    STORE_HOST_V6,
    CorruptRecord,
)

EXAMPLE = bytes.fromhex(
    "00000068daa320a758932aac000000010000000000000000000000050000000000000064000000000000018b"
    "cfe568000a000001000013880000018bcfe568010a00000200002a9f00000000000000000000000000000002"
    "68690154000a54414753015461674102"
)


def example_message() -> Message:
    return Message(
        "T",
        1,
        b"hi",
        "TAGS\x01TagA\x02",
        born_timestamp=1_700_000_000_000,
        born_host=encode_host("10.0.0.1", 5000),
        store_host=encode_host("10.0.0.2", 10911),
    )


def test_the_example_of_the_format_has_these_bytes() -> None:
    assert encode_record(example_message(), 5, 100, 1_700_000_000_001) == EXAMPLE


def test_the_example_is_read_back() -> None:
    message = decode_record(EXAMPLE, check=True)
    assert (message.topic, message.queue_id, message.body) == ("T", 1, b"hi")
    assert (message.queue_offset, message.physical_offset, message.size) == (5, 100, 104)
    assert message.property_map() == {"TAGS": "TagA"}
    assert message.body_crc == 0x58932AAC
    assert message.message_id == "0A00000200002A9F0000000000000064"


HOSTS = st.sampled_from([encode_host("10.1.2.3", 65535), encode_host("2001:db8::1", 80)])
TEXT = st.text(st.characters(codec="utf-8"), max_size=60)


@given(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=80),
    st.integers(0, 2**31 - 1),
    st.binary(max_size=300),
    TEXT,
    HOSTS,
    HOSTS,
    st.booleans(),
)
def test_every_message_is_read_back_as_it_was_written(
    topic: str,
    queue_id: int,
    body: bytes,
    props: str,
    born_host: bytes,
    store_host: bytes,
    append_crc: bool,
) -> None:
    if not append_crc:  # without a checksum over them, zeros at the end are told from torn ones
        props = props.rstrip("\0")
    message = Message(topic, queue_id, body, props, 3, 1, 5, born_host, store_host, 2, 7)
    record = encode_record(message, 11, 22, 33, append_crc=append_crc)
    [read] = decode_records(record)
    assert decode_record(record, check=True).body == body
    assert (read.topic, read.queue_id, read.body) == (topic, queue_id, body)
    assert (read.born_host, read.store_host) == (born_host, store_host)
    assert bool(read.sys_flag & BORN_HOST_V6) == (len(born_host) == 20)
    assert bool(read.sys_flag & STORE_HOST_V6) == (len(store_host) == 20)
    assert (read.queue_offset, read.physical_offset, read.store_timestamp) == (11, 22, 33)
    assert (read.flag, read.born_timestamp, read.reconsume_times) == (3, 5, 2)
    assert read.prepared_transaction_offset == 7
    assert read.properties.startswith(props)


def test_a_long_topic_takes_the_second_form() -> None:
    record = encode_record(Message("t" * 128, 0, b""), 0, 0, 0)
    assert struct.unpack_from(">i", record, 4)[0] == MAGIC_V2
    assert decode_record(record).topic == "t" * 128


@pytest.mark.parametrize("append_crc", [False, True])
def test_every_flipped_bit_of_a_body_is_seen(append_crc: bool) -> None:
    record = bytearray(encode_record(Message("T", 0, b"abcdefgh"), 0, 0, 0, append_crc=append_crc))
    start = record.index(b"abcdefgh")
    for position in range(start, start + 8):
        for bit in range(8):
            record[position] ^= 1 << bit
            with pytest.raises(CorruptRecord):
                decode_record(record, check=True)
            record[position] ^= 1 << bit
    decode_record(record, check=True)


def test_with_a_checksum_every_flipped_byte_of_a_record_is_seen() -> None:
    message = Message("T", 0, b"abcdefgh", "KEYS\x01k\x02")
    record = bytearray(encode_record(message, 0, 0, 0, append_crc=True))
    for position in range(len(record) - CRC_PROPERTY_SIZE):
        record[position] ^= 0x10
        with pytest.raises(CorruptRecord):
            decode_record(record, check=True)
        record[position] ^= 0x10


@given(st.binary(max_size=200))
def test_bytes_that_are_no_record_raise_nothing_else(data: bytes) -> None:
    with pytest.raises(CorruptRecord):
        decode_record(data)


@given(st.integers(0, len(EXAMPLE) - 1), st.integers(0, 255))
def test_a_damaged_record_never_reads_past_its_end(position: int, value: int) -> None:
    damaged = bytearray(EXAMPLE)
    damaged[position] = value
    try:
        assert decode_record(damaged).size <= len(damaged)
    except CorruptRecord as error:
        assert error.reason


def test_records_are_split_without_decoding_them() -> None:
    assert [bytes(view) for view in split_records(EXAMPLE * 3)] == [EXAMPLE] * 3
    for rest in (1, 3, 4, 50):
        with pytest.raises(CorruptRecord):
            list(split_records(EXAMPLE + EXAMPLE[:rest]))


PARTS = st.lists(st.tuples(st.integers(0, 100), st.binary(max_size=50), TEXT), max_size=6)


@given(PARTS)
def test_a_batch_is_read_back_as_it_was_written(parts: list[tuple[int, bytes, str]]) -> None:
    assert decode_batch(encode_batch(parts)) == parts


@given(PARTS, st.data())
def test_a_batch_whose_lengths_lie_is_refused_or_read_within_its_bytes(
    parts: list[tuple[int, bytes, str]], data: st.DataObject
) -> None:
    body = bytearray(encode_batch([*parts, (0, b"x", "a\x01b\x02")]))
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert sum(len(part[1]) for part in decode_batch(body)) <= len(body)
    except CorruptRecord as error:
        assert error.reason


def test_the_offset_id_of_the_format_is_this() -> None:
    host = encode_host("192.168.0.1", 10911)
    message_id = offset_message_id(host, 123456789)
    assert message_id == "C0A8000100002A9F00000000075BCD15"
    assert parse_offset_message_id(message_id) == (host, 123456789)


def test_an_ipv6_offset_id_has_56_digits() -> None:
    host = encode_host("2001:db8::1", 10911)
    assert len(offset_message_id(host, 1)) == 56
    assert parse_offset_message_id(offset_message_id(host, 1)) == (host, 1)


@pytest.mark.parametrize("text", ["", "xyz", "C0A8", "C0A8000100002A9F00000000075BCD1", "0" * 34])
def test_what_is_no_offset_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an offset message id"):
        parse_offset_message_id(text)


def test_ipv4_in_ipv6_is_kept_as_four_bytes() -> None:
    assert encode_host("::ffff:10.0.0.1", 80) == encode_host("10.0.0.1", 80)
    assert decode_host(encode_host("10.0.0.1", 80)) == ("10.0.0.1", 80)
    assert decode_host(encode_host("::1", 80)) == ("::1", 80)


def test_unique_ids_are_unique_and_have_32_digits() -> None:
    ids = UniqueIds("10.0.0.1")
    made = {ids.next() for _ in range(1000)}
    assert len(made) == 1000
    assert all(len(each) == 32 and each.startswith("0A000001") for each in made)


@given(st.data())
def test_a_batch_is_sound_to_the_check_as_it_is_to_the_decoding(data: st.DataObject) -> None:
    text = st.text(alphabet="aé\x01\x02", max_size=9)
    parts = data.draw(st.lists(st.tuples(st.just(0), st.binary(max_size=9), text), max_size=4))
    body = bytearray(encode_batch(parts))
    for _ in range(data.draw(st.integers(0, 2)) if body else 0):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        count = len(decode_batch(bytes(body)))
    except CorruptRecord:
        with pytest.raises(CorruptRecord):
            check_batch(bytes(body), b"", 32767)
    else:
        assert check_batch(bytes(body), b"", 32767) == count


def test_rows_without_their_name_or_with_too_long_properties_are_no_sound_batch() -> None:
    body = encode_batch([(0, b"x", "NAME\x01q/1\x02"), (0, b"y", "NAME\x01q/2\x02")])
    assert check_batch(body, b"NAME\x01q/", 9) == 2
    with pytest.raises(CorruptRecord, match="do not begin with"):
        check_batch(body, b"NAME\x01q/1", 9)
    with pytest.raises(CorruptRecord, match="properties of 9 bytes; at most 8 fit"):
        check_batch(body, b"NAME", 8)
