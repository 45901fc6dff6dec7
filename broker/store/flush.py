"""flush: makes the commitlog, then the queues and the index durable, and says so in checkpoint.

Every flush has three parts: `prepare` notes on the loop what is to be synced, `sync` calls
fdatasync (in a thread, or in place in a simulation), `complete` moves the positions on and answers
those who wait. A sync that failed is never repeated: the kernel may have dropped the pages, so the
log is fenced until a restart reads what is truly there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from aerobee.broker.clock import Clock
from aerobee.broker.store.checkpoint import CheckpointFile, StoreCheckpoint
from aerobee.broker.store.commitlog import CommitLog
from aerobee.broker.store.consume_queue import ENTRY_SIZE, ConsumeQueue
from aerobee.broker.store.disk import Disk
from aerobee.broker.store.index_file import IndexFile
from aerobee.broker.store.index_service import IndexService
from aerobee.broker.store.mapped_file import PAGE, MappedFile
from aerobee.broker.store.reput import Reput
from aerobee.broker.store.results import DurableCallback, PutStatus, StoreStats
from aerobee.broker.store.settings import StoreSettings
from aerobee.broker.store.wake import Wake
from aerobee.broker.store.worker import Worker

log = structlog.get_logger("aerobee.store")

SLOW_MS: Final = 500
CHECKPOINT_BYTES: Final = 256 * 1024 * 1024  # of log after which the queues are flushed whole


@dataclass(slots=True)
class LogJob:
    """A flush of the log up to `end`."""

    files: list[MappedFile]
    end: int
    timestamp: int
    error: OSError | None = None
    took_ms: float = 0.0


@dataclass(slots=True)
class QueueJob:
    """A flush of queues; a thorough one covers all of them and the index, and is checkpointed."""

    queues: list[tuple[ConsumeQueue, int, int, list[MappedFile]]]  # ends of entries and of units
    folders: list[str] = field(default_factory=list)
    index: list[tuple[IndexFile, int]] = field(default_factory=list)
    checkpoint: StoreCheckpoint | None = None
    error: OSError | None = None


class LogFlush:
    """The log's half."""

    def __init__(
        self,
        settings: StoreSettings,
        commit_log: CommitLog,
        clock: Clock,
        stats: StoreStats,
        on_flushed: Callable[[], None],
        fence: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._log = commit_log
        self._clock = clock
        self._stats = stats
        self._on_flushed = on_flushed
        self._fence = fence
        self.flushed_timestamp = 0
        self.failed = False
        self._waiting: deque[tuple[int, float, DurableCallback]] = deque()
        self._last_thorough = clock.monotonic()
        self.wake = Wake()
        self.wake_expiry = Wake()

    # -- waiting for durability

    def when_durable(self, end: int, callback: DurableCallback) -> None:
        if self.failed:
            callback(PutStatus.UNKNOWN_ERROR)
        elif end <= self._log.flushed_offset:
            callback(PutStatus.PUT_OK)
        else:
            deadline = self._clock.monotonic() + self._settings.sync_flush_timeout / 1000
            self._waiting.append((end, deadline, callback))
            self.wake.set()
            if not self.wake_expiry.is_set:
                self.wake_expiry.set()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def expire(self) -> float:
        """Answer those who have waited too long; seconds until the next may have to be."""
        now = self._clock.monotonic()
        while self._waiting and self._waiting[0][1] <= now:
            self._waiting.popleft()[2](PutStatus.FLUSH_DISK_TIMEOUT)
        return self._waiting[0][1] - now if self._waiting else 0.0

    # -- the three parts

    def prepare(self, least_pages: int = 0) -> LogJob | None:
        """What to sync now; None when less than `least_pages` wait, or nothing."""
        if self.failed:
            return None
        start, end = self._log.flushed_offset, self._log.committed_offset
        if end <= start or end - start < least_pages * PAGE:
            return None
        files = list(self._log.files.overlapping(start, end))
        return LogJob(files, end, self._log.last_store_timestamp)

    def sync(self, job: LogJob) -> LogJob:
        started = self._clock.monotonic()
        try:
            for mapped in job.files:
                mapped.file.sync()
        except OSError as error:
            job.error = error
        job.took_ms = (self._clock.monotonic() - started) * 1000
        return job

    def complete(self, job: LogJob) -> None:
        if job.error is not None:
            self._fail(job)
            return
        self._stats.flushes += 1
        self._stats.flush_times.add(job.took_ms / 1000)
        self._stats.flush_ms_max = max(self._stats.flush_ms_max, job.took_ms)
        if job.took_ms > SLOW_MS:
            log.warning("a flush of the commitlog was slow", ms=round(job.took_ms), end=job.end)
        for mapped in job.files:
            mapped.flushed = min(job.end - mapped.start, mapped.size)
        self._log.flushed_offset = max(self._log.flushed_offset, job.end)
        self.flushed_timestamp = max(self.flushed_timestamp, job.timestamp)
        self._on_flushed()
        waiting = self._waiting
        while waiting and waiting[0][0] <= job.end:
            waiting.popleft()[2](PutStatus.PUT_OK)

    def _fail(self, job: LogJob) -> None:
        self.failed = True
        path = job.files[-1].path
        self._fence(
            f"{path} could not be synced to disk ({job.error}): what was sent last may be lost, "
            f"so nothing more is taken; mend the disk, then restart the broker"
        )
        waiting, self._waiting = self._waiting, deque()
        for _, _, callback in waiting:
            callback(PutStatus.UNKNOWN_ERROR)

    def step(self, least_pages: int = 0) -> bool:
        """A whole flush in place; False when there was nothing to do."""
        job = self.prepare(least_pages)
        if job is None:
            return False
        self.complete(self.sync(job))
        return True

    # -- coroutines

    async def run(self, worker: Worker) -> None:
        """Flush when somebody waits (SYNC_FLUSH), or by time and pages (ASYNC_FLUSH)."""
        if self._settings.sync_flush:
            while True:
                await self.wake.wait()
                while (job := self.prepare()) is not None:
                    self.complete(await worker.run(self.sync, job))
        while True:
            if self._settings.flush_commit_log_timed:
                await self._clock.sleep(self._settings.flush_interval_commit_log / 1000)
            else:
                await self._sleep_or_wake()
            job = self.prepare(self._least_pages())
            if job is not None:
                self.complete(await worker.run(self.sync, job))

    async def _sleep_or_wake(self) -> None:
        await self.wake.wait_at_most(self._clock, self._settings.flush_interval_commit_log / 1000)

    def _least_pages(self) -> int:
        now = self._clock.monotonic()
        if (now - self._last_thorough) * 1000 >= self._settings.flush_commit_log_thorough_interval:
            self._last_thorough = now
            return 0
        return self._settings.flush_commit_log_least_pages

    async def run_expiry(self) -> None:
        while True:
            await self.wake_expiry.wait()
            while (seconds := self.expire()) > 0:
                await self._clock.sleep(seconds)


class QueueFlush:
    """The half of queues, index and checkpoint."""

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
    ) -> None:
        self._settings = settings
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
        self._last_thorough = clock.monotonic()

    def prepare(self, *, thorough: bool) -> QueueJob | None:
        """What to sync now; None when nothing waits."""
        if self.failed or self._log_flush.failed:
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
            logics_msg_timestamp=self._reput.dispatched_timestamp,
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
        try:
            for _, _, _, files in job.queues:
                for mapped in files:
                    mapped.file.sync()
            for file, _ in job.index:
                file.file.file.sync()
            for folder in job.folders:
                if self._disk.exists(folder):  # its topic may have been deleted meanwhile
                    self._disk.syncdir(folder)
            if job.checkpoint is not None:
                self._checkpoint.value = job.checkpoint
                self._checkpoint.write()
        except OSError as error:
            job.error = error
        return job

    def complete(self, job: QueueJob) -> None:
        if job.error is not None:
            self.failed = True
            self._fence(
                f"queue, index or checkpoint files under {self._settings.layout.root} could not "
                f"be synced to disk ({job.error}): nothing more is taken; mend the disk, then "
                f"restart the broker"
            )
            return
        for queue, end, ext_end, _ in job.queues:
            queue.note_flushed(end)
            if queue.ext is not None:
                queue.ext.flushed = min(ext_end, queue.ext.end)
        if self._index is not None:
            for file, count in job.index:
                file.flushed_count = count
                if file in self._index.unsynced:
                    self._index.unsynced.remove(file)

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
            try:
                job = self.prepare(thorough=self._is_time_for_thorough())
            except OSError as error:
                log.error("the index could not be written before its flush", reason=str(error))
                continue
            if job is not None:
                self.complete(await worker.run(self.sync, job))

    def _is_time_for_thorough(self) -> bool:
        now = self._clock.monotonic()
        waited_ms = (now - self._last_thorough) * 1000
        grown = self._reput.dispatched_offset - self._checkpoint.value.dispatched_offset
        interval = self._settings.flush_consume_queue_thorough_interval
        if waited_ms >= interval or grown >= CHECKPOINT_BYTES:
            self._last_thorough = now
            return True
        return False
