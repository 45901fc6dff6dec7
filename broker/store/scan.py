"""The one reader of the log by position: recovery, catching up and checking all walk it here.

A record counts when its size, magic, lengths and stored physical offset fit, and its checksum:
the record's own at its tail where it has one, else the body's. What an earlier life of a file left
behind fails the stored offset; a torn record fails the checksum.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from aerobee.broker.store.crc import crc32_large as crc32
from aerobee.broker.store.mapped_file import MappedFile
from aerobee.protocol.record import (
    BLANK_MAGIC,
    BLANK_SIZE,
    BORN_HOST_V6,
    CRC_MASK,
    CRC_PROPERTY_SIZE,
    HEAD_V4_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    STORE_HOST_V6,
    CorruptRecord,
)

# size, magic, body CRC, queue id, flag, queue offset, physical offset, sys flag; then, where both
# hosts are IPv4, the store timestamp and the body's length
_HEAD: Final = struct.Struct(">iiiiiqqi16xq20xi")
_BLANK: Final = struct.Struct(">ii")
_LONG: Final = struct.Struct(">q")
_INT: Final = struct.Struct(">i")
_ZEROS: Final = bytes(16)
_CRC_NAME: Final = b"__CRC32#\x01"
_UNDERSCORE: Final = _CRC_NAME[0]
_V6_HOSTS: Final = BORN_HOST_V6 | STORE_HOST_V6
_MAGIC: Final = MAGIC_V1.to_bytes(4, "big", signed=True)[:3]  # V2's are the same
_SEARCH: Final = 1024 * 1024
PIECE: Final = 1 << 20  # read at once
PROBE: Final = 4096  # read of a record whose size is not known
_new_tuple = tuple.__new__


class Scanned(NamedTuple):
    """A record's place and what dispatch needs of it; texts are cut out on demand."""

    physical_offset: int
    size: int
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_timestamp: int
    topic: bytes
    properties_position: int  # in the file


def scan_records(
    view: memoryview,
    base: int,
    position: int,
    end: int,
    *,
    check_crc: bool,
    file_end: int | None = None,
) -> Iterator[Scanned]:
    """The records of one file from `position` on, until a blank record, `end`, or CorruptRecord
    (its position: the physical offset) where the next one should be. `base`: the offset of the
    view's first byte; `file_end`: where in the view the file ends, if not with it."""
    file_end = len(view) if file_end is None else file_end
    while end - position >= BLANK_SIZE:
        size, magic = _BLANK.unpack_from(view, position)
        if magic == BLANK_MAGIC:
            if size != file_end - position:
                raise CorruptRecord(base + position, f"a blank record of size {size}")
            return
        record = check_record(view, base, position, end - position, check_crc)
        yield record
        position += record.size
    # Fewer bytes than a blank record takes: the file, or what may be read of it, is over.


def read_record(
    file: MappedFile, physical_offset: int, size: int = PROBE
) -> tuple[Scanned, memoryview]:
    """The record that stands there and its bytes, read without the map; `size`: what it should
    take. CorruptRecord when there is none, OSError when the disk fails."""
    position = physical_offset - file.start
    room = file.readable - position
    data = file.read(position, min(size, room))
    whole = int.from_bytes(data[:4], "big")
    if len(data) < whole <= room:
        data = file.read(position, whole)
    view = memoryview(data)
    record = check_record(view, physical_offset, 0, len(view), False)
    return record, view[: record.size]


def read_records(
    file: MappedFile, position: int, end: int
) -> Iterator[tuple[Scanned, memoryview, int]]:
    """The same without checksums, read piece by piece and not through the map: each record with the
    piece that holds it and the offset where that begins. OSError when the disk fails."""
    step = PIECE
    while end - position >= BLANK_SIZE:
        piece = memoryview(file.read(position, min(step, end - position)))
        base, taken = file.start + position, 0
        file_end = file.size - position
        try:
            records = scan_records(piece, base, 0, len(piece), check_crc=False, file_end=file_end)
            for record in records:
                taken = record.physical_offset + record.size - base
                yield record, piece, base
        except CorruptRecord:
            if not taken:
                if len(piece) >= end - position:
                    raise
                step = end - position  # the record may be longer than a piece
        else:
            if len(piece) - taken >= BLANK_SIZE or not taken:
                return  # a blank record: the file is over
        if taken:
            position += taken
            step = PIECE


