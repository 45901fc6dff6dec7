"""Where a consume queue begins: at its first entry whose record the log still has."""

from __future__ import annotations

from typing import Final

import numpy as np

from aerobee.broker.store.files.mapped_file import MappedFile
from aerobee.broker.store.queues.consume_queue import ConsumeQueue
from aerobee.broker.store.queues.consume_queue_ext import is_address
from aerobee.protocol.files.queue_entry import (
    BLANK_ENTRY_SIZE,
    ENTRY,
    ENTRY_OFFSET,
    ENTRY_PLACE,
    ENTRY_SIZE,
)
from aerobee.protocol.files.queue_entry_columns import ENTRY_TYPE, is_entry

SCANNED: Final = 8192  # slots read at once in search of one that is not blank


def last_entry_of(file: MappedFile) -> tuple[int, int]:
    """Physical offset and size of the last entry that a full file has."""
    position = file.size - file.size % ENTRY_SIZE - ENTRY_SIZE
    physical_offset, size, _ = ENTRY.unpack(file.read(position, ENTRY_SIZE))
    return physical_offset, size


def first_real(queue: ConsumeQueue, queue_offset: int, end: int) -> int:
    """The first entry from this offset on that points to a record; `end` if there is none before
    it. Blank are the slots before a queue's beginning, and those of records that were damaged when
    the queue was rebuilt."""
    first = queue.entries(queue_offset, 1) if queue_offset < end else b""
    if first and 0 < ENTRY_PLACE.unpack(first)[1] < BLANK_ENTRY_SIZE:
        return queue_offset  # as a rule
    while queue_offset < end:
        entries = queue.entries(queue_offset, min(end - queue_offset, SCANNED))
        if not entries:
            return end
        found = np.flatnonzero(is_entry(np.frombuffer(entries, ENTRY_TYPE)))
        if found.size:
            return queue_offset + int(found[0])
        queue_offset += len(entries) // ENTRY_SIZE
    return end


def correct_min_offset(queue: ConsumeQueue, min_physical_offset: int) -> None:
    """Let the queue begin at its first entry whose record the log still has."""
    files = queue.files.files
    low = max(queue.min_offset, queue.files.min_offset // ENTRY_SIZE) if files else queue.max_offset
    high = queue.max_offset
    while low < high:
        middle = first_real(queue, (low + high) // 2, high)
        entry = queue.entries(middle, 1) if middle < high else b""
        if entry and ENTRY_OFFSET.unpack_from(entry)[0] < min_physical_offset:
            low = middle + 1
        else:
            high = (low + high) // 2
    queue.min_offset = first_real(queue, low, queue.max_offset)


def is_file_expired(queue: ConsumeQueue, min_physical_offset: int) -> bool:
    """Whether all entries of the first file point below what the log still has."""
    file = queue.files.files[0]
    physical_offset, size = last_entry_of(file)
    if size == BLANK_ENTRY_SIZE:
        physical_offset = _last_place_in(file)
    return physical_offset < min_physical_offset


def _last_place_in(file: MappedFile) -> int:
    """The newest record that a full file points to; -1: none, it is blank."""
    entries = np.frombuffer(file.read(0, file.size - file.size % ENTRY_SIZE), ENTRY_TYPE)
    found = np.flatnonzero(is_entry(entries))
    return int(entries["offset"][found[-1]]) if found.size else -1


def ext_begin(queue: ConsumeQueue) -> int:
    """The byte of the first unit that an entry still points to; 0 when none is known."""
    first = queue.entries(queue.min_offset, 1)
    code = ENTRY.unpack(first)[2] if first else 0
    return code + (1 << 63) if is_address(code) else 0


def begins_before(queue: ConsumeQueue, min_physical_offset: int) -> bool:
    """Whether the first entry points to a record that the log no longer has."""
    if queue.min_offset >= queue.max_offset:
        return False
    first = queue.entry(queue.min_offset)
    return first is None or first[0] < min_physical_offset
