"""Dispatch by scanning the log, where there are no facts: after a start, or when it is behind."""

from __future__ import annotations

from typing import Final

from aerobee.broker.store.dispatch.dispatcher import RecordDispatcher
from aerobee.broker.store.files.mapped_file import MappedFile
from aerobee.broker.store.log.commitlog import CommitLog
from aerobee.broker.store.log.facts import Fact
from aerobee.broker.store.log.read_records import read_records
from aerobee.protocol.files.record_layout import CorruptRecord

STEP_RECORDS: Final = 128  # read and dispatched before yielding to the event loop
BLOCK_RECORDS: Final = 2048  # ... in columns


NOTHING: Final = 1 << 62


class LogWalk:
    def __init__(self, commit_log: CommitLog, dispatcher: RecordDispatcher) -> None:
        self._log = commit_log
        self._dispatcher = dispatcher
        # Topics, and the log's end when they were deleted, in this order: dispatch may fall behind
        # later, or begin again from the last checkpoint.
        self._deleted: dict[bytes, int] = {}
        self._deleted_to = 0  # the last of these ends
        self.written_from = NOTHING  # the log from here on was written by this process

    def skip(self, topic: str) -> None:
        """The topic is deleted: skip the records that it has so far."""
        name, deleted = topic.encode(), self._deleted
        deleted.pop(name, None)
        deleted[name] = self._deleted_to = self._log.max_offset
        while deleted[oldest := next(iter(deleted))] < self._log.files.min_offset:
            del deleted[oldest]

    def step(self, limit: int) -> bool:
        """Dispatch the next records of the log; False when there are none before `limit`."""
        dispatcher, files = self._dispatcher, self._log.files
        offset = dispatcher.dispatched_offset
        file = files.find(offset)
        if file is None and files.files and offset < files.min_offset:
            dispatcher.dispatched_offset = files.min_offset  # retention removed the rest
            return True
        if file is None or offset >= limit:
            return False
        end = min(file.readable, limit - file.start)
        is_known = offset >= max(self.written_from, self._deleted_to)
        if is_known and dispatcher.dispatch_written(file, offset - file.start, end, BLOCK_RECORDS):
            return True
        facts: list[Fact] = []
        passed = offset  # the end of the last record that was read
        try:
            for record, piece, base in read_records(file, offset - file.start, end):
                if record.physical_offset >= self._deleted.get(record.topic, 0):
                    facts.append(dispatcher.fact_of(record, piece, base))
                passed = record.physical_offset + record.size
                if len(facts) >= STEP_RECORDS:
                    break
        except CorruptRecord:
            # With facts, the next step starts with it, and raises.
            if not facts and not _is_within_record(file, passed, limit):
                raise
        if facts:
            dispatcher.dispatch_read(facts)
        elif end == file.readable:
            dispatcher.dispatched_offset = file.start + end
        elif passed > offset:
            dispatcher.dispatched_offset = passed
        else:
            return False
        self._log.last_store_timestamp = max(
            self._log.last_store_timestamp, dispatcher.dispatched_timestamp
        )
        return True


def _is_within_record(file: MappedFile, offset: int, limit: int) -> bool:
    """Whether the limit is within the record that begins here: what a Java slave has confirmed may
    end anywhere. CorruptRecord when there is none."""
    if limit - file.start >= file.readable:
        return False
    found = next(read_records(file, offset - file.start, file.readable), None)
    return found is not None and found[0].physical_offset + found[0].size > limit
