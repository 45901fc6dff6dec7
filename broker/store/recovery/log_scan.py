"""Recovery's scan of the log: checks every record and dispatches those that the plan names.

Plain records in blocks of thousands, others one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final

import numpy as np

from aerobee.broker.store.dispatch.dispatch_block import number_block
from aerobee.broker.store.dispatch.dispatcher import RecordDispatcher
from aerobee.broker.store.errors import is_no_space
from aerobee.broker.store.files.mapped_file import MappedFile
from aerobee.broker.store.log.commitlog import CommitLog
from aerobee.broker.store.log.facts import Fact
from aerobee.broker.store.log.scan_block import Block, read_block
from aerobee.broker.store.settings import StoreSettings
from aerobee.protocol.files.record_scan import scan_records

CHUNK_RECORDS: Final = 1024
BLOCK_RECORDS: Final = 8192
FOREVER: Final = 1 << 62


class LogScan:
    def __init__(
        self,
        settings: StoreSettings,
        commit_log: CommitLog,
        dispatcher: RecordDispatcher,
        dispatch_from: int,
        report_progress: Callable[[int], None],
    ) -> None:
        """`report_progress` is called with the offset reached."""
        self._settings = settings
        self._log = commit_log
        self._dispatcher = dispatcher
        self._dispatch_from = dispatch_from
        self._report_progress = report_progress
        self.no_space: OSError | None = None  # the disk refused queue entries or keys ...
        self.stalled_at = FOREVER  # ... of the records from here on

    def scan_file(self, file: MappedFile, position: int) -> None:
        """Check one file's records and dispatch them; CorruptRecord at the first invalid one."""
        check_crc = self._settings.check_crc_on_recover
        while position < file.size:
            block = read_block(
                file.view, file.start, position, file.size, BLOCK_RECORDS, check_crc=check_crc
            )
            if len(block):
                position = int(block.end[-1])
                self._log.last_store_timestamp = max(
                    self._log.last_store_timestamp, int(block.time.max())
                )
                first = int(np.searchsorted(block.start, self._dispatch_from - file.start))
                self._dispatch_block(file, block.cut(first))
            if len(block) < BLOCK_RECORDS:
                position = self._scan_one_by_one(file, position)
            self._report_progress(file.start + position)

    def _dispatch_block(self, file: MappedFile, block: Block) -> None:
        if not len(block):
            return
        if self.no_space is None:
            try:
                self._dispatcher.dispatch_block(file, block)
            except OSError as error:
                self._stall(error, file.start + int(block.start[0]))
        if self.no_space is not None:
            number_block(self._log.queues, file.view, block)

    def _stall(self, error: OSError, offset: int) -> None:
        """A full disk must not block the start: reput resumes from `offset` later. The rest of the
        log is only checked, and queue offsets are assigned."""
        if not is_no_space(error):
            raise error
        self.no_space = error
        self.stalled_at = offset

    def _scan_one_by_one(self, file: MappedFile, position: int) -> int:
        """Scan the next records, the first of which ended a block; returns the position after
        them."""
        facts: list[Fact] = []
        check_crc = self._settings.check_crc_on_recover
        records = scan_records(file.view, file.start, position, file.size, check_crc=check_crc)
        newest = self._log.last_store_timestamp
        taken = 0
        try:
            for record in islice(records, CHUNK_RECORDS):
                taken += 1
                newest = max(newest, record.store_timestamp)
                position = record.physical_offset + record.size - file.start
                if record.physical_offset >= self._dispatch_from:
                    facts.append(self._dispatcher.fact_of(record, file.view, file.start))
            return position if taken == CHUNK_RECORDS else file.size
        finally:
            self._log.last_store_timestamp = newest
            if facts:
                self._dispatch_facts(facts)

    def _dispatch_facts(self, facts: list[Fact]) -> None:
        if self.no_space is None:
            try:
                self._dispatcher.dispatch_read(facts)
            except OSError as error:
                self._stall(error, facts[0][2])
        if self.no_space is not None:
            for queue, queue_offset, *_ in facts:
                if queue_offset >= 0:
                    queue.assigned = queue_offset + 1
