"""Reading: from a queue by offset and by time, from the log by physical offset."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

import structlog

from aerobee.broker.store.files.mapped_file import MappedFile
from aerobee.broker.store.log.commitlog import CommitLog
from aerobee.broker.store.log.read_records import PROBE, read_record
from aerobee.broker.store.queues.consume_queue import ConsumeQueue
from aerobee.broker.store.queues.queue_start import first_real
from aerobee.broker.store.reading.filter_time import FilterTime
from aerobee.broker.store.reading.plain_read import FASTEST, PlainRead, Take
from aerobee.broker.store.results import Boundary, ReadResult, ReadStatus
from aerobee.protocol.files.queue_entry import BLANK_ENTRY_SIZE, ENTRY, ENTRY_OFFSET, ENTRY_SIZE
from aerobee.protocol.files.record_layout import CorruptRecord
from aerobee.protocol.files.record_scan import check_record

log = structlog.get_logger("aerobee.store")

DAMAGED_MAX: Final = 64  # records one after the other that a search by time skips
_NO_BYTES = memoryview(b"")
_memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class Reader:
    def __init__(self, commit_log: CommitLog, scan_bytes: int, hot_percent: int) -> None:
        self._log = commit_log
        self._scan_bytes = scan_bytes
        self.hot_bytes = _memory_bytes * hot_percent // 100
        self.take: Take = FASTEST
        self.check_records = False  # set when the start found damage: check each record

    # -- by queue offset

    def read_queue(
        self,
        queue: ConsumeQueue | None,
        queue_offset: int,
        max_count: int,
        max_bytes: int,
        matches: Callable[[int], bool] | None,
        matches_record: Callable[[memoryview], bool] | None,
    ) -> ReadResult:
        if queue is None:
            return ReadResult(ReadStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
        low, high = queue.min_offset, queue.max_offset
        if high <= queue_offset <= queue.assigned != high:  # stored, but not dispatched yet
            return ReadResult(ReadStatus.OFFSET_OVERFLOW_ONE, queue_offset, low, high)
        if high == 0:
            return ReadResult(ReadStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
        if queue_offset < low:
            return ReadResult(ReadStatus.OFFSET_TOO_SMALL, low, low, high)
        if queue_offset == high:
            return ReadResult(ReadStatus.OFFSET_OVERFLOW_ONE, queue_offset, low, high)
        if queue_offset > high:
            return ReadResult(ReadStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
        entries = queue.entries(queue_offset, max(self._scan_bytes // ENTRY_SIZE, max_count))
        if not entries:
            after = queue.next_file_offset(queue_offset)
            return ReadResult(ReadStatus.OFFSET_FOUND_NULL, after, low, high)
        result = ReadResult(ReadStatus.NO_MATCHED_MESSAGE, queue_offset, low, high)
        if self.check_records:
            matches_record = _sound_only(matches_record)
        if queue.ext is not None and matches is not None:
            matches = _resolving(queue, matches)
        try:
            self._collect(result, entries, max(max_count, 1), max_bytes, matches, matches_record)
        except BaseException:
            result.release()
            raise
        return result

    def read_plain(
        self, queue: ConsumeQueue, queue_offset: int, max_count: int, max_bytes: int
    ) -> PlainRead | None:
        """The common pull: every record of a range. None when there is none, when it is far behind
        the log's end, or in a special case: use `read_queue` then. The caller holds the file while
        it keeps a view."""
        if queue_offset < queue.min_offset or max_count < 1 or self.check_records:
            return None
        entries = queue.entries(queue_offset, max_count)
        if not entries:
            return None
        (physical_offset,) = ENTRY_OFFSET.unpack_from(entries)
        log_files = self._log.files
        file = log_files.find(physical_offset)
        if file is None or not file.usable:
            return None
        last = log_files.files[-1]
        behind = last.start + last.wrote - physical_offset
        if behind > self.hot_bytes:
            return None
        taken = self.take(entries, file, max_bytes)
        if taken is None:
            return None
        start, end, records, size, count = taken
        return file, start, end, records, size, count, behind

    def _collect(
        self,
        result: ReadResult,
        entries: bytes,
        max_count: int,
        max_bytes: int,
        matches: Callable[[int], bool] | None,
        matches_record: Callable[[memoryview], bool] | None,
    ) -> None:
        """Take records for the entries; adjacent records become one span. One long loop without
        calls: this is where a pull spends its time."""
        file: MappedFile | None = None
        view = _NO_BYTES
        file_start = file_end = 0  # the readable range of `file`
        run_file: MappedFile | None = None  # of the adjacent records that were taken last
        run_start = run_end = -1
        add_span = result.spans.append
        next_offset = result.next_offset
        count = total = 0
        gone = False
        time = None if matches_record is None else FilterTime()
        tested = 0
        for offset, size, code in ENTRY.iter_unpack(entries):
            if size == BLANK_ENTRY_SIZE or (matches is not None and not matches(code)):
                next_offset += 1
                continue
            end = offset + size
            if not file_start <= offset < end <= file_end:
                file = self._log.find_readable(offset)
                if (
                    file is None
                    or not offset < end <= file.start + file.readable
                    or not self._hold(result, file)
                ):
                    file, file_start, file_end, gone = None, 0, 0, True
                    next_offset += 1
                    continue
                view = file.view
                file_start, file_end = file.start, file.start + file.readable
            if count and (count >= max_count or total + size > max_bytes):
                break
            if matches_record is not None:
                if tested and time is not None and time.is_over:
                    break
                tested += 1
                if not matches_record(view[offset - file_start : end - file_start]):
                    next_offset += 1
                    continue
            if offset != run_end or offset == file_start:
                if run_file is not None:
                    add_span((run_file, run_start - run_file.start, run_end - run_start))
                run_file, run_start = file, offset
            run_end = end
            next_offset += 1
            count += 1
            total += size
        if run_file is not None:
            add_span((run_file, run_start - run_file.start, run_end - run_start))
        self._finish(result, next_offset, count, total, gone)

    def _hold(self, result: ReadResult, file: MappedFile) -> bool:
        if file in result.held:
            return True
        if not file.hold():
            return False
        result.held.append(file)
        return True

    def _finish(
        self, result: ReadResult, next_offset: int, count: int, total: int, gone: bool
    ) -> None:
        result.next_offset = next_offset
        result.count = count
        result.size = total
        if count:
            result.status = ReadStatus.FOUND
            file, position, _ = result.spans[0]
            result.cold = self._log.max_offset - (file.start + position) > self.hot_bytes
        else:
            result.release()
            if gone:
                result.status = ReadStatus.MESSAGE_WAS_REMOVING

    # -- by physical offset

    def record_at(self, physical_offset: int, size: int | None = None) -> memoryview | None:
        """The bytes of the record at this offset; None when there is none."""
        file = self._log.find_readable(physical_offset)
        if file is None:
            return None
        try:
            record, view = read_record(file, physical_offset, size or PROBE)
        except CorruptRecord:
            return None
        return view if size is None or size == record.size else None

    def store_time_at(self, physical_offset: int) -> int:
        file = self._log.find_readable(physical_offset)
        if file is None:
            return -1
        try:
            return read_record(file, physical_offset)[0].store_timestamp
        except CorruptRecord:
            return -1

    # -- by time

    def store_time(self, queue: ConsumeQueue, queue_offset: int) -> int:
        entry = queue.entry(queue_offset)
        return self.store_time_at(entry[0]) if entry is not None else -1

    def store_time_later(self, queue: ConsumeQueue, queue_offset: int) -> Callable[[], int]:
        """The same for a thread, for what is in the queue now."""
        place = queue.kept_place(queue_offset)

        def store_time() -> int:
            found = queue.written_place(queue_offset) if place is None else place
            return -1 if found is None else self.store_time_at(found)

        return store_time

    def offset_by_time(self, queue: ConsumeQueue, timestamp_ms: int, boundary: Boundary) -> int:
        """LOWER: the first message not before the time (the end if none); UPPER: the last not
        after it (the beginning if none)."""
        low, high = queue.min_offset, queue.max_offset
        begin, end = low, high
        while low < high:
            middle, time_ms = self._time_from(queue, (low + high) // 2, high)
            before = time_ms < timestamp_ms or (
                boundary is Boundary.UPPER and time_ms == timestamp_ms
            )
            if middle < high and before:
                low = middle + 1
            else:
                high = (low + high) // 2
        if boundary is Boundary.LOWER:
            return first_real(queue, low, end)
        return max(low - 1, begin)

    def _time_from(self, queue: ConsumeQueue, queue_offset: int, end: int) -> tuple[int, int]:
        """The first message from here on whose store time is known, and that; `end` if there is
        none before it. Without many damaged records together it is one of the next."""
        for _ in range(DAMAGED_MAX):
            queue_offset = first_real(queue, queue_offset, end)
            time_ms = self.store_time(queue, queue_offset) if queue_offset < end else -1
            if time_ms >= 0 or queue_offset >= end:
                break
            entry = queue.entry(queue_offset)
            if entry is None or entry[0] < self._log.files.min_offset:
                break  # its record has expired: it is older
            queue_offset += 1
        return queue_offset, time_ms


def _sound_only(
    matches_record: Callable[[memoryview], bool] | None,
) -> Callable[[memoryview], bool]:
    """A filter that also skips damaged records, and logs them."""

    def is_sound(view: memoryview) -> bool:
        # Its position was checked with its queue entry.
        try:
            check_record(view, None, 0, len(view), True)
        except CorruptRecord as error:
            log.error("a damaged record is not served", reason=str(error))
            return False
        return matches_record is None or matches_record(view)

    return is_sound


def _resolving(queue: ConsumeQueue, matches: Callable[[int], bool]) -> Callable[[int], bool]:
    """The filter for a queue whose entries may have unit addresses instead of tags codes."""
    return lambda code: matches(queue.real_tags_code(code))
