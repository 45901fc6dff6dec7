"""Executes a recovery plan: find the log's end, cut what follows it, rebuild queues and index.

Order matters, because the power may fail again: the log's end is fixed and synced first, then
queues and index are derived from the log, and the checkpoint is written last. All steps are
idempotent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import structlog

from aerobee.broker.store.dispatch.reput import Reput
from aerobee.broker.store.durability.checkpoint import CheckpointFile
from aerobee.broker.store.durability.queue_dates import date_file, timestamp_at
from aerobee.broker.store.errors import is_no_space
from aerobee.broker.store.files.mapped_file import MappedFile
from aerobee.broker.store.index.index_file import IndexFile
from aerobee.broker.store.index.index_service import IndexService
from aerobee.broker.store.log.commitlog import CommitLog
from aerobee.broker.store.queues import queue_start
from aerobee.broker.store.queues.consume_queue import ConsumeQueue
from aerobee.broker.store.recovery.log_scan import FOREVER, LogScan
from aerobee.broker.store.recovery.plan import (
    IndexFileFacts,
    LogFileFacts,
    Mode,
    Plan,
    RecoveryFacts,
    needs_times,
    plan_recovery,
)
from aerobee.broker.store.recovery.queue_end import LIGHT, recover_queue
from aerobee.broker.store.settings import StoreSettings
from aerobee.protocol.files import properties
from aerobee.protocol.files.checkpoint import StoreCheckpoint
from aerobee.protocol.files.record import decode_record
from aerobee.protocol.files.record_layout import CorruptRecord
from aerobee.protocol.files.record_scan import NOTHING_HERE, find_record

log = structlog.get_logger("aerobee.store")

Progress = Callable[[int, int], None]  # bytes done, bytes in all
_RECORD_MAX = 8 << 20
WRITE_STEP = 1024 * 1024


def gather_facts(
    settings: StoreSettings,
    commit_log: CommitLog,
    index: IndexService | None,
    checkpoint: StoreCheckpoint,
    clean: bool,
) -> RecoveryFacts:
    last = commit_log.files.last
    by_times = last is not None and needs_times(clean, checkpoint, last.end)
    files = tuple(
        LogFileFacts(file.start, timestamp_at(file, 0) if by_times else 0)
        for file in commit_log.files.files
    )
    index_files = (
        ()
        if index is None
        else tuple(
            IndexFileFacts(file.number, file.begin_offset, file.end_timestamp, file.count)
            for file in index.files
        )
    )
    return RecoveryFacts(
        clean,
        settings.mapped_file_size_commit_log,
        files,
        checkpoint,
        index_files,
        settings.message_index_enable and settings.message_index_safe,
    )


def rebuild_derived(
    settings: StoreSettings,
    commit_log: CommitLog,
    index: IndexService | None,
    reput: Reput,
    checkpoint: CheckpointFile,
) -> Iterator[None]:
    """Rebuild queues and index from the checkpoint on, while the store runs: a few records per
    yield. Readers of entries that are not rebuilt yet have to wait. OSError when the disk refuses:
    it can be repeated."""
    facts = gather_facts(settings, commit_log, index, checkpoint.value, clean=False)
    return Recovery(settings, commit_log, index, reput, None).rebuild(facts)


def cut_log(commit_log: CommitLog, end: int, *, synced: bool = False) -> OSError | None:
    """Cut the log here, durably: what follows reads as zeros and is allocated. OSError when the
    disk has no room for that."""
    no_space: OSError | None = None
    files = commit_log.files
    files.remove_from(end if files.find(end) is None or end % files.file_size else end + 1)
    for file in files.files:
        if file.end <= end:
            if not synced:
                file.file.sync()
            continue
        file.cut(end - file.start)
        try:
            file.allocate_to(file.size, file.size)
        except OSError as error:
            if not is_no_space(error):
                raise
            no_space = error
        file.file.sync()
    commit_log.flushed_offset = end if files.files else 0
    return no_space


def _limit_of(queue: ConsumeQueue, plan: Plan) -> int | None:
    """Where a queue's entries are dropped from. We write no entries of light queues: dropped ones
    would be lost."""
    rebuilt = plan.rebuild_queues_from >= 0 and not queue.topic.startswith(LIGHT)
    return plan.rebuild_queues_from if rebuilt else None


def _is_dispatched_again(file: IndexFile, plan: Plan) -> bool:
    """Whether records that the index file has entries of are dispatched again."""
    return plan.durable_to >= 0 and file.end_offset >= plan.dispatch_from >= 0


class Recovery:
    """One run of a plan over the parts of a store."""

    def __init__(
        self,
        settings: StoreSettings,
        commit_log: CommitLog,
        index: IndexService | None,
        reput: Reput,
        progress: Progress | None,
        sync_failed: bool = False,
    ) -> None:
        self._settings = settings
        self._sync_failed = sync_failed
        self._log = commit_log
        self._index = index
        self._reput = reput
        self._dispatcher = reput.dispatcher
        self._progress = progress
        self.found_damage = False
        self._stalled_at = FOREVER  # where a full disk stopped dispatch during the scan
        self.no_space: OSError | None = None  # a full disk deferred a step

    def run(self, facts: RecoveryFacts) -> Plan:
        plan = plan_recovery(facts)
        if plan.mode is not Mode.EMPTY:
            log.info("recovery", mode=plan.mode.name, reason=plan.reason, scan_from=plan.scan_from)
        if plan.mode is Mode.EMPTY:
            self._forget_derived(plan)
            return plan
        self._settle_index(plan)
        for queue in self._log.queues:
            recover_queue(queue, self._log, _limit_of(queue, plan))
        end = self._scan(plan)
        if self._sync_failed:
            self._write_again(plan.scan_from, end)
        self._cut_log(end, synced=plan.mode is Mode.NORMAL)
        for queue in self._log.queues:
            if queue.max_physical_offset > end:
                recover_queue(queue, self._log, end)
        self._catch_up(plan, end)
        self._number_queues()
        if plan.rebuild_queues_from >= 0:
            self._date_queue_files(plan.rebuild_queues_from)
        return plan

    def rebuild(self, facts: RecoveryFacts) -> Iterator[None]:
        """Rebuild queues and index from the checkpoint on, a few records per yield; the log is not
        changed."""
        plan = plan_recovery(facts)
        if self._index is not None:
            self._index.forget_pending()
        self._settle_index(plan)
        for queue in self._log.queues:
            recover_queue(queue, self._log, _limit_of(queue, plan))
        self._reput.start_at(max(plan.dispatch_from, self._log.files.min_offset))
        yield
        while self._step_past_damage(self._log.max_offset):
            yield
        for queue in self._log.queues:
            queue_start.correct_min_offset(queue, self._log.files.min_offset)

    # -- index

    def _settle_index(self, plan: Plan) -> None:
        if self._index is None:
            return
        for file in reversed(list(self._index.files)):
            if file.number in plan.drop_index:
                log.info("an index file later than the checkpoint is rebuilt", path=file.path)
                self._index.drop(file)
            elif self._is_beyond(file, plan):
                log.info("an index file ahead of the log is rebuilt", path=file.path)
                self._index.drop(file)
            else:
                self._cut_index_file(file, plan)
        self._complete_newest()

    def _cut_index_file(self, file: IndexFile, plan: Plan) -> None:
        """Drop the entries of records that are dispatched again. The checkpoint's newest file is
        always cut: its slots may be of a later state than its entries."""
        count = file.count
        if plan.cut_index is not None and file.number == plan.cut_index[0]:
            count = plan.cut_index[1]
        elif not _is_dispatched_again(file, plan):
            return
        file.cut(file.count_below(plan.dispatch_from, count))

    def _is_beyond(self, file: IndexFile, plan: Plan) -> bool:
        """Whether all its entries are of records that are dispatched again, because those of the
        file before it are, too. After a power failure the index may be ahead of the log by more
        than a file."""
        assert self._index is not None
        before = self._index.files.index(file) - 1
        return before >= 0 and _is_dispatched_again(self._index.files[before], plan)

    def _complete_newest(self) -> None:
        """Add the missing keys of the newest indexed record: they were in a removed file, or a kill
        came between two of them."""
        assert self._index is not None
        offset = self._index.indexed_offset
        file = self._log.files.find(offset) if offset >= 0 else None
        if file is None:
            return
        position = offset - file.start
        if file.file.first_unreadable(position, position + _RECORD_MAX) is not None:
            return  # on a bad sector: keys are unreadable
        try:
            record = decode_record(file.view, position)
        except CorruptRecord:
            return  # the scan will cut the log before it
        queue = self._log.queues.of_record(record.topic.encode(), record.queue_id)
        if queue is None:
            return
        for key in properties.keys_of(record.properties):
            if offset not in self._index.find(record.topic, key, 0, FOREVER):
                text = properties.pair(properties.UNIQ_KEY, key)
                self._index.add(
                    [
                        (
                            queue,
                            -1,
                            offset,
                            record.size,
                            record.store_timestamp,
                            text,
                            record.sys_flag,
                        )
                    ]
                )
        try:
            self._index.write_pending()
        except OSError as error:
            if not is_no_space(error):
                raise
            self._note_no_space(error)  # they are written with the next keys

    def _forget_derived(self, plan: Plan) -> None:
        """Without a log, queues and index point to nothing: remove them."""
        for queue in self._log.queues:
            if queue.files.files:
                log.warning(
                    "a queue without a commitlog is removed",
                    topic=queue.topic,
                    queue_id=queue.queue_id,
                )
            queue.destroy()
        self._settle_index(plan)

    # -- log

    def _scan(self, plan: Plan) -> int:
        """Find the end of the valid records; dispatches those that the plan names."""
        end = plan.scan_from
        last = self._log.files.files[-1]
        total = last.end - plan.scan_from
        scan = LogScan(
            self._settings,
            self._log,
            self._dispatcher,
            plan.dispatch_from if plan.dispatch_from >= 0 else last.end,
            lambda offset: self._report_progress(offset - plan.scan_from, total),
        )
        while (file := self._log.files.find(end)) is not None:
            file.check_readable(end - file.start, file.size)
            try:
                scan.scan_file(file, end - file.start)
                end = file.end
            except CorruptRecord as error:
                if error.position < plan.durable_to:
                    self._note_damage(file, error, plan.durable_to)
                    end = plan.durable_to
                    continue
                if error.reason != NOTHING_HERE:
                    log.warning(
                        "the commitlog ends before an invalid record",
                        path=file.path,
                        physical_offset=error.position,
                        reason=error.reason,
                    )
                self._report_progress(total, total)
                end = error.position
                break
            self._report_progress(end - plan.scan_from, total)
        self._note_no_space(scan.no_space)
        self._stalled_at = scan.stalled_at
        return end

    def _note_no_space(self, error: OSError | None) -> None:
        self.no_space = self.no_space or error

    def _note_damage(self, file: MappedFile, error: CorruptRecord, durable_to: int) -> None:
        self.found_damage = True
        log.error(
            "a record that was on disk is damaged: it is not served, what follows it is kept; "
            "restore the file from a copy if there is one",
            path=file.path,
            physical_offset=error.position,
            reason=error.reason,
            unchecked_to=durable_to,
        )

    def _report_progress(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(done, total)

    def _write_again(self, start: int, end: int) -> None:
        """After a failed sync the kernel marks pages as clean that never reached the disk: another
        sync would not write them."""
        log.warning("a sync failed before: the log is written again", start=start, end=end)
        for file in self._log.files.overlapping(start, end):
            length = min(end - file.start, file.size)
            for position in range(0, length, WRITE_STEP):
                piece = file.view[position : min(position + WRITE_STEP, length)]
                file.file.write(position, bytes(piece))

    def _cut_log(self, end: int, *, synced: bool) -> None:
        self._note_no_space(cut_log(self._log, end, synced=synced))

    # -- queues

    def _catch_up(self, plan: Plan, end: int) -> None:
        """Dispatch what the log has beyond the queues."""
        if plan.mode is Mode.NORMAL:
            known = max((queue.max_physical_offset for queue in self._log.queues), default=-1)
            start = known if known >= 0 else self._log.files.min_offset
            self._reput.start_at(min(max(start, self._log.files.min_offset), end))
        else:
            self._reput.start_at(min(self._stalled_at, end))
        try:
            while self._step_past_damage(end):
                self._report_progress(self._dispatcher.dispatched_offset, end)
        except OSError as error:
            if not is_no_space(error):
                raise
            self._note_no_space(error)  # reput resumes there once there is room
        self._dispatcher.dispatched_timestamp = self._log.last_store_timestamp

    def _step_past_damage(self, end: int) -> bool:
        """A step of reput; an unreadable record is logged and skipped."""
        try:
            return self._reput.step()
        except CorruptRecord as error:
            file = self._log.files.find(error.position)
            assert file is not None
            room = min(end - file.start, file.size)
            after = find_record(file.view, file.start, error.position + 1 - file.start, room)
            self._note_damage(file, error, file.start + after)
            self._reput.start_at(file.start + after)
            return True

    def _date_queue_files(self, rebuilt_from: int) -> None:
        """Set the dates of rewritten files to those of their last messages."""
        for queue in self._log.queues:
            for mapped in queue.files.files[:-1]:
                date_file(self._log.files, queue, mapped, rebuilt_from)

    def _number_queues(self) -> None:
        for queue in self._log.queues:
            known = (
                queue.assigned if self.no_space is not None else 0
            )  # offsets without entries yet
            queue.assigned = max(known, queue.max_offset)
            queue_start.correct_min_offset(queue, self._log.files.min_offset)
