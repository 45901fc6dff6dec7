"""The checkpoint's page: RocketMQ's fields where it has them, ours beside them."""

from __future__ import annotations

import struct
from dataclasses import replace

import crcmod.predefined
import pytest

from aerobee.protocol.files.checkpoint import PAGE_SIZE, StoreCheckpoint, decode_checkpoint

POINT = StoreCheckpoint(11, 22, 33, 44, 55, 6_000_000, 20231114221320000, 77)
TIMES = StoreCheckpoint(11, 22, 33, 44, 55)


def old_page(point: StoreCheckpoint) -> bytes:
    """As it was written while our mark stood where 5.5 has an offset."""
    fields = struct.pack(
        ">5q8s3q",
        point.physic_msg_timestamp,
        point.logics_msg_timestamp,
        point.index_msg_timestamp,
        point.master_flushed_offset,
        point.confirm_physical_offset,
        b"AEROBEE1",
        point.dispatched_offset,
        point.index_file,
        point.index_count,
    )
    crc = crcmod.predefined.mkCrcFun("crc-32c")(fields)
    return (fields + crc.to_bytes(4, "big")).ljust(PAGE_SIZE, b"\0")


def test_a_page_says_what_was_put_into_it() -> None:
    page = POINT.encode()
    assert len(page) == PAGE_SIZE
    assert decode_checkpoint(page) == POINT
    assert not any(page[512:])  # one sector: a disk writes it whole


def test_rocketmq_finds_its_fields_in_ours() -> None:
    assert struct.unpack_from(">6q", POINT.encode()) == (11, 22, 33, 44, 55, 6_000_000)


def test_an_offset_that_is_not_known_is_none_for_rocketmq() -> None:
    page = replace(POINT, dispatched_offset=-1).encode()
    assert struct.unpack_from(">q", page, 40) == (0,)


def test_a_page_of_the_old_form_is_understood() -> None:
    assert decode_checkpoint(old_page(POINT)) == POINT


@pytest.mark.parametrize("at", range(0, 48, 8))
def test_what_rocketmq_writes_takes_our_claims_away(at: int) -> None:
    """It leaves the bytes behind its own alone: what they say may be of an older log."""
    page = bytearray(POINT.encode())
    struct.pack_into(">q", page, at, 99)
    found = decode_checkpoint(bytes(page))
    assert (found.dispatched_offset, found.index_file, found.index_count) == (-1, 0, 0)


def test_an_old_page_that_5_5_has_written_since_is_not_ours() -> None:
    page = bytearray(old_page(POINT))
    struct.pack_into(">q", page, 40, 5_000_000)
    assert decode_checkpoint(bytes(page)) == TIMES


def test_a_flipped_bit_of_our_part_takes_it_away() -> None:
    for at in range(256, 292):
        page = bytearray(POINT.encode())
        page[at] ^= 0x10
        assert decode_checkpoint(bytes(page)) == TIMES, at


@pytest.mark.parametrize("length", [0, 40, 100, 300, 4095])
def test_a_short_page_says_nothing(length: int) -> None:
    assert decode_checkpoint(POINT.encode()[:length]) == StoreCheckpoint()
