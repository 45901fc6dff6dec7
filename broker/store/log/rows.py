"""Plain messages as rows, and their records' bytes.

Rows that come from Python are lists of tuples, encoded here; the compiled path has rows that encode
themselves (`EncodedRows`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, Protocol

from aerobee.broker.store.log.facts import Fact, Facts
from aerobee.broker.store.queues.consume_queue import ConsumeQueue
from aerobee.protocol.files.crc import LARGE, crc32, crc32_large
from aerobee.protocol.files.properties import CRC32, NUL, PAIR_END, PAIR_END_BYTES
from aerobee.protocol.files.record import Message
from aerobee.protocol.files.record_layout import (
    CRC_MASK,
    CRC_PROPERTY_SIZE,
    CRC_REVERSED,
    HEAD_V4,
    HEAD_V4_SIZE,
    MAGIC_V1,
)

# A plain message: queue, body, properties, flag, sys flag, born timestamp, born host, store host,
# reconsume times, prepared transaction offset.
Row = tuple[ConsumeQueue, bytes | memoryview, str, int, int, int, bytes, bytes, int, int]

RECORD_SIZE_MIN: Final = HEAD_V4_SIZE + 2  # with the properties' length
JOIN_BODY_MAX: Final = 4096  # a larger body is not copied to save a call
_pack_head = HEAD_V4.pack
_pack_short = struct.Struct(">h").pack


# As `encode_rows`, for its rows.
Encode = Callable[[int, int, int, int, bool, int, int], tuple[Facts, bytes]]


class EncodedRows(Protocol):
    """Plain messages of the compiled path, which encode themselves."""

    def __len__(self) -> int: ...

    def __getitem__(self, which: slice) -> list[Row]: ...

    def encode(
        self,
        base: int,
        position: int,
        limit: int,
        now_ms: int,
        append_crc: bool,
        body_size_max: int,
        props_size_max: int,
        /,
    ) -> tuple[Facts, bytes]:
        """As `encode_rows`."""

    def size_bound(self, each: int, /) -> int:
        """An upper bound of the records' size; `each` is one for an empty message."""


def encode_rows(
    rows: list[Row],
    base: int,
    position: int,
    limit: int,
    now_ms: int,
    append_crc: bool,
    body_size_max: int,
    props_size_max: int,
) -> tuple[list[Fact], bytes]:
    """Facts and bytes of the plain messages that fit between `position` and `limit` of the file
    that starts at `base`; assigns their queue offsets.

    One long loop with everything inlined: this is where a put spends its time.
    """
    facts: list[Fact] = []
    parts: list[bytes | memoryview] = []
    add_part = parts.append
    join = b"".join
    for (
        queue,
        body,
        text,
        flag,
        sys_flag,
        born_timestamp,
        born_host,
        store_host,
        reconsume_times,
        prepared_offset,
    ) in rows:
        queue_offset = queue.assigned
        offset = base + position
        try:
            props = text.encode()
            body_size = len(body)
            props_size = len(props)
            if body_size > body_size_max or props_size > props_size_max or CRC32 in text:
                break
            if not append_crc and NUL in text:
                break
            if append_crc:
                if props_size and text[-1] != PAIR_END:
                    props += PAIR_END_BYTES
                    props_size += 1
                props_size += CRC_PROPERTY_SIZE
            topic_field = queue.topic_field
            size = RECORD_SIZE_MIN + body_size + len(topic_field) + props_size
            if position + size > limit:
                break
            head = _pack_head(
                size,
                MAGIC_V1,
                (crc32_large if body_size >= LARGE else crc32)(body) & CRC_MASK,
                queue.queue_id,
                flag,
                queue_offset,
                offset,
                sys_flag,
                born_timestamp,
                born_host,
                now_ms,
                store_host,
                reconsume_times,
                prepared_offset,
                body_size,
            )
        except (struct.error, UnicodeError, TypeError):
            break
        tail = topic_field + _pack_short(props_size) + props
        if body_size <= JOIN_BODY_MAX:
            # One join, then one checksum of it: cheaper than one of each part.
            record = join((head, body, tail))
            add_part(record)
            crc = (crc32_large if size >= LARGE else crc32)(record) if append_crc else 0
        else:
            crc = crc32(tail, crc32_large(body, crc32(head))) if append_crc else 0
            parts += (head, body, tail)
        if append_crc:
            add_part((CRC_REVERSED % (crc & CRC_MASK))[::-1])
        queue.assigned = queue_offset + 1
        facts.append((queue, queue_offset, offset, size, now_ms, text, sys_flag))
        position += size
    return facts, join(parts)


def message_of(row: Row) -> Message:
    """The row as `append` takes it."""
    queue, body, text, flag, sys_flag, born_timestamp, born_host, store_host, times, prepared = row
    return Message(
        queue.topic,
        queue.queue_id,
        body,
        text,
        flag,
        sys_flag,
        born_timestamp,
        born_host,
        store_host,
        times,
        prepared,
    )
