"""A store's parts wired together, opened and closed.

`MessageStore` adds the verbs. Nothing here is on the hot path.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator

import structlog

from aerobee.broker.clock import Clock
from aerobee.broker.store.allocate import FileMaker
from aerobee.broker.store.checkpoint import CheckpointFile, StoreCheckpoint
from aerobee.broker.store.clean import Clean
from aerobee.broker.store.commit import Commit
from aerobee.broker.store.commitlog import CommitLog
from aerobee.broker.store.disk import Disk, DiskLock, RealDisk, make_folder
from aerobee.broker.store.errors import StoreError, StoreLocked, is_no_space, remedy_for
from aerobee.broker.store.flush import LogFlush, QueueFlush
from aerobee.broker.store.index_service import IndexService
from aerobee.broker.store.mapped_file import MappingCounters
from aerobee.broker.store.prewrite import Prewriter
from aerobee.broker.store.queue_table import QueueTable
from aerobee.broker.store.read import Reader
from aerobee.broker.store.recovery import Progress, Recovery, gather_facts
from aerobee.broker.store.recovery_plan import Mode
from aerobee.broker.store.refusals import Cause, Refusals
from aerobee.broker.store.reports import Reports
from aerobee.broker.store.reput import Reput
from aerobee.broker.store.results import (
    StoreStats,
)
from aerobee.broker.store.self_check import SelfCheck
from aerobee.broker.store.settings import StoreSettings
from aerobee.broker.store.transient_store_pool import TransientStorePool
from aerobee.broker.store.worker import Worker

log = structlog.get_logger("aerobee.store")

FINISH_RETRY_S = 1.0
SYNC_FAILED = b"a sync failed"  # in `abort`: the page cache may hold what no disk has


class StoreLifecycle:
    def __init__(
        self,
        settings: StoreSettings,
        *,
        clock: Clock,
        disk: Disk | None = None,
        ahead: bool | None = None,
    ) -> None:
        """`ahead`: make files in a thread before they are needed (by default on a real disk)."""
        self.settings = settings
        self.clock = clock
        self.disk: Disk = RealDisk() if disk is None else disk
        self.sync_flush = settings.sync_flush
        self.was_stopped = True  # the last life of the directory ended in order
        self.stats = StoreStats()
        self.counters = MappingCounters()
        self.refusals = Refusals()
        self.reports = Reports(clock)
        self.refusals.set(Cause.SHUT_DOWN, "the store is not open")
        unsynced = self._unsynced = set[str]()  # folders with entries that are not yet on disk
        self.queue_table = QueueTable(settings, self.disk, self.counters, unsynced)
        self._pool = (
            TransientStorePool(
                settings.transient_store_pool_size, settings.mapped_file_size_commit_log
            )
            if settings.pool_enabled
            else None
        )
        ahead = isinstance(self.disk, RealDisk) if ahead is None else ahead
        self._prewrites = ahead and settings.prewrites
        self._maker = FileMaker(
            self.disk,
            settings.layout.commitlog,
            settings.mapped_file_size_commit_log,
            ahead=ahead,
            prewrite=self._prewrites,
        )
        self.commit_log = CommitLog(
            settings,
            self.disk,
            self.counters,
            self.queue_table,
            self._maker,
            self._pool,
            self.reports,
        )
        self.index = (
            IndexService(settings, self.disk, self.counters, unsynced, clock.now_ms)
            if settings.message_index_enable
            else None
        )
        self.visible_limit = self._dispatch_limit()
        self.reput = Reput(
            settings,
            self.commit_log,
            self.index,
            self.visible_limit,
            clock,
            self.stats,
            self.reports,
        )
        self.reput.on_refusal = lambda reason: self.refusals.set(Cause.DISPATCH_FAILED, reason)
        self.reput.on_recovery = lambda: self.refusals.clear(Cause.DISPATCH_FAILED)
        fence = self._fence
        self._prewriter = Prewriter(self.commit_log.files)
        self.flush = LogFlush(
            settings,
            self.commit_log,
            clock,
            self.stats,
            self.reput.flushed,
            fence,
            self._prewriter,
            self.reports,
        )
        self.checkpoint = CheckpointFile(self.disk, settings.layout.checkpoint)
        self.queue_flush = QueueFlush(
            settings,
            self.commit_log,
            self.index,
            self.reput,
            self.flush,
            self.checkpoint,
            self.disk,
            unsynced,
            clock,
            fence,
            self.refusals,
            self.reports,
            self._rebuild_derived,
        )
        self.commit = (
            Commit(settings, self.commit_log, self._pool, clock, self.refusals, self._on_committed)
            if self._pool is not None
            else None
        )
        self.clean = Clean(
            settings,
            self.disk,
            self.commit_log,
            self.index,
            self.refusals,
            clock,
            lambda: self.reput.dispatched_offset,
            self.reports,
        )
        self.self_check = SelfCheck(self.disk, self.commit_log, clock)
        self._reader = Reader(
            self.commit_log,
            settings.max_filter_message_size,
            settings.access_message_in_memory_max_ratio,
        )
        self._put_message_lock = threading.Lock()
        self._busy_after_s = settings.os_page_cache_busy_time_out_mills / 1000
        self._lock: DiskLock | None = None
        self._owed: list[Callable[[], None]] = []  # of the start, for want of room
        self._tasks: list[asyncio.Task[None]] = []
        self._flush_worker = Worker("aerobee-flush")
        self._queue_worker = Worker("aerobee-flush-queues")

    def _dispatch_limit(self) -> Callable[[], int]:
        """How far consumers may see: what a crash cannot take back, as far as the mode says so."""
        commit_log = self.commit_log
        if self.sync_flush:
            return lambda: commit_log.flushed_offset
        if self._pool is not None:
            return lambda: commit_log.committed_offset
        return lambda: commit_log.max_offset

    def _fence(self, reason: str) -> None:
        """Take no more puts, and tell the next start that the page cache is not to be trusted."""
        self.refusals.set(Cause.SYNC_FAILED, reason)
        try:
            self.disk.write_small(self.settings.layout.abort, SYNC_FAILED)
        except OSError as error:
            log.error("the failed sync could not be noted for the next start", reason=str(error))

    def _on_committed(self) -> None:
        self.flush.wake.set()
        self.reput.wake.set()

    # -- opening and closing

    def load(self, progress: Progress | None = None) -> None:
        """Lock the directory, read what is there and bring it in order; StoreError if it cannot."""
        layout = self.settings.layout
        try:
            make_folder(self.disk, layout.root)
            self._take_lock()
            clean = self.was_stopped = not self.disk.exists(layout.abort)
            point = self.checkpoint.load()
            self.commit_log.files.load(point.dispatched_offset)
            self.queue_table.load()
            if self.index is not None:
                self.index.load()
            self.commit_log.files.complete_last()
            self.queue_table.complete_last()
            self.flush.flushed_timestamp = point.physic_msg_timestamp
            if point.dispatched_offset >= 0:  # the records below it are not read again
                self.commit_log.last_store_timestamp = max(
                    point.physic_msg_timestamp, point.logics_msg_timestamp
                )
            facts = gather_facts(self.settings, self.commit_log, self.index, point, clean)
            if clean:
                self._do_or_owe(self._mark_running)
            sync_failed = not clean and self.disk.read_small(layout.abort) == SYNC_FAILED
            recovery = Recovery(
                self.settings, self.commit_log, self.index, self.reput, progress, sync_failed
            )
            plan = recovery.run(facts)
            if plan.mode is Mode.EMPTY and point.dispatched_offset > 0:
                # It speaks of a log that is gone; a crash would hold the next one against it.
                self.checkpoint.value = StoreCheckpoint()
                self._do_or_owe(self.checkpoint.write)
            if recovery.no_space is not None:
                self._owe(self._complete_log, recovery.no_space)
            self._reader.check_records = recovery.found_damage
            self.flush.flushed_timestamp = self.commit_log.last_store_timestamp
            if plan.mode is not Mode.NORMAL:
                # A killed life may have made folders and files whose names no disk has yet: the
                # log's and config's come before anything is built on them, the others before the
                # checkpoint.
                for folder in (layout.root, layout.commitlog, layout.config):
                    if self.disk.exists(folder):
                        self.disk.syncdir(folder)
                self._unsynced.update(self._all_folders(layout.root))
                self.queue_flush.hurry()  # until then the next start does the same once more
            if sync_failed:
                self.queue_flush.step(thorough=True)
                if not (self.queue_flush.failed or self.queue_flush.put_off):
                    self._do_or_owe(self._mark_running)
        except OSError as error:
            self._give_up()
            remedy = remedy_for(error, "check who may read and write there, and the disk")
            raise StoreError(
                f"the store in {layout.root} cannot be opened: {error}; {remedy}"
            ) from error
        except StoreError:
            self._give_up()
            raise
        self.refusals.clear(Cause.SHUT_DOWN)
        if self.settings.broker_role == "SLAVE":
            self.refusals.set(
                Cause.SLAVE, "this broker is a slave (brokerRole=SLAVE): send to its master"
            )

    def _mark_running(self) -> None:
        """`abort` is there while the broker runs; what it holds is for people."""
        layout = self.settings.layout
        try:
            self.disk.write_small(layout.abort, b"%d" % os.getpid())
        except OSError as error:
            if not is_no_space(error) or not self.disk.exists(layout.abort):
                raise
        self.disk.syncdir(layout.root)

    # -- a start without room on the disk

    def _do_or_owe(self, part: Callable[[], None]) -> None:
        """A part of the start that a full disk may put off: reads are served without it."""
        try:
            part()
        except OSError as error:
            if not is_no_space(error):
                raise
            self._owe(part, error)

    def _owe(self, part: Callable[[], None], error: OSError) -> None:
        self._owed.append(part)
        self.refusals.set(
            Cause.START_UNFINISHED,
            f"the disk of {self.settings.layout.root} had no room when the broker started "
            f"({error}): free space; sends resume by themselves then",
        )

    def _complete_log(self) -> None:
        """Blocks for the file that is written next; the queues have what the log has."""
        last = self.commit_log.files.last
        if last is not None:
            last.allocate_to(last.size, last.size)
        while self.reput.behind and self.reput.step():
            pass

    def finish_start(self) -> bool:
        """Do what a full disk has kept the start from; whether nothing is left of it."""
        while self._owed:
            try:
                self._owed[0]()
            except OSError as error:
                self.reports.disk_error(
                    "the start is not finished: puts are refused",
                    error,
                    call=self._owed[0].__name__.strip("_"),
                    then="tried again every second; " + remedy_for(error, "mend the disk"),
                )
                return False
            self._owed.pop(0)
        self.refusals.clear(Cause.START_UNFINISHED)
        return True

    async def _run_finish_start(self) -> None:
        while not self.finish_start():
            await self.clock.sleep(FINISH_RETRY_S)

    def _rebuild_derived(self) -> None:
        """Queues and index anew from the checkpoint on; OSError when the disk refuses."""
        point = self.checkpoint.value
        facts = gather_facts(self.settings, self.commit_log, self.index, point, clean=False)
        Recovery(self.settings, self.commit_log, self.index, self.reput, None).rebuild(facts)

    def _all_folders(self, folder: str) -> Iterator[str]:
        yield folder
        for name in self.disk.listdir(folder):
            path = os.path.join(folder, name)
            if self.disk.is_folder(path):
                yield from self._all_folders(path)

    def _take_lock(self) -> None:
        path = self.settings.layout.lock
        try:
            self._lock = self.disk.lock(path)
        except BlockingIOError as error:
            raise StoreLocked(
                f"{self.settings.layout.root} is in use by another broker ({error.strerror}, see "
                f"{path}): stop it, or give this one another storePathRootDir"
            ) from error

    def _give_up(self) -> None:
        self._close_files()
        self._maker.stop()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    async def start(self) -> None:
        """Run the coroutines."""
        self.commit_log.prepare_first_file()
        if self._prewrites:
            self._prewriter.start()
        self.clean.measure()
        self.reput.wake.set()
        runs = {
            "store.reput": self.reput.run(),
            "store.index": self.reput.run_late(),
            "store.flush": self.flush.run(self._flush_worker),
            "store.flush-expiry": self.flush.run_expiry(),
            "store.flush-queues": self.queue_flush.run(self._queue_worker),
            "store.clean": self.clean.run(self._queue_worker),
            "store.self-check": self.self_check.run(),
        }
        if self.commit is not None:
            runs["store.commit"] = self.commit.run()
        if self._owed:
            runs["store.finish-start"] = self._run_finish_start()
        self._tasks = [asyncio.create_task(run, name=name) for name, run in runs.items()]
        for task in self._tasks:
            task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """A coroutine that ends by an error must not end in silence."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("a coroutine of the store failed", task=task.get_name(), exc_info=error)
            self._fence(f"{task.get_name()} failed ({error!r}); see the log, then restart")

    async def stop(self) -> None:
        """Take no more puts; dispatch, commit and flush all; checkpoint; unlock."""
        self._refuse_all()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        self._prewriter.stop()
        self._maker.stop()
        if self.commit is not None:
            self.commit.try_step()
        job = self.flush.prepare()
        if job is not None:
            self.flush.complete(await self._flush_worker.run(self.flush.sync, job))
        if self._drain():
            queue_job = self.queue_flush.prepare(thorough=True)
            if queue_job is not None:
                sync = self.queue_flush.sync
                self.queue_flush.complete(await self._queue_worker.run(sync, queue_job))
        self._flush_worker.stop()
        self._queue_worker.stop()
        self._finish()

    def close(self) -> None:
        """What `stop` does, in place: for a store whose coroutines were not started."""
        self._refuse_all()
        self._maker.stop()
        if self.commit is not None:
            self.commit.try_step()
        self.flush.step()
        if self._drain():
            self.queue_flush.step(thorough=True)
        self._finish()

    def _refuse_all(self) -> None:
        self.refusals.set(Cause.SHUT_DOWN, "the broker is shutting down: send to another one")

    def _drain(self) -> bool:
        """Dispatch all that may be; whether that worked."""
        try:
            while self.reput.step():
                pass
            if self.index is not None:
                self.index.write_pending()
        except Exception as error:
            log.error("not all messages were dispatched at the stop", reason=str(error))
            return False
        return True

    def _finish(self) -> None:
        layout = self.settings.layout
        complete = self.reput.dispatched_offset >= self.commit_log.max_offset
        queues = self.queue_flush
        flushed = not (self.flush.failed or queues.failed or queues.put_off or queues.lost)
        if complete and flushed and not self._owed:
            if self.disk.exists(layout.abort):
                self.disk.unlink(layout.abort)
                self.disk.syncdir(layout.root)
        else:
            log.warning("the stop is not clean: the next start checks the log", path=layout.abort)
        self._close_files()
        self._unlock()

    def _close_files(self) -> None:
        self.commit_log.files.close()
        self.queue_table.close()
        if self.index is not None:
            self.index.close()
        self.checkpoint.close()
