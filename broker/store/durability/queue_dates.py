"""Modification times of queue files, for RocketMQ 4.9: it searches a time in the first queue file
that was modified at or after it, so a full file must not be younger than its last message."""

from __future__ import annotations

from aerobee.broker.store.files.mapped_file import MappedFile
from aerobee.broker.store.files.mapped_file_queue import MappedFileQueue
from aerobee.broker.store.queues.consume_queue import ConsumeQueue
from aerobee.broker.store.queues.queue_start import last_entry_of
from aerobee.protocol.files.queue_entry import BLANK_ENTRY_SIZE, ENTRY_SIZE
from aerobee.protocol.files.record_layout import CorruptRecord
from aerobee.protocol.files.record_scan import check_record


def timestamp_at(file: MappedFile, position: int) -> int:
    """The store time of the record at a position; 0 when there is no valid one."""
    room = file.size - position
    try:
        return check_record(file.view, file.start, position, room, False).store_timestamp
    except CorruptRecord:
        return 0


def is_full(queue: ConsumeQueue, mapped: MappedFile) -> bool:
    """Whether this file of the queue (not of its ext units) is full."""
    end = mapped.end - mapped.size % ENTRY_SIZE
    return queue.files.find(mapped.start) is mapped and end <= queue.max_offset * ENTRY_SIZE


def date_file(
    log_files: MappedFileQueue, queue: ConsumeQueue, mapped: MappedFile, written_from: int = 0
) -> None:
    """Set a full file's modification time to that of its last message, unless that is below
    `written_from` in the log. OSError when that fails."""
    offset, size = last_entry_of(mapped)
    file = log_files.find(offset) if offset >= written_from else None
    if file is not None and size != BLANK_ENTRY_SIZE:
        time_ms = timestamp_at(file, offset - file.start)
        if time_ms:
            queue.files.disk.set_modified_ms(mapped.path, time_ms)
