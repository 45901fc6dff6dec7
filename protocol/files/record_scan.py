"""Scans the records of a log file: recovery, catching up and verification all use it.

A record is valid when its size, magic, lengths and stored physical offset fit, and its checksum:
the record's own at its tail where it has one, else the body's. What an earlier use of a file left
behind fails the stored offset; a torn record fails the checksum.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from aerobee.protocol.files.crc import crc32_large
from aerobee.protocol.files.properties import PAIR_END_BYTES
from aerobee.protocol.files.record_layout import (
    BLANK_MAGIC,
    BLANK_SIZE,
    CRC_LIKENESS,
    CRC_MASK,
    CRC_NAME,
    CRC_PROPERTY_SIZE,
    HEAD_V4_SIZE,
    HEADS,
    MAGIC_V1,
    MAGIC_V2,
    SIZE_AND_MAGIC,
    V6_HOSTS,
    Buffer,
    CorruptRecord,
    crc_property,
    head_part,
)

NOTHING_HERE: Final = "nothing is written here"
_MAGIC: Final = MAGIC_V1.to_bytes(4, "big", signed=True)[:3]  # V2's first three bytes are the same
_SEARCH: Final = 1024 * 1024
_CHECKED: Final = head_part(
    *("size", "magic", "body_crc", "queue_id", "queue_offset", "physical_offset", "sys_flag"),
    *("store_timestamp", "body_length"),
)
_ZEROS: Final = bytes(16)
_UNDERSCORE: Final = CRC_NAME[0]
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
    properties_position: int  # in the buffer


def check_record(
    view: Buffer, base: int | None, position: int, room: int, check_crc: bool
) -> Scanned:
    """The record at `position` if it is sound; CorruptRecord if not. `base`: the physical offset
    of the view's first byte; None: wherever it was stored."""
    offset = position if base is None else base + position
    if room < HEAD_V4_SIZE:
        raise CorruptRecord(offset, f"{room} bytes left")
    size, magic, body_crc, queue_id, queue_offset, stored, sys_flag, time_ms, body_size = (
        _CHECKED.unpack_from(view, position)
    )
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        raise CorruptRecord(offset, _not_a_record(size, magic))
    if stored != offset and base is not None:
        raise CorruptRecord(offset, f"it says that it stands at {stored}")
    if not HEAD_V4_SIZE < size <= room:
        raise CorruptRecord(offset, f"size {size} with {room} bytes left")
    end = position + size
    body_at = position + HEAD_V4_SIZE
    if sys_flag & V6_HOSTS:
        head = HEADS[sys_flag & V6_HOSTS]
        body_at = position + head.size
        if body_at > end:
            raise CorruptRecord(offset, f"size {size} is less than its head")
        fields = head.unpack_from(view, position)
        time_ms, body_size = fields[10], fields[14]
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
            and bytes(view[tail_at : tail_at + len(CRC_NAME)]) == CRC_NAME
        ):
            _check_tail(view, offset, position, tail_at)
        else:
            _check_plain(view, offset, body_at, body_size, body_crc, props_at, end)
            if tail_at >= props_at and _was_checksum(bytes(view[tail_at:end])):
                raise CorruptRecord(offset, "its checksum is damaged")
    topic = bytes(view[topic_at : props_at - 2])
    fields = (stored, size, queue_id, queue_offset, sys_flag, time_ms, topic, props_at)
    return _new_tuple(Scanned, fields)  # half the cost of calling Scanned


def _not_a_record(size: int, magic: int) -> str:
    return NOTHING_HERE if size == magic == 0 else f"magic {magic & 0xFFFFFFFF:#010x}"


def _check_tail(view: Buffer, offset: int, position: int, tail_at: int) -> None:
    crc = crc32_large(view[position:tail_at]) & CRC_MASK
    if bytes(view[tail_at : tail_at + CRC_PROPERTY_SIZE]) != crc_property(crc):
        raise CorruptRecord(offset, "the record does not match its checksum")


def sums_match(
    view: memoryview, start: int, props_at: int, end: int, body: bytes, body_crc: int
) -> bool:
    """Whether a record that was received over the network is intact."""
    tail_at = end - CRC_PROPERTY_SIZE
    if tail_at >= props_at:
        tail = bytes(view[tail_at:end])
        if tail.startswith(CRC_NAME):
            return tail == crc_property(crc32_large(view[start:tail_at]) & CRC_MASK)
        if _was_checksum(tail):
            return False
    return not body or crc32_large(body) & CRC_MASK == body_crc


def _was_checksum(tail: bytes) -> bool:
    """Whether these 20 bytes are a checksum with some of its fixed bytes damaged: else a bit flip
    there would make the record look like one that never had a checksum."""
    fixed = zip(tail[: len(CRC_NAME)] + tail[-1:], CRC_NAME + PAIR_END_BYTES, strict=True)
    return sum(found == expected for found, expected in fixed) >= CRC_LIKENESS


def _check_plain(
    view: Buffer,
    offset: int,
    body_at: int,
    body_size: int,
    body_crc: int,
    props_at: int,
    end: int,
) -> None:
    """Check a record without a checksum of its own: its body's CRC, and that its texts are not
    torn. A body CRC of 0 is a value like any other, except for an empty body."""
    body_end = body_at + body_size
    if crc32_large(view[body_at:body_end]) & CRC_MASK != body_crc and (body_size or body_crc):
        raise CorruptRecord(offset, "the body does not match its CRC")
    # A sector that was never written reads as zeros, up to its end or the record's.
    if (props_at < end and view[end - 1] == 0) or _ZEROS in bytes(view[body_end:end]):
        raise CorruptRecord(offset, "zeros in its topic or properties: it was torn")


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
        size, magic = SIZE_AND_MAGIC.unpack_from(view, position)
        if magic == BLANK_MAGIC:
            if size != file_end - position:
                raise CorruptRecord(base + position, f"a blank record of size {size}")
            return
        record = check_record(view, base, position, end - position, check_crc)
        yield record
        position += record.size
    # Less than a blank record: the end of the file, or of its readable part.


def find_record(view: memoryview, base: int, position: int, end: int) -> int:
    """Where the next valid record of a file begins, at `position` or after it; `end`: nowhere."""
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
