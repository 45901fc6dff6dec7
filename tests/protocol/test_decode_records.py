"""The decoder of many records gives what that of one gives, one by one, or its error."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee.protocol.files.record import (
    Message,
    StoredMessage,
    decode_record,
    decode_records,
    encode_record,
)
from aerobee.protocol.files.record_layout import CorruptRecord

HOSTS = st.sampled_from([b"\x7f\x00\x00\x01\x00\x00\x2a\x9f", bytes(range(20))])
RECORDS = st.builds(
    lambda message, offset, crc: encode_record(message, offset, offset * 7, 5, append_crc=crc),
    st.builds(
        Message,
        topic=st.sampled_from(["t", "a-topic", "x" * 127, "x" * 200]),
        queue_id=st.integers(0, 100),
        body=st.binary(max_size=300),
        properties=st.sampled_from(["", "TAGS\x01a\x02", "KEYS\x01ключ\x02"]),
        born_host=HOSTS,
        store_host=HOSTS,
    ),
    st.integers(0, 2**40),
    st.booleans(),
)


def one_by_one(data: bytes, check: bool = False) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    position = 0
    while position < len(data):
        found.append(decode_record(data, position, check=check))
        position += found[-1].size
    return found


def plain(messages: Iterable[StoredMessage]) -> list[tuple[Any, ...]]:
    return [msgspec.structs.astuple(message) for message in messages]


@given(st.lists(RECORDS, max_size=8))
def test_it_decodes_what_the_decoder_of_one_decodes(records: list[bytes]) -> None:
    data = b"".join(records)
    assert plain(decode_records(data)) == plain(one_by_one(data))


@given(st.lists(RECORDS, min_size=1, max_size=3), st.data())
def test_damage_is_met_as_the_decoder_of_one_meets_it(
    records: list[bytes], data: st.DataObject
) -> None:
    whole = bytearray(b"".join(records))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    damaged = bytes(whole[: data.draw(st.integers(1, len(whole)))])
    try:
        found = plain(decode_records(damaged))
    except CorruptRecord:
        with pytest.raises(CorruptRecord):
            one_by_one(damaged, check=True)
    else:
        assert found == plain(one_by_one(damaged))


@given(st.lists(RECORDS, min_size=1, max_size=3), st.data())
def test_a_flipped_bit_is_never_decoded(records: list[bytes], data: st.DataObject) -> None:
    whole = bytearray(b"".join(records))
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    whole[bit // 8] ^= 1 << bit % 8
    try:
        found = plain(decode_records(bytes(whole)))
    except CorruptRecord:
        return
    # Without a checksum of the whole only the body has one.
    bodies = [message.body for message in one_by_one(b"".join(records))]
    assert [fields[2] for fields in found] == bodies
