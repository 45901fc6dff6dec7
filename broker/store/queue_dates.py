"""When a queue file was changed, for RocketMQ 4.9: it looks for a time in the first queue file that
was changed at or after it, so a full file must not be younger than its last message."""

from __future__ import annotations

from aerobee.broker.store.consume_queue import BLANK_ENTRY_SIZE, ENTRY, ENTRY_SIZE, ConsumeQueue
from aerobee.broker.store.mapped_file import MappedFile
from aerobee.broker.store.mapped_file_queue import MappedFileQueue
from aerobee.broker.store.scan import check_record
from aerobee.protocol.record import CorruptRecord


def timestamp_at(file: MappedFile, position: int) -> int:
    """The store time of the record at a position; 0 when there is no sound one."""
    room = file.size - position
    try:
        return check_record(file.view, file.start, position, room, False).store_timestamp
    except CorruptRecord:
        return 0


def is_full(queue: ConsumeQueue, mapped: MappedFile) -> bool:
    """Whether a file of the queue, not of its ext units, gets no more entries."""
    end = mapped.end - mapped.size % ENTRY_SIZE
    return queue.files.find(mapped.start) is mapped and end <= queue.max_offset * ENTRY_SIZE


def date_file(log_files: MappedFileQueue, queue: ConsumeQueue, mapped: MappedFile) -> None:
    """Give a full file of the queue the time of its last message. OSError when that fails."""
    position = mapped.size - mapped.size % ENTRY_SIZE - ENTRY_SIZE
    offset, size, _ = ENTRY.unpack(mapped.read(position, ENTRY_SIZE))
    file = log_files.find(offset)
    if file is not None and size != BLANK_ENTRY_SIZE:
        time_ms = timestamp_at(file, offset - file.start)
        if time_ms:
            queue.files.disk.set_modified_ms(mapped.path, time_ms)
