"""flush: makes the queues and the index durable after the log, and says so in checkpoint.

The log's own half is in flush_log. Here too a flush is `prepare` on the loop, `sync` in a thread
(or in place in a simulation) and `complete` on the loop again. The checkpoint is written last and
claims only what is on disk by then: a round that does not cover every queue claims nothing.

A disk without room never fences the store: what comes after the entries is put off, and entries
that the kernel dropped because it found no blocks for them are made anew from the log.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from aerobee.broker.clock import Clock
from aerobee.broker.store.checkpoint import CheckpointFile, StoreCheckpoint
from aerobee.broker.store.commitlog import CommitLog
from aerobee.broker.store.consume_queue import ENTRY_SIZE, ConsumeQueue
from aerobee.broker.store.disk import Disk
from aerobee.broker.store.errors import NO_MORE_FILES, is_no_space, remedy_for
from aerobee.broker.store.flush_log import LogFlush, LogJob
from aerobee.broker.store.index_file import IndexFile
from aerobee.broker.store.index_service import IndexService
from aerobee.broker.store.mapped_file import MappedFile
from aerobee.broker.store.queue_dates import date_file, is_full
from aerobee.broker.store.refusals import Cause, Refusals
from aerobee.broker.store.reports import Reports
from aerobee.broker.store.reput import Reput
from aerobee.broker.store.settings import StoreSettings
from aerobee.broker.store.worker import Worker

__all__ = ["LogFlush", "LogJob", "QueueFlush", "QueueJob"]

CHECKPOINT_BYTES: Final = 128 * 1024 * 1024  # of log after which the queues are flushed whole
REBUILD_RETRY_S: Final = 5.0


@dataclass(slots=True)
class QueueJob:
    """A flush of queues; a thorough one covers all of them and the index, and is checkpointed."""

    queues: list[tuple[ConsumeQueue, int, int, list[MappedFile]]]  # ends of entries and of units
    folders: list[str] = field(default_factory=list)
    index: list[tuple[IndexFile, int]] = field(default_factory=list)
    checkpoint: StoreCheckpoint | None = None
    error: OSError | None = None
    path: str = ""  # what was synced last
    entries_synced: bool = False  # queues and index are on disk; folders and checkpoint follow


class QueueFlush:
    """Queues, index and checkpoint."""

    def __init__(
        self,
        settings: StoreSettings,
        commit_log: CommitLog,
        index: IndexService | None,
        reput: Reput,
        log_flush: LogFlush,
        checkpoint: CheckpointFile,
        disk: Disk,
        unsynced: set[str],
        clock: Clock,
        fence: Callable[[str], None],
        refusals: Refusals,
        reports: Reports,
        rebuild: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._refusals = refusals
        self._reports = reports
        self._rebuild = rebuild
        self._disk = disk
        self._unsynced = unsynced
        self._log = commit_log
        self._index = index
        self._reput = reput
        self._log_flush = log_flush
        self._checkpoint = checkpoint
        self._clock = clock
        self._fence = fence
        self.failed = False
        self.put_off = False  # the last flush was refused, and waits for the next round
        self.lost = False  # entries may have been dropped: to be made anew from the log
        self._last_thorough = clock.monotonic()

    def prepare(self, *, thorough: bool) -> QueueJob | None:
        """What to sync now; None when nothing waits."""
        if self.failed or self.lost or self._log_flush.failed:
            return None
        least_pages = 0 if thorough else self._settings.flush_consume_queue_least_pages
        job = QueueJob([])
        for queue in self._log.queues:
            files = queue.unflushed(least_pages)
            if files:
                ext_end = queue.ext.end if queue.ext is not None else 0
                job.queues.append((queue, queue.max_offset * ENTRY_SIZE, ext_end, files))
        if self._index is not None:
            if thorough:
                self._index.write_pending()
                job.index = [(file, file.count) for file in self._index.to_sync()]
            else:
                job.index = [(file, file.count) for file in self._index.unsynced]
        if thorough:
            job.checkpoint = self._claim()
            if job.checkpoint == self._checkpoint.value:
                job.checkpoint = None
        job.folders = sorted(self._unsynced)
        self._unsynced.clear()
        if job.queues or job.index or job.folders or job.checkpoint is not None:
            return job
        return None

    def _claim(self) -> StoreCheckpoint:
        """What may be claimed once the queues and the index of this moment are on disk."""
        claim = replace(
            self._checkpoint.value,
            physic_msg_timestamp=self._log_flush.flushed_timestamp,
            # Not ahead of the clock: a delayed message may begin a file with an earlier time.
            logics_msg_timestamp=min(self._reput.dispatched_timestamp, self._clock.now_ms()),
            dispatched_offset=min(self._reput.dispatched_offset, self._log.flushed_offset),
            confirm_physical_offset=self._log.flushed_offset,
        )
        last = self._index.files[-1] if self._index is not None and self._index.files else None
        if last is not None:
            claim.index_msg_timestamp = last.end_timestamp
            claim.index_file = last.number
            claim.index_count = last.count
        return claim

    def sync(self, job: QueueJob) -> QueueJob:
        claimed = self._checkpoint.value
        try:
            for queue, _, _, files in job.queues:
                for mapped in files:
                    job.path = mapped.path
                    mapped.file.sync()
                    if is_full(queue, mapped):
                        with suppress(FileNotFoundError):  # its topic may have been deleted
                            date_file(self._log.files, queue, mapped)
            for file, _ in job.index:
                job.path = file.path
                file.write_slots()
                file.file.file.sync()
            job.entries_synced = True
            for folder in job.folders:
                job.path = folder
                with suppress(FileNotFoundError):  # its topic may have been deleted meanwhile
                    self._disk.syncdir(folder)
            if job.checkpoint is not None:
                job.path = self._settings.layout.checkpoint
                self._checkpoint.value = job.checkpoint
                self._checkpoint.write()
        except OSError as error:
            self._checkpoint.value = claimed
            job.error = error
        return job

    def complete(self, job: QueueJob) -> None:
        self.put_off = False
        if job.error is not None:
            self._unsynced.update(job.folders)
            self._note_failure(job, job.error)
            return
        if Cause.QUEUES_LOST in self._refusals:
            self._refusals.clear(Cause.QUEUES_LOST)
        for queue, end, ext_end, _ in job.queues:
            queue.note_flushed(end)
            if queue.ext is not None:
                queue.ext.flushed = min(ext_end, queue.ext.end)
        if self._index is not None:
            for file, count in job.index:
                file.flushed_count = count
                if file in self._index.unsynced and file.count == count:
                    self._index.unsynced.remove(file)  # else it has filled up during the sync
                    file.drop_table()

    def _note_failure(self, job: QueueJob, error: OSError) -> None:
        self._reports.note_error(error)
        if error.errno in NO_MORE_FILES or (is_no_space(error) and job.entries_synced):
            self.put_off = True
            self._reports.disk_error(
                "a flush of the queues is put off",
                error,
                call="sync",
                path=job.path,
                then="tried again every second; " + remedy_for(error, ""),
            )
        elif is_no_space(error):
            self.lost = True
            self._refusals.set(
                Cause.QUEUES_LOST,
                f"{job.path} found no room on its disk when it was synced ({error}): free space; "
                f"its entries are then made anew from the commitlog, and sends resume by "
                f"themselves",
            )
        else:
            self.failed = True
            self._fence(
                f"{job.path} could not be synced to disk ({error}): nothing more is taken; mend "
                f"the disk, then restart the broker"
            )

    def try_rebuild(self) -> bool:
        """Make the lost entries anew; False when the disk still refuses."""
        try:
            self._rebuild()
        except OSError as error:
            self._reports.disk_error(
                "queues and index cannot be made anew",
                error,
                call="write",
                then="tried again every 5 s; " + remedy_for(error, "mend the disk"),
            )
            return False
        self.lost = False
        self.hurry()
        return True

    def step(self, *, thorough: bool) -> bool:
        """A whole flush in place; False when there was nothing to do."""
        job = self.prepare(thorough=thorough)
        if job is None:
            return False
        self.complete(self.sync(job))
        return True

    async def run(self, worker: Worker) -> None:
        while True:
            await self._clock.sleep(self._settings.flush_interval_consume_queue / 1000)
            if self.lost and not self.try_rebuild():
                await self._clock.sleep(REBUILD_RETRY_S)
                continue
            try:
                job = self.prepare(thorough=self._is_time_for_thorough())
            except OSError as error:
                self._reports.disk_error(
                    "the index could not be written before its flush",
                    error,
                    call="write",
                    then="tried again every second; " + remedy_for(error, "mend the disk"),
                )
                continue
            if job is not None:
                await worker.run_to_end(self.sync, job, self.complete)

    def hurry(self) -> None:
        """Let the next round be a thorough one."""
        self._last_thorough = float("-inf")

    def _is_time_for_thorough(self) -> bool:
        now = self._clock.monotonic()
        waited_ms = (now - self._last_thorough) * 1000
        grown = self._reput.dispatched_offset - self._checkpoint.value.dispatched_offset
        interval = self._settings.flush_consume_queue_thorough_interval
        if self.put_off or waited_ms >= interval or grown >= CHECKPOINT_BYTES:
            self._last_thorough = now
            return True
        return False
