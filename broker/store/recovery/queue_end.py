"""Finds the end of a consume queue and checks it against the log: a power cut may have left
anything."""

from __future__ import annotations

from typing import Final

from aerobee.broker.store.files.mapped_file import MappedFile
from aerobee.broker.store.log.commitlog import CommitLog
from aerobee.broker.store.queues.consume_queue import ConsumeQueue
from aerobee.protocol.files import properties as message_properties
from aerobee.protocol.files.queue_entry import BLANK_ENTRY_SIZE, ENTRY, ENTRY_SIZE
from aerobee.protocol.files.record_layout import CorruptRecord
from aerobee.protocol.files.record_scan import Scanned, check_record
from aerobee.protocol.names import LIGHT_PREFIX

LIGHT: Final = LIGHT_PREFIX  # their entries point to records of other topics


def recover_queue(queue: ConsumeQueue, commit_log: CommitLog, limit: int | None) -> None:
    """Find the queue's end: the last entry that is below `limit` and agrees with the log.

    What was flushed is an unbroken run of valid entries, so a binary search finds its end. After it
    a power cut may have left anything, so the entry found is checked against its record, and
    dropped for the one before it until one matches.
    """
    queue.write_kept()
    low = queue.files.min_offset // ENTRY_SIZE
    end = low
    for file in reversed(queue.files.files):
        if _is_sound(file, 0, limit):
            end = file.start // ENTRY_SIZE + _first_unsound(file, limit)
            break
    queue.min_offset = low
    queue.max_offset = end
    while queue.max_offset > low and not _agrees(queue, commit_log, limit):
        queue.max_offset -= 1
    end = queue.max_offset
    queue.flushed_bytes = end * ENTRY_SIZE
    if limit is not None or _has_more(queue):
        queue.cut(end)
    else:
        if (last := queue.files.last) is not None:
            last.allocated = end * ENTRY_SIZE - last.start  # what follows may have no blocks
        queue.max_physical_offset = queue.last_physical_end()
        queue.cut_ext()


def _is_sound(file: MappedFile, number: int, limit: int | None) -> bool:
    offset, size, _ = ENTRY.unpack(file.read(number * ENTRY_SIZE, ENTRY_SIZE))
    if size == BLANK_ENTRY_SIZE:
        return True
    return offset >= 0 and size > 0 and (limit is None or offset + size <= limit)


def _first_unsound(file: MappedFile, limit: int | None) -> int:
    low, high = 1, file.size // ENTRY_SIZE
    while low < high:
        middle = (low + high) // 2
        if _is_sound(file, middle, limit):
            low = middle + 1
        else:
            high = middle
    return low


def _has_more(queue: ConsumeQueue) -> bool:
    """Whether there is data after the queue's end."""
    byte = queue.max_offset * ENTRY_SIZE
    file = queue.files.find(byte)
    return file is not None and (
        file is not queue.files.last or any(file.read(byte - file.start, ENTRY_SIZE))
    )


def _agrees(queue: ConsumeQueue, commit_log: CommitLog, limit: int | None) -> bool:
    """Whether the last entry points to the record that has its number."""
    number = queue.max_offset - 1
    found = queue.entries(number, 1)
    if not found:
        return False
    offset, size, _ = (int(part) for part in ENTRY.unpack(found))
    if size == BLANK_ENTRY_SIZE:
        return True
    if size <= 0 or offset < 0 or (limit is not None and offset + size > limit):
        return False
    file = commit_log.files.find(offset)
    if file is None:
        return offset < commit_log.files.min_offset  # its record has expired
    if file.file.first_unreadable(offset - file.start, offset - file.start + size) is not None:
        return True  # on a bad sector: unknown
    try:
        record = check_record(file.view, file.start, offset - file.start, file.end - offset, False)
    except CorruptRecord:
        return False
    if record.topic != queue.topic_bytes:
        return record.size == size and _is_in_light(queue.topic, number, record, file)
    return (
        record.size == size and record.queue_id == queue.queue_id and record.queue_offset == number
    )


def _is_in_light(topic: str, number: int, record: Scanned, file: MappedFile) -> bool:
    """Whether the record names this offset of this light queue."""
    if not topic.startswith(LIGHT):
        return False
    end = record.physical_offset + record.size - file.start
    text = str(file.view[record.properties_position : end], "utf-8", "replace")
    topics = message_properties.get(text, "INNER_MULTI_DISPATCH") or ""
    numbers = message_properties.get(text, "INNER_MULTI_QUEUE_OFFSET") or ""
    return (topic, str(number)) in zip(topics.split(","), numbers.split(","), strict=False)
