"""Checks thousands of records of the log at once and returns their header fields as columns.

Only plain records pass: V1, IPv4 hosts, all lengths and checksums right. A block ends before the
first record that is unusual or damaged; `record_scan` decides on that one.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from aerobee.protocol.files.crc import crc32_large as crc32
from aerobee.protocol.files.properties import PAIR_END
from aerobee.protocol.files.record_columns import Column, Cut, groups, record_bounds, rows
from aerobee.protocol.files.record_layout import (
    CRC_LIKENESS,
    CRC_MASK,
    CRC_NAME,
    CRC_PROPERTY_SIZE,
    HEAD_V4_SIZE,
    CorruptRecord,
)

_NAME: Final = np.frombuffer(CRC_NAME, np.uint8)
_DIGITS: Final = slice(len(CRC_NAME), CRC_PROPERTY_SIZE - 1)
_TENS: Final = 10 ** np.arange(10, dtype=np.int64)


@dataclass(slots=True)
class Block:
    """Valid, adjacent records; one column per field, positions in the file."""

    start: Column
    end: Column
    queue_id: Column
    queue_offset: Column
    sys_flag: Column
    time: Column
    body_crc: Column
    body_end: Column
    topic_size: Column
    props_at: Column

    def __len__(self) -> int:
        return len(self.start)

    def cut(self, first: int, last: int | None = None) -> Block:
        return Block(*(getattr(self, column.name)[first:last] for column in fields(self)))

    def up_to_first_not(self, good: Column) -> Block:
        return self if good.all() else self.cut(0, int(np.argmin(good)))


def read_block(
    view: memoryview, base: int, position: int, end: int, count: int, *, check_crc: bool
) -> Block:
    """Up to `count` plain, valid records from `position` on. `base`: the file's start."""
    starts = record_bounds(view, position, end, count)[:-1]
    data = np.frombuffer(view, np.uint8)
    while True:
        try:
            cut = Cut(data, starts)
            break
        except CorruptRecord as error:
            starts = starts[: np.searchsorted(starts, error.position)]
    head = cut.heads
    block = Block(
        starts,
        cut.ends,
        head["queue_id"].astype(np.int64),
        head["queue_offset"].astype(np.int64),
        cut.sys_flag,
        head["store_timestamp"].astype(np.int64),
        head["body_crc"].astype(np.int64),
        cut.body_ends,
        cut.topic_ends - cut.topic_starts,
        cut.props_at,
    )
    block = block.up_to_first_not(
        cut.is_plain & (head["physical_offset"] == starts + base) & (block.topic_size > 0)
    )
    return _check_sums(view, block) if check_crc and len(block) else block


def _check_sums(view: memoryview, block: Block) -> Block:
    """Check the record's own checksum if it has one, else the body's, and that texts have no zeros:
    a sector that was never written reads as zeros."""
    tail_at = block.end - CRC_PROPERTY_SIZE
    tails = rows(view, tail_at, CRC_PROPERTY_SIZE)
    matches = tails[:, : len(_NAME)] == _NAME
    ends = tails[:, -1] == ord(PAIR_END)
    own = matches.all(1) & (tail_at >= block.props_at)
    first = np.where(own, block.start, block.start + HEAD_V4_SIZE).tolist()
    last = np.where(own, tail_at, block.body_end).tolist()
    sums = [crc32(view[a:b]) for a, b in zip(first, last, strict=True)]
    crc = np.array(sums, np.int64) & CRC_MASK
    good = np.zeros(len(block), bool)
    if own.any():
        digits = tails[:, _DIGITS].astype(np.int64) - ord("0")
        is_number = ((digits >= 0) & (digits <= 9)).all(1) & ends
        good = own & is_number & (digits @ _TENS == crc)
    if not own.all():
        was_own = matches.sum(1) + ends >= CRC_LIKENESS
        torn = _has_zero(view, block.body_end + 1, block.topic_size)
        torn |= _has_zero(view, block.props_at, block.end - block.props_at)
        good |= ~own & ~was_own & ~torn & (crc == block.body_crc)
    return block.up_to_first_not(good)


def _has_zero(view: memoryview, at: Column, sizes: Column) -> Column:
    found = np.zeros(len(at), bool)
    for size, which in groups(sizes):
        texts = rows(view, at[which], size)
        if b"\0" in texts.tobytes():
            found[which] = (texts == 0).any(1)
    return found