def check_record(view: memoryview, base: int, position: int, room: int, check_crc: bool) -> Scanned:
    """The record at `position` if it is sound; CorruptRecord if not."""
    offset = base + position
    if room < HEAD_V4_SIZE:
        raise CorruptRecord(offset, f"{room} bytes left")
    size, magic, body_crc, queue_id, _flag, queue_offset, stored, sys_flag, time_ms, body_size = (
        _HEAD.unpack_from(view, position)
    )
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        raise CorruptRecord(offset, _not_a_record(size, magic))
    if stored != offset:
        raise CorruptRecord(offset, f"it says that it stands at {stored}")
    if not HEAD_V4_SIZE < size <= room:
        raise CorruptRecord(offset, f"size {size} with {room} bytes left")
    end = position + size
    body_at = position + HEAD_V4_SIZE
    if sys_flag & _V6_HOSTS:
        body_at, time_ms, body_size = _v6_fields(view, offset, position, end, sys_flag)
    topic_at = body_at + body_size + 1
    if body_size < 0 or topic_at + 2 > end:
        raise CorruptRecord(offset, f"body length {body_size} in a record of {size}")
    topic_size = view[topic_at - 1]
    if magic == MAGIC_V2:
        topic_size = topic_size << 8 | view[topic_at]
        topic_at += 1
    props_at = topic_at + topic_size + 2
    if props_at > end or props_at + (view[props_at - 2] << 8 | view[props_at - 1]) != end:
        raise CorruptRecord(offset, f"topic length {topic_size} in a record of {size}")
    if check_crc:
        tail_at = end - CRC_PROPERTY_SIZE
        if (
            tail_at >= props_at
            and view[tail_at] == _UNDERSCORE
            and (bytes(view[tail_at : tail_at + 9]) == _CRC_NAME)
        ):
            _check_tail(view, offset, position, tail_at)
        else:
            _check_plain(view, offset, body_at, body_size, body_crc, props_at, end)
            if tail_at >= props_at and _was_checksum(bytes(view[tail_at:end])):
                raise CorruptRecord(offset, "its checksum is damaged")
    topic = bytes(view[topic_at : props_at - 2])
    fields = (offset, size, queue_id, queue_offset, sys_flag, time_ms, topic, props_at)
    return _new_tuple(Scanned, fields)  # half the price of calling Scanned


def find_record(view: memoryview, base: int, position: int, end: int) -> int:
    """Where the next sound record of a file begins, at `position` or behind it; `end`: nowhere."""
    position += 4  # the magic follows the size
    while position < end:
        piece = bytes(view[position : min(position + _SEARCH, end)])
        hit = piece.find(_MAGIC)
        while hit >= 0:
            start = position + hit - 4
            try:
                check_record(view, base, start, end - start, True)
                return start
            except CorruptRecord:
                hit = piece.find(_MAGIC, hit + 1)
        position += _SEARCH - len(_MAGIC) + 1
    return end


def _not_a_record(size: int, magic: int) -> str:
    return NOTHING_HERE if size == magic == 0 else f"magic {magic & 0xFFFFFFFF:#010x}"


def _v6_fields(
    view: memoryview, offset: int, position: int, end: int, sys_flag: int
) -> tuple[int, int, int]:
    """Where the body begins, store timestamp and body length of a record with IPv6 hosts."""
    time_at = position + (68 if sys_flag & BORN_HOST_V6 else 56)
    body_at = time_at + (44 if sys_flag & STORE_HOST_V6 else 32)
    if body_at > end:
        raise CorruptRecord(offset, f"size {end - position} is less than its head")
    return body_at, _LONG.unpack_from(view, time_at)[0], _INT.unpack_from(view, body_at - 4)[0]


NOTHING_HERE: Final = "nothing is written here"


def _check_tail(view: memoryview, offset: int, position: int, tail_at: int) -> None:
    crc = crc32(view[position:tail_at]) & CRC_MASK
    if bytes(view[tail_at + 9 : tail_at + 20]) != (b"\x02%010d" % crc)[::-1]:
        raise CorruptRecord(offset, "the record does not match its checksum")


def _was_checksum(tail: bytes) -> bool:
    """Whether these 20 bytes are a checksum with a few of its fixed bytes changed: else a flip
    there would make the record pass as one that never had a checksum."""
    fixed = zip(tail[:9] + tail[-1:], _CRC_NAME + b"\x02", strict=True)
    return sum(found == expected for found, expected in fixed) >= 6


def _check_plain(
    view: memoryview,
    offset: int,
    body_at: int,
    body_size: int,
    body_crc: int,
    props_at: int,
    end: int,
) -> None:
    """A record without a checksum of its own: its body's, and texts that are not torn."""
    body_end = body_at + body_size
    if crc32(view[body_at:body_end]) & CRC_MASK != body_crc and (body_size or body_crc):
        raise CorruptRecord(offset, "the body does not match its CRC")
    # A sector that never came to the disk reads as zeros, up to its end or the record's.
    if (props_at < end and view[end - 1] == 0) or _ZEROS in bytes(view[body_end:end]):
        raise CorruptRecord(offset, "zeros in its topic or properties: it was torn")
