"""The dispatcher: writes the queue entries and index keys of records, and notifies listeners.

Records come as facts of an append, as facts read from the log, or as a block of the log in columns.
`dispatched_offset` is its progress; a record below it is ignored. After an OSError the caller
passes again what was not dispatched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aerobee.broker.compiled import hot
from aerobee.broker.store.base import StoreBase
from aerobee.broker.store.dispatch.dispatch_block import Derived, dispatch_block, dispatch_derived
from aerobee.broker.store.dispatch.entries import NO_MAX, put_entries
from aerobee.broker.store.dispatch.facts import count_up_to
from aerobee.broker.store.files.mapped_file import MappedFile
from aerobee.broker.store.index.index_service import IndexService
from aerobee.broker.store.log.commitlog import CommitLog
from aerobee.broker.store.log.facts import (
    Fact,
    Facts,
    begin_of_all,
    end_of,
    end_of_all,
    store_time_of,
)
from aerobee.broker.store.log.scan_block import Block, read_block
from aerobee.broker.store.queues.consume_queue import ConsumeQueue
from aerobee.broker.store.queues.listeners import ArrivalListeners
from aerobee.broker.store.results import Arrival
from aerobee.protocol.files.record import NOT_IN_QUEUE
from aerobee.protocol.files.record_columns import LEAST_SIZE
from aerobee.protocol.files.record_layout import CorruptRecord
from aerobee.protocol.files.record_scan import Scanned, check_record

Derive = Callable[[Facts], Derived | None]
QueueOf = Callable[[bytes, int], ConsumeQueue | None]
# Arguments: view of a log file, its start offset, first and last position, most records.
ReadFacts = Callable[[memoryview, int, int, int, int, QueueOf], Facts]

BLOCK_MIN: Final = 256  # from this number on, columns cost half of a loop over records
OPENED_MAX: Final = 2  # queues that get a new file or blocks per step: about 0.3 ms each
CHUNK_RECORDS: Final = 1024


class RecordDispatcher:
    def __init__(
        self,
        base: StoreBase,
        commit_log: CommitLog,
        index: IndexService | None,
        listeners: ArrivalListeners,
    ) -> None:
        self._settings = base.settings
        self._log = commit_log
        self._index = index
        self._listeners = listeners
        self._stats = base.stats
        self.dispatched_offset = 0
        self.dispatched_timestamp = 0
        self._failed_to = 0  # pending records below may have keys in the index already
        self._arrivals: list[Arrival] = []
        # Entries and keys of plain records, derived in C if the compiled part is installed.
        self.derive: Derive | None = hot.derived if hot is not None else None
        self.read_facts: ReadFacts | None = hot.read_facts if hot is not None else None

    # -- facts of an append

    def dispatch_appended(self, facts: Facts, *, in_columns: bool) -> None:
        """Dispatch a prefix of these facts, at least one. The caller drops them and then calls
        `notify_arrivals`: a listener may re-enter here. `in_columns`: the log may be read."""
        if in_columns and len(facts) >= BLOCK_MIN:
            facts = self._of_one_file(facts)
            if len(facts) >= BLOCK_MIN and self._dispatch_as_block(facts):
                return
        self._dispatch(facts, OPENED_MAX)

    def notify_arrivals(self) -> None:
        if self._arrivals:
            arrivals, self._arrivals = self._arrivals, []
            self._listeners.notify(arrivals)

    def _of_one_file(self, facts: Facts) -> Facts:
        """The facts whose records are in the first one's file."""
        file = self._log.files.find(begin_of_all(facts))
        if file is None or end_of_all(facts) <= file.end:
            return facts
        return facts[: count_up_to(facts, file.end)]

    def _dispatch_as_block(self, facts: Facts) -> bool:
        """Dispatch records of one file in columns. False: not plain, or a queue has listeners."""
        start, end = begin_of_all(facts), end_of_all(facts)
        file = self._log.files.find(start)
        if file is None or start not in (self.dispatched_offset, file.start):
            return False
        self._failed_to = end
        derived = self.derive(facts) if self.derive is not None else None
        if derived is not None:
            if not dispatch_derived(self._index, derived, OPENED_MAX):
                return False
            self._note_dispatched(end, store_time_of(facts[-1]), len(facts))
            return True
        block = read_block(
            file.view,
            file.start,
            start - file.start,
            end - file.start,
            len(facts),
            check_crc=False,
        )
        return len(block) == len(facts) and self._dispatch_columns(file, block, OPENED_MAX)

    # -- records read from the log

    def dispatch_written(self, file: MappedFile, position: int, end: int, count: int) -> bool:
        """Dispatch records that this process has just written (they are in the page cache), in C
        or in columns. False, with nothing done: too few for columns, or not plain."""
        if self._dispatch_plain(file, position, end, count):
            return True
        if end - position < BLOCK_MIN * LEAST_SIZE:
            return False
        block = read_block(file.view, file.start, position, end, count, check_crc=False)
        if len(block) < BLOCK_MIN or not self._dispatch_columns(file, block, OPENED_MAX):
            return False
        self._note_time()
        return True

    def _dispatch_plain(self, file: MappedFile, position: int, end: int, count: int) -> bool:
        """In C, whatever their number: plain records of queues without listeners."""
        if self.read_facts is None or self.derive is None:
            return False
        queue_of = self._log.queues.of_record
        facts = self.read_facts(file.view, file.start, position, end, count, queue_of)
        derived = self.derive(facts) if len(facts) else None
        if derived is None or not dispatch_derived(self._index, derived, OPENED_MAX):
            return False
        self._note_dispatched(end_of_all(facts), store_time_of(facts[-1]), len(facts))
        self._note_time()
        return True

    def _note_time(self) -> None:
        """Keep store timestamps monotonic: the next one must not be older than the log's last."""
        self._log.last_store_timestamp = max(
            self._log.last_store_timestamp, self.dispatched_timestamp
        )

    def dispatch_block(self, file: MappedFile, block: Block) -> None:
        """Dispatch a block of the log, in columns or, if it is not plain, record by record.
        CorruptRecord when a topic is not valid."""
        if self._dispatch_columns(file, block):
            return
        for first in range(0, len(block), CHUNK_RECORDS):
            facts: list[Fact] = []
            try:
                for position in block.start[first : first + CHUNK_RECORDS].tolist():
                    room = file.size - position
                    record = check_record(file.view, file.start, position, room, False)
                    facts.append(self.fact_of(record, file.view, file.start))
            finally:
                if facts:
                    self.dispatch_read(facts)

    def fact_of(self, record: Scanned, view: memoryview, base: int) -> Fact:
        """The fact that append would have made. CorruptRecord when its topic is not valid."""
        queue = self._log.queues.of_record(record.topic, record.queue_id)
        if queue is None:
            raise CorruptRecord(record.physical_offset, f"its topic is {record.topic!r}")
        end = record.physical_offset + record.size - base
        return (
            queue,
            -1 if record.sys_flag & NOT_IN_QUEUE else record.queue_offset,
            record.physical_offset,
            record.size,
            record.store_timestamp,
            str(view[record.properties_position : end], "utf-8", "replace"),
            record.sys_flag,
        )

    def dispatch_read(self, facts: list[Fact]) -> None:
        """Dispatch records read from the log; the index may have the keys of some already."""
        known = 0
        if self._index is not None:
            self._index.write_pending()
            indexed = self._index.indexed_offset
            known = sum(1 for fact in facts if fact[2] <= indexed)
        try:
            if known:
                self._put_entries(facts[:known], NO_MAX)
                self.dispatched_timestamp = store_time_of(facts[known - 1])
            self._dispatch(facts[known:], NO_MAX)
        finally:
            for queue in {fact[0] for fact in facts}:
                queue.assigned = max(queue.assigned, queue.max_offset)
            self.notify_arrivals()

    # -- both

    def _dispatch_columns(
        self, file: MappedFile, block: Block, opened_max: int | None = None
    ) -> bool:
        if not dispatch_block(
            self._log.queues, self._index, file.view, file.start, block, opened_max
        ):
            return False
        end = file.start + int(block.end[-1])
        self._note_dispatched(end, int(block.time[-1]), len(block))
        return True

    def _note_dispatched(self, end: int, time_ms: int, count: int) -> None:
        self.dispatched_offset = end
        self.dispatched_timestamp = time_ms
        self._stats.dispatched += count

    def _dispatch(self, facts: Facts, opened_max: int) -> None:
        """Write queue entries and keys. After a failure none counts as dispatched, although some
        queues may have their entries."""
        try:
            self._put_entries(facts, opened_max)
        finally:
            done = facts[: count_up_to(facts, self.dispatched_offset)]
            if done:
                self.dispatched_timestamp = store_time_of(done[-1])
                self._stats.dispatched += len(done)
                if self._index is not None:
                    if done[0][2] < self._failed_to:
                        known_to = self._index.known_to
                        done = [fact for fact in done if fact[2] > known_to]
                    self._index.add(done)

    def _put_entries(self, facts: Facts, opened_max: int) -> None:
        count = put_entries(self._settings, facts, self._arrivals, opened_max)
        if count:
            self.dispatched_offset = end_of(facts[count - 1])
