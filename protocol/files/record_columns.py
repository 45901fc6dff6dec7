"""Records in columns: thousands of heads and lengths read at once, with numpy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aerobee.protocol.files.record_layout import (
    HEAD_V4_SIZE,
    HEADS,
    MAGIC_V1,
    MAGIC_V2,
    SIZE,
    V6_HOSTS,
    Buffer,
    CorruptRecord,
    head_formats,
)

Column = NDArray[Any]

LEAST_SIZE: Final = HEAD_V4_SIZE + 4  # a topic of one byte
RUN: Final = 64  # equal sizes in a row from which on they are found at once
WALK: Final = 1024  # else this many are found one by one

HEAD_TYPES: Final = {
    v6_hosts: np.dtype(
        [
            (name, {"i": ">i4", "q": ">i8"}.get(form) or f"V{form[:-1]}")
            for name, form in head_formats(v6_hosts).items()
        ]
    )
    for v6_hosts in HEADS
}
_HEAD_SIZES: Final = np.array([HEADS[bits].size for bits in sorted(HEADS)])
_V6_SHIFT: Final = (V6_HOSTS & -V6_HOSTS).bit_length() - 1


def windows(data: memoryview | Column, size: int) -> Column:
    """Every window of `size` bytes, without a copy."""
    return np.ndarray((max(len(data) - size + 1, 0),), f"V{size}", data, strides=(1,))


def rows(data: memoryview | Column, at: Column, size: int) -> Column:
    """The `size` bytes at each position, as the rows of a matrix."""
    if size == 0:
        return np.empty((len(at), 0), np.uint8)
    return windows(data, size)[at].view(np.uint8).reshape(len(at), size)


def groups(values: Column) -> Iterator[tuple[int, Column]]:
    """Each value and its positions."""
    if len(values) and (values == values[0]).all():
        yield int(values[0]), np.arange(len(values))
        return
    for value in np.unique(values).tolist():
        yield value, np.flatnonzero(values == value)


def record_bounds(data: Buffer, position: int, end: int, count: int) -> Column:
    """Where up to `count` records begin if their sizes are right, and where the last one ends.
    Runs of records of one size are found at once, others one by one."""
    parts = [np.array([position], np.int64)]
    guess = RUN
    while count > 0 and end - position >= LEAST_SIZE:
        (size,) = SIZE.unpack_from(data, position)
        if size < LEAST_SIZE:
            break
        length = min(guess, count, (end - position) // size)
        differs = np.ndarray((length,), ">i4", data, position, (size,)) != size
        same = int(np.argmax(differs)) if differs.any() else length
        guess = guess * 4 if same == guess else RUN
        if same >= RUN:
            bounds = position + size * np.arange(1, same + 1, dtype=np.int64)
        else:
            bounds = np.array(_walk_sizes(data, position, end, min(count, WALK)), np.int64)
            if not len(bounds):
                break
        parts.append(bounds)
        position = int(bounds[-1])
        count -= len(bounds)
    return np.concatenate(parts)


def record_positions(body: Buffer) -> Column:
    """Where each record of a pull's body begins; CorruptRecord when a size is wrong."""
    bounds = record_bounds(body, 0, len(body), len(body))
    end = int(bounds[-1])
    if end != len(body):
        size = int.from_bytes(body[end : end + SIZE.size], "big", signed=True)
        raise CorruptRecord(end, f"size {size} with {len(body) - end} bytes left")
    return bounds[:-1]


def _walk_sizes(data: Buffer, position: int, end: int, count: int) -> list[int]:
    """Where records end, from one size to the next."""
    unpack = SIZE.unpack_from
    bounds: list[int] = []
    add = bounds.append
    last = end - LEAST_SIZE
    for _ in range(count):
        if position > last:
            break
        (size,) = unpack(data, position)
        position += size
        if size < LEAST_SIZE or position > end:
            break
        add(position)
    return bounds


def read_heads(data: memoryview | Column, at: Column) -> Column:
    """The heads at these positions; of an IPv6 host only the first bytes."""
    heads = windows(data, HEAD_V4_SIZE)[at].view(HEAD_TYPES[0])
    v6_hosts = heads["sys_flag"].astype(np.int32) & V6_HOSTS
    for bits, which in groups(v6_hosts) if v6_hosts.any() else ():
        form = HEAD_TYPES[bits]
        _require(at[which] + form.itemsize <= len(data), at[which], "its head is cut off")
        long = windows(data, form.itemsize)[at[which]].view(form)
        for name in form.names or ():
            heads[name][which] = long[name]
    return heads


def _require(sound: Column, at: Column, reason: str) -> None:
    if not sound.all():
        raise CorruptRecord(int(at[int(np.argmin(sound))]), reason)


class Cut:
    """The records at these positions: their heads, and where body, topic and properties are.
    CorruptRecord when the lengths of one do not agree."""

    __slots__ = (
        *("body_ends", "body_starts", "ends", "heads", "is_plain", "props_at", "sys_flag"),
        *("topic_ends", "topic_starts"),
    )

    def __init__(self, data: Column, at: Column) -> None:
        self.heads = heads = read_heads(data, at)
        self.sys_flag = heads["sys_flag"].astype(np.int32)
        v6_hosts = self.sys_flag & V6_HOSTS
        any_v6 = v6_hosts.any()
        head_sizes = _HEAD_SIZES[v6_hosts >> _V6_SHIFT] if any_v6 else HEAD_V4_SIZE
        magic = heads["magic"].astype(np.int32)
        self.is_plain = magic == MAGIC_V1  # and, below, both hosts IPv4
        all_v1 = self.is_plain.all()
        second = False if all_v1 else magic == MAGIC_V2
        if not all_v1:
            _require(self.is_plain | second, at, "its magic is not a record's")
        if any_v6:
            self.is_plain &= v6_hosts == 0
        size = heads["size"].astype(np.int64)
        self.ends = at + size
        _require((size > head_sizes) & (self.ends <= len(data)), at, "its size is wrong")
        self.body_starts = at + head_sizes
        self.body_ends = self.body_starts + heads["body_length"]
        fits = (self.body_ends >= self.body_starts) & (self.body_ends + 3 + second <= self.ends)
        _require(fits, at, "its body does not fit it")
        topic_length = data[self.body_ends].astype(np.int64)
        self.topic_starts = self.body_ends + 1
        if not all_v1:
            wide = topic_length << 8 | data[self.topic_starts]
            topic_length = np.where(second, wide, topic_length)
            self.topic_starts += second
        self.topic_ends = self.topic_starts + topic_length
        _require(self.topic_ends + 2 <= self.ends, at, "its topic does not fit it")
        high, low = data[self.topic_ends].astype(np.int64), data[self.topic_ends + 1]
        self.props_at = self.topic_ends + 2
        _require(
            self.props_at + (high << 8 | low) == self.ends, at, "its properties' length is wrong"
        )
