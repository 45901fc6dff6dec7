"""flush: makes the queues and the index durable after the log, and records that in the checkpoint.

The log's own flush is in flush_log. Here too a flush is `prepare` on the loop, `sync` in a thread
(or in place in a simulation) and `complete` on the loop again. The checkpoint is written last and
covers only what is on disk by then: a round that does not cover every queue leaves it as it is.
Entries that queues keep in memory are written first. With thousands of queues that is spread over
several turns of the loop; the checkpoint then covers the state at the start of that.

A full disk never fences the store: the steps after the entries are deferred, and entries that the
kernel dropped for lack of blocks are rebuilt from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from aerobee.broker.base.worker import Worker
from aerobee.broker.store.base import StoreBase
from aerobee.broker.store.dispatch.dispatcher import RecordDispatcher
from aerobee.broker.store.durability.checkpoint import CheckpointFile
from aerobee.broker.store.durability.flush_log import LogFlush
from aerobee.broker.store.durability.queue_dates import date_file, is_full
from aerobee.broker.store.errors import NO_MORE_FILES, is_no_space, remedy_for
from aerobee.broker.store.files.mapped_file import MappedFile
from aerobee.broker.store.index.index_file import IndexFile
from aerobee.broker.store.index.index_service import IndexService
from aerobee.broker.store.log.commitlog import CommitLog
from aerobee.broker.store.queues.consume_queue import ConsumeQueue
from aerobee.broker.store.refusals import Cause
from aerobee.protocol.files.checkpoint import StoreCheckpoint

# Bytes of log after which all queues are flushed: after a kill, a start reads that much again. Each
# queue is a file to sync, so more queues allow more log, in proportion to the cost of the syncs.
CHECKPOINT_BYTES: Final = 128 * 1024 * 1024
CHECKPOINT_BYTES_PER_QUEUE: Final = 64 * 1024
REBUILD_RETRY_S: Final = 5.0
TURN_WRITES: Final = 64  # writes of kept entries per turn of the loop: less than a millisecond


class QueuePart(NamedTuple):
    """What a flush covers of one queue."""

    queue: ConsumeQueue
    end: int  # of its entries, in bytes
    ext_end: int  # of its units
    files: list[MappedFile]
    cuts: int  # of the queue so far: after another one, `end` is of other entries


@dataclass(slots=True)
class QueueJob:
    """A flush of queues; a thorough one covers all queues and the index, and ends with a
    checkpoint."""

    queues: list[QueuePart] = field(default_factory=list)
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
        base: StoreBase,
        commit_log: CommitLog,
        index: IndexService | None,
        dispatcher: RecordDispatcher,
        log_flush: LogFlush,
        checkpoint: CheckpointFile,
        rebuild: Callable[[], Iterator[None]],
    ) -> None:
        self._settings = base.settings
        self._clock = base.clock
        self._disk = base.disk
        self._refusals = base.refusals
        self._reports = base.reports
        self._trusted_time = base.trusted_time
        self._unsynced = base.unsynced
        self._fence = base.fence
        self._log = commit_log
        self._index = index
        self._dispatcher = dispatcher
        self._log_flush = log_flush
        self._checkpoint = checkpoint
        self._rebuild = rebuild
        self.failed = False
        self.deferred = False  # the last flush found no space, and is repeated in the next round
        self.lost = False  # entries may have been dropped: rebuild them from the log
        self._last_thorough = base.clock.monotonic()
        self._claimed: StoreCheckpoint | None = None  # for the next thorough round

    @property
    def is_unfinished(self) -> bool:
        """A flush failed or was deferred, or entries are lost or only in memory."""
        is_kept = any(queue.kept for queue in self._log.queues)
        return self.failed or self.deferred or self.lost or is_kept

    def prepare(self, *, thorough: bool) -> QueueJob | None:
        """What to sync now; None when nothing is dirty."""
        claimed, self._claimed = self._claimed, None
        if self.failed or self.lost or self._log_flush.failed:
            return None
        least_pages = 0 if thorough else self._settings.flush_consume_queue_least_pages
        job = QueueJob()
        for queue in self._log.queues:
            if thorough and claimed is None:
                queue.write_kept()
            files = queue.unflushed(least_pages)
            if files:
                ext_end = queue.ext.end if queue.ext is not None else 0
                job.queues.append(QueuePart(queue, queue.written_bytes, ext_end, files, queue.cuts))
        if self._index is not None:
            if thorough:
                self._index.write_pending()
                job.index = [(file, file.count) for file in self._index.to_sync()]
            else:
                job.index = [(file, file.count) for file in self._index.unsynced]
        if thorough:
            job.checkpoint = self._claim() if claimed is None else claimed
            if job.checkpoint == self._checkpoint.value:
                job.checkpoint = None
        job.folders = sorted(self._unsynced)
        self._unsynced.clear()
        if job.queues or job.index or job.folders or job.checkpoint is not None:
            return job
        return None

    def _claim(self) -> StoreCheckpoint:
        """The checkpoint that is valid once the queues and the index of this moment are on disk."""
        trusted_ms, doubted_ms = self._trusted_time.to_keep()
        claim = replace(
            self._checkpoint.value,
            trusted_ms=trusted_ms,
            doubted_ms=doubted_ms,
            physic_msg_timestamp=self._log_flush.flushed_timestamp,
            # Not later than the clock: a delayed message may start a file with an earlier time.
            logics_msg_timestamp=min(self._dispatcher.dispatched_timestamp, self._clock.now_ms()),
            dispatched_offset=min(self._dispatcher.dispatched_offset, self._log.flushed_offset),
            confirm_physical_offset=self._log.flushed_offset,
        )
        last = self._index.files[-1] if self._index is not None and self._index.files else None
        if last is not None:
            claim.index_msg_timestamp = last.end_timestamp
            claim.index_file = last.number
            claim.index_count = last.count
        return claim

    def sync(self, job: QueueJob) -> QueueJob:
        """Sync queues and index, then their folders, then write the checkpoint."""
        try:
            self._sync_entries(job)
            job.entries_synced = True
            for folder in job.folders:
                job.path = folder
                with suppress(FileNotFoundError):  # its topic may have been deleted meanwhile
                    self._disk.syncdir(folder)
            if job.checkpoint is not None:
                job.path = self._settings.layout.checkpoint
                self._checkpoint.write(job.checkpoint)
        except OSError as error:
            job.error = error
        return job

    def _sync_entries(self, job: QueueJob) -> None:
        for part in job.queues:
            for mapped in part.files:
                job.path = mapped.path
                mapped.file.sync()
                if is_full(part.queue, mapped):
                    try:
                        date_file(self._log.files, part.queue, mapped)
                    except FileNotFoundError:
                        pass  # an operator has removed it
                    except OSError:
                        if mapped.usable:  # else its topic was deleted meanwhile
                            raise
        for file, _ in job.index:
            job.path = file.path
            file.write_slots()
            file.file.file.sync()

    def complete(self, job: QueueJob) -> None:
        self.deferred = False
        if job.error is not None:
            self._unsynced.update(job.folders)
            self._note_failure(job, job.error)
            return
        if Cause.QUEUES_LOST in self._refusals:
            self._refusals.clear(Cause.QUEUES_LOST)
        for queue, end, ext_end, _, cuts in job.queues:
            if queue.cuts != cuts:
                continue
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
            self.deferred = True
            self._reports.disk_error(
                "a flush of the queues is deferred",
                error,
                call="sync",
                path=job.path,
                then="retried every second; " + remedy_for(error, ""),
            )
        elif is_no_space(error):
            self.lost = True
            self._refusals.set(
                Cause.QUEUES_LOST,
                f"{job.path} found no room on its disk when it was synced ({error}): free space; "
                f"its entries are then rebuilt from the commitlog, and sends resume by "
                f"themselves",
            )
        else:
            self.failed = True
            self._fence(
                f"{job.path} could not be synced to disk ({error}): puts are refused; repair "
                f"the disk, then restart the broker"
            )

    def try_rebuild(self) -> Generator[None, None, bool]:
        """Rebuild the lost entries, a few records per yield; False when the disk still refuses
        writes."""
        try:
            yield from self._rebuild()
        except OSError as error:
            self._reports.disk_error(
                "queues and index cannot be rebuilt",
                error,
                call="write",
                then="retried every 5 s; " + remedy_for(error, "repair the disk"),
            )
            return False
        self.lost = False
        self.expedite()
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
            if self.lost and not await self._rebuilt():
                await self._clock.sleep(REBUILD_RETRY_S)
                continue
            try:
                thorough = self._is_time_for_thorough()
                if thorough:
                    await self._write_kept()
                job = self.prepare(thorough=thorough)
            except OSError as error:
                self._reports.disk_error(
                    "queues or index could not be written before their flush",
                    error,
                    call="write",
                    then="retried every second; " + remedy_for(error, "repair the disk"),
                )
                continue
            if job is not None:
                await worker.run_to_end(self.sync, job, self.complete)

    async def _write_kept(self) -> None:
        """Write all entries kept at this moment to their files; the checkpoint covers only
        these."""
        if self.failed or self.lost or self._log_flush.failed:
            return
        keeping = [queue for queue in self._log.queues if queue.kept]
        if len(keeping) <= TURN_WRITES:
            return  # `prepare` writes them
        if self._index is not None:
            self._index.write_pending()
        claimed = self._claim()
        for number, queue in enumerate(keeping):
            queue.write_kept()
            if number % TURN_WRITES == TURN_WRITES - 1:
                await self._clock.sleep(0)
        self._claimed = claimed

    async def _rebuilt(self) -> bool:
        rebuilding = self.try_rebuild()
        while True:
            try:
                next(rebuilding)
            except StopIteration as done:
                return bool(done.value)
            await self._clock.sleep(0)

    def expedite(self) -> None:
        """Make the next round a thorough one."""
        self._last_thorough = float("-inf")

    def _is_time_for_thorough(self) -> bool:
        now = self._clock.monotonic()
        waited_ms = (now - self._last_thorough) * 1000
        grown = self._dispatcher.dispatched_offset - self._checkpoint.value.dispatched_offset
        interval = self._settings.flush_consume_queue_thorough_interval
        if self.deferred or waited_ms >= interval or self._is_worth_a_flush(grown):
            self._last_thorough = now
            return True
        return False

    def _is_worth_a_flush(self, grown: int) -> bool:
        """Whether so many bytes of log without a checkpoint are worth a flush of all queues."""
        if grown < CHECKPOINT_BYTES:
            return False
        dirty = sum(queue.has_unflushed for queue in self._log.queues)
        return grown >= CHECKPOINT_BYTES + dirty * CHECKPOINT_BYTES_PER_QUEUE
