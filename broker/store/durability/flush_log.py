"""The commitlog's flush: group commit in SYNC_FLUSH, by time and pages in ASYNC_FLUSH.

A flush has three parts: `prepare` notes what is to be synced, `sync` calls fdatasync (in a thread,
or in place in a simulation), `complete` advances the positions and answers the waiting puts. In
SYNC_FLUSH jobs are made from what `ask` has published, in the thread or, with the thread in C, on
the loop; in ASYNC_FLUSH from the log's positions. A failed sync is never retried: the kernel may
have dropped the pages, so the log is fenced until a restart reads what is really on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from aerobee.broker.base.wake import Wake
from aerobee.broker.base.worker import Worker
from aerobee.broker.compiled import hot
from aerobee.broker.store.base import StoreBase
from aerobee.broker.store.durability.group_commit import GroupCommit
from aerobee.broker.store.durability.log_job import LogJob
from aerobee.broker.store.durability.sync_thread import SyncThread
from aerobee.broker.store.durability.waiters import Waiters
from aerobee.broker.store.files.mapped_file import PAGE
from aerobee.broker.store.files.real_disk import RealDisk
from aerobee.broker.store.log.commitlog import CommitLog
from aerobee.broker.store.log.prewrite import Prewriter
from aerobee.broker.store.results import DurableCallback, PutStatus

log = structlog.get_logger("aerobee.store")

SLOW_MS: Final = 500


class LogFlush:
    """Syncs the log and answers the puts that wait for it."""

    def __init__(
        self,
        base: StoreBase,
        commit_log: CommitLog,
        prewriter: Prewriter,
        on_flushed: Callable[[], None],
    ) -> None:
        self._settings = base.settings
        self._clock = base.clock
        self._stats = base.stats
        self._reports = base.reports
        self._fence = base.fence
        self._disk = base.disk
        self._log = commit_log
        self._prewriter = prewriter
        self._on_flushed = on_flushed
        self.flushed_timestamp = 0
        self.failed = False
        self.waiters = Waiters(base.clock, base.settings.sync_flush_timeout / 1000)
        self._last_thorough = base.clock.monotonic()
        # End and store time of the last put, as one value: another thread reads it.
        self._asked = (0, 0)
        self._taken = 0  # the end of the newest job of the thread
        self._commit: GroupCommit[LogJob] | SyncThread | None = None
        self.wake = Wake()

    # -- waiting for durability

    def when_durable(self, end: int, callback: DurableCallback) -> None:
        if self.failed:
            callback(PutStatus.UNKNOWN_ERROR)
        elif end <= self._log.flushed_offset:
            callback(PutStatus.PUT_OK)
        else:
            self.waiters.add(end, callback)
            if end > self._asked[0]:  # not yet requested by its put
                self.ask(end)

    def ask(self, end: int) -> None:
        """SYNC_FLUSH: request a sync up to here, whether or not a put waits for it."""
        if end > self._asked[0]:
            self._asked = (end, self._log.last_store_timestamp)
        if self._commit is not None:
            self._commit.wake()
        else:
            self.wake.set()

    # -- the three parts

    def prepare(self, least_pages: int = 0) -> LogJob | None:
        """What to sync now; None when fewer than `least_pages` are dirty, or nothing is."""
        if self.failed:
            return None
        start, end = self._log.flushed_offset, self._log.committed_offset
        if end <= start or end - start < least_pages * PAGE:
            return None
        files = list(self._log.files.overlapping(start, end))
        return LogJob(files, end, self._log.last_store_timestamp)

    def _take(self) -> LogJob | None:
        """`prepare` for group commit, one file at a time: no further than what was requested,
        because an append in progress may still be rolled back."""
        if self.failed:
            return None
        asked, timestamp = self._asked
        end = min(asked, self._log.max_offset)  # there is no pool in SYNC_FLUSH: all is committed
        start = max(self._taken, self._log.flushed_offset)
        if end <= start:
            return None
        file = self._log.files.last
        if file is None or file.start > start:  # rare
            file = next(iter(self._log.files.overlapping(start, end)))
            if file.end < end:
                end, timestamp = file.end, 0  # the store time of its last message is not known
        self._taken = end
        return LogJob([file], end, timestamp)

    def _sync_and_stop_if_failed(self, job: LogJob) -> LogJob:
        self.sync(job)
        if job.error is not None:
            self.failed = True  # at once: the thread must not try again
        return job

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
        if self._reports.device_failed:
            self._reports.note_success()
        stats, end, took_ms = self._stats, job.end, job.took_ms
        stats.flushes += 1
        stats.flush_times.add(took_ms / 1000)
        if took_ms > stats.flush_ms_max:
            stats.flush_ms_max = took_ms
        if took_ms > SLOW_MS:
            log.warning("a flush of the commitlog was slow", ms=round(took_ms), end=end)
        for mapped in job.files:
            mapped.flushed = min(end - mapped.start, mapped.size)
        if end > self._log.flushed_offset:
            self._log.flushed_offset = end
        if job.timestamp > self.flushed_timestamp:
            self.flushed_timestamp = job.timestamp
        if end > self._prewriter.wake_at:
            self._prewriter.wake()
        self._on_flushed()
        self.waiters.reached(end)

    def _fail(self, job: LogJob) -> None:
        self.failed = True
        assert job.error is not None
        self._reports.note_error(job.error)
        path = job.files[-1].path
        self._fence(
            f"{path} could not be synced to disk ({job.error}): what was sent last may be lost, "
            f"so puts are refused; repair the disk, then restart the broker"
        )
        self.waiters.fail()

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
            await self._run_group_commit()
        while True:
            if self._settings.flush_commit_log_timed:
                await self._clock.sleep(self._settings.flush_interval_commit_log / 1000)
            else:
                await self._sleep_or_wake()
            job = self.prepare(self._least_pages())
            if job is not None:
                await worker.run_to_end(self.sync, job, self.complete)

    async def _run_group_commit(self) -> None:
        with self._group_commit() as commit:
            self._commit = commit
            try:
                self.ask(self._log.max_offset)
                while True:
                    await self.wake.wait()
                    commit.wake()
            finally:
                self._commit = None

    def _group_commit(self) -> GroupCommit[LogJob] | SyncThread:
        """In C where that can be, else in Python."""
        if hot is not None and type(self._disk) is RealDisk:
            return SyncThread(self._take, self.complete)
        return GroupCommit(self._take, self._sync_and_stop_if_failed, self.complete)

    async def _sleep_or_wake(self) -> None:
        await self.wake.wait_at_most(self._clock, self._settings.flush_interval_commit_log / 1000)

    def _least_pages(self) -> int:
        now = self._clock.monotonic()
        if (now - self._last_thorough) * 1000 >= self._settings.flush_commit_log_thorough_interval:
            self._last_thorough = now
            return 0
        return self._settings.flush_commit_log_least_pages
