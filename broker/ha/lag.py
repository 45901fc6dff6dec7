"""A slave's lag in time: the age of the first record that it lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aerobee.protocol.files.record_layout import (
    BLANK_MAGIC,
    BLANK_SIZE,
    HEAD_V4_SIZE,
    SIZE_AND_MAGIC,
    head_part,
    store_timestamp,
)

if TYPE_CHECKING:
    from aerobee.broker.store.message_store import MessageStore

_PLACE: Final = head_part("physical_offset")


def behind_ms(store: MessageStore, acked: int, now_ms: int) -> int | None:
    """0: it lacks nothing; None: unknown, because it has not reported yet, or its report is within
    a record (Java slaves do that)."""
    if acked < 0:
        return None
    offset = max(acked, store.min_physical_offset)
    head = store.read_log(offset, HEAD_V4_SIZE)
    if len(head) >= BLANK_SIZE:
        size, magic = SIZE_AND_MAGIC.unpack_from(head)
        if magic == BLANK_MAGIC and size > 0:
            offset += size
            head = store.read_log(offset, HEAD_V4_SIZE)
    if offset >= store.max_physical_offset:
        return 0
    if len(head) < HEAD_V4_SIZE or _PLACE.unpack_from(head) != (offset,):
        return None
    return max(0, now_ms - store_timestamp(head))
