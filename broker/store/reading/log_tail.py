"""The end of a log: its newest record, found through the queues and a scan from there."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from aerobee.broker.store.log.commitlog import CommitLog
from aerobee.broker.store.queues.consume_queue import ConsumeQueue
from aerobee.broker.store.queues.queue_table import QueueTable
from aerobee.protocol.files.record_layout import BLANK_MAGIC, BLANK_SIZE, SIZE_AND_MAGIC


class LogTail(NamedTuple):
    """The end of a log, including what is not in a queue (yet)."""

    record: tuple[int, int] | None  # offset and size of the newest
    blank_at: int | None  # the blank record after it, at the end of a file
    end: int


def last_entry(queues: QueueTable, before: int) -> tuple[int, int] | None:
    """Offset and size of the newest record that is in a queue and begins before this offset."""
    newest: tuple[int, int] | None = None
    for queue in queues:
        low, high = queue.min_offset, queue.max_offset
        if high > low and queue.max_physical_offset > before:
            numbers = range(low, high)
            high = low + bisect_left(numbers, before, key=lambda n: _place(queue, n))
        entry = queue.entry(high - 1) if high > low else None
        if entry is not None and (newest is None or entry[0] > newest[0]):
            newest = entry[:2]
    return newest


def _place(queue: ConsumeQueue, number: int) -> int:
    entry = queue.entry(number)
    return entry[0] if entry is not None else 0


def find_log_tail(log: CommitLog, queues: QueueTable, before: int) -> LogTail:
    """The end of the log, or of its part that begins before this offset."""
    record, blank_at = last_entry(queues, before), None
    position = max(sum(record) if record else 0, log.files.min_offset)
    while position < min(before, log.max_offset):
        head = log.read(position, BLANK_SIZE)
        size, magic = SIZE_AND_MAGIC.unpack(head) if len(head) == BLANK_SIZE else (0, 0)
        if size <= 0:
            break
        if magic == BLANK_MAGIC:
            blank_at = position
        else:
            record, blank_at = (position, size), None
        position += size
    return LogTail(record, blank_at, position)
