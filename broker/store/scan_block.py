"""Checks thousands of records of the log at once and gives what is in their heads as columns.

Only plain records pass: V1, IPv4 hosts, every length and checksum right. A block ends before the
first record that is anything else, be it unusual or damaged; `scan.scan_records` decides on that.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aerobee.broker.store.crc import crc32_large as crc32
from aerobee.protocol.record import (
    BORN_HOST_V6,
    CRC_MASK,
    CRC_PROPERTY_SIZE,
    HEAD_V4_SIZE,
    MAGIC_V1,
    STORE_HOST_V6,
)

Column = NDArray[Any]

LEAST_SIZE: Final = HEAD_V4_SIZE + 4  # a topic of one byte
RUN: Final = 64  # records of one size from which on they are found together
WALK: Final = 1024  # else so many are found one by one
_SIZE: Final = struct.Struct(">i")
_HEAD: Final = np.dtype(
    {
        "names": [
            "magic",
            "body_crc",
            "queue_id",
            "queue_offset",
            "stored",
            "sys_flag",
            "time",
            "body_size",
        ],
        "formats": [">i4", ">i4", ">i4", ">i8", ">i8", ">i4", ">i8", ">i4"],
        "offsets": [4, 8, 12, 20, 28, 36, 56, 84],
        "itemsize": HEAD_V4_SIZE,
    }
)
_V6_HOSTS: Final = BORN_HOST_V6 | STORE_HOST_V6
_CRC_NAME: Final = np.frombuffer(b"__CRC32#\x01", np.uint8)
_TENS: Final = 10 ** np.arange(10, dtype=np.int64)
_LOOKS_LIKE: Final = 6  # of a checksum's ten fixed bytes: more cannot be chance


@dataclass(slots=True)
class Block:
    """Sound records that stand one behind the other; a column each, positions in the file."""

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
    """Up to `count` plain, sound records from `position` on. `base`: the file's start."""
    bounds = _bounds(view, position, end, count)
    starts, ends = bounds[:-1], bounds[1:]
    head = _windows(view, HEAD_V4_SIZE)[starts].view(_HEAD)
    body_size = head["body_size"].astype(np.int64)
    block = Block(
        starts,
        ends,
        head["queue_id"].astype(np.int64),
        head["queue_offset"].astype(np.int64),
        head["sys_flag"].astype(np.int64),
        head["time"].astype(np.int64),
        head["body_crc"].astype(np.int64),
        starts + HEAD_V4_SIZE + body_size,
        starts,
        starts,
    )
    block = block.up_to_first_not(
        (head["magic"] == MAGIC_V1)
        & (head["stored"] == starts + base)
        & (block.sys_flag & _V6_HOSTS == 0)
        & (body_size >= 0)
        & (block.body_end + 4 <= ends)
    )
    block = _read_lengths(np.frombuffer(view, np.uint8), block)
    return _check_sums(view, block) if check_crc and len(block) else block


def _bounds(view: memoryview, position: int, end: int, count: int) -> Column:
    """Where records begin if their sizes are right, and where the last of them ends."""
    parts = [np.array([position], np.int64)]
    while count > 0:
        run = _equal_sizes(view, position, end, count)
        if len(run) < RUN:
            run = np.array(_walk_sizes(view, position, end, min(count, WALK))[1:], np.int64)
        if not len(run):
            break
        parts.append(run)
        position = int(run[-1])
        count -= len(run)
    return np.concatenate(parts)


def _equal_sizes(view: memoryview, position: int, end: int, count: int) -> Column:
    """Where the records end that follow and are all as large as the first: often thousands."""
    size = _SIZE.unpack_from(view, position)[0] if end - position >= LEAST_SIZE else 0
    if size < LEAST_SIZE:
        return np.empty(0, np.int64)
    count = min(count, (end - position) // size)
    sizes = np.ndarray((count,), ">i4", view, position, (size,))
    different = sizes != size
    same = int(np.argmax(different)) if different.any() else count
    return position + size * np.arange(1, same + 1, dtype=np.int64)


def _walk_sizes(view: memoryview, position: int, end: int, count: int) -> list[int]:
    """The same, from one size to the next."""
    unpack = _SIZE.unpack_from
    bounds = [position]
    add = bounds.append
    last = end - LEAST_SIZE
    for _ in range(count):
        if position > last:
            break
        (size,) = unpack(view, position)
        position += size
        if size < LEAST_SIZE or position > end:
            break
        add(position)
    return bounds


def _read_lengths(data: Column, block: Block) -> Block:
    """Fill in where topic and properties are."""
    block.topic_size = data[block.body_end].astype(np.int64)
    block.props_at = block.body_end + 3 + block.topic_size
    block = block.up_to_first_not((block.topic_size > 0) & (block.props_at <= block.end))
    high, low = data[block.props_at - 2].astype(np.int64), data[block.props_at - 1]
    return block.up_to_first_not(block.props_at + (high << 8 | low) == block.end)


def _check_sums(view: memoryview, block: Block) -> Block:
    """The record's own checksum where it has one, else the body's, and no zeros in the texts: a
    sector that never came to the disk reads as zeros."""
    tail_at = block.end - CRC_PROPERTY_SIZE
    tails = rows(view, tail_at, CRC_PROPERTY_SIZE)
    matches = tails[:, :9] == _CRC_NAME
    own = matches.all(1) & (tail_at >= block.props_at)
    first = np.where(own, block.start, block.start + HEAD_V4_SIZE).tolist()
    last = np.where(own, tail_at, block.body_end).tolist()
    sums = [crc32(view[a:b]) for a, b in zip(first, last, strict=True)]
    crc = np.array(sums, np.int64) & CRC_MASK
    good = np.zeros(len(block), bool)
    if own.any():
        digits = tails[:, 9:19].astype(np.int64) - ord("0")
        is_number = ((digits >= 0) & (digits <= 9)).all(1) & (tails[:, 19] == 2)
        good = own & is_number & (digits @ _TENS == crc)
    if not own.all():
        was_own = matches.sum(1) + (tails[:, 19] == 2) >= _LOOKS_LIKE
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


def groups(values: Column) -> Iterator[tuple[int, Column]]:
    """Each value and where it stands."""
    if len(values) and (values == values[0]).all():
        yield int(values[0]), np.arange(len(values))
        return
    for value in np.unique(values).tolist():
        yield value, np.flatnonzero(values == value)


def rows(view: memoryview, at: Column, size: int) -> Column:
    """The `size` bytes at each position, as the rows of a matrix."""
    if size == 0:
        return np.empty((len(at), 0), np.uint8)
    return _windows(view, size)[at].view(np.uint8).reshape(len(at), size)


def _windows(view: memoryview, size: int) -> Column:
    """Every run of `size` bytes, without copying one."""
    return np.ndarray((max(len(view) - size + 1, 0),), f"V{size}", view, strides=(1,))
