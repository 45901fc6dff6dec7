"""Where a consume queue begins: at its first entry whose record the log still has."""

from __future__ import annotations

from aerobee.broker.store.files.mapped_file import MappedFile
from aerobee.broker.store.queues.consume_queue import ConsumeQueue
from aerobee.broker.store.queues.consume_queue_ext import is_address
from aerobee.protocol.files.queue_entry import BLANK_ENTRY_SIZE, ENTRY, ENTRY_SIZE


def last_entry_of(file: MappedFile) -> tuple[int, int]:
    """Physical offset and size of the last entry that a full file has."""
    position = file.size - file.size % ENTRY_SIZE - ENTRY_SIZE
    physical_offset, size, _ = ENTRY.unpack(file.read(position, ENTRY_SIZE))
    return physical_offset, size


def correct_min_offset(queue: ConsumeQueue, min_physical_offset: int) -> None:
    """Let the queue begin at its first entry whose record the log still has."""
    files = queue.files.files
    low = max(queue.min_offset, queue.files.min_offset // ENTRY_SIZE) if files else queue.max_offset
    high = queue.max_offset
    while low < high:
        middle = (low + high) // 2
        entry = queue.entries(middle, 1)
        physical_offset, size, _ = ENTRY.unpack(entry) if entry else (0, BLANK_ENTRY_SIZE, 0)
        if size == BLANK_ENTRY_SIZE or physical_offset < min_physical_offset:
            low = middle + 1
        else:
            high = middle
    queue.min_offset = low


def is_file_expired(queue: ConsumeQueue, min_physical_offset: int) -> bool:
    """Whether all entries of the first file point below what the log still has."""
    physical_offset, size = last_entry_of(queue.files.files[0])
    return size == BLANK_ENTRY_SIZE or physical_offset < min_physical_offset


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
