"""The message store: the parts wired together, and the few verbs that others call.

The core is synchronous: `put` appends under put_message_lock without waiting for anything.
`start` runs the coroutines (reput, commit, flush, clean), each a thin loop over a `step`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Sequence

import structlog

from aerobee.broker.clock import Clock
from aerobee.broker.store.allocate import FileMaker
from aerobee.broker.store.checkpoint import CheckpointFile
from aerobee.broker.store.clean import Clean
from aerobee.broker.store.commit import Commit
from aerobee.broker.store.commitlog import CommitLog, Fact
from aerobee.broker.store.disk import Disk, DiskLock, DiskSpace, RealDisk, make_folder
from aerobee.broker.store.errors import StoreError, StoreLocked
from aerobee.broker.store.flush import LogFlush, QueueFlush
from aerobee.broker.store.index_service import IndexService
from aerobee.broker.store.mapped_file import MappingCounters
from aerobee.broker.store.queue_table import QueueTable
from aerobee.broker.store.read import Reader
from aerobee.broker.store.recovery import Progress, Recovery, gather_facts
from aerobee.broker.store.recovery_plan import Mode
from aerobee.broker.store.refusals import Cause, Refusals
from aerobee.broker.store.reput import Reput
from aerobee.broker.store.results import (
    ArrivalListener,
    Boundary,
    DurableCallback,
    PutResult,
    PutStatus,
    QueryResult,
    ReadResult,
    RefusedPut,
    StoreStats,
)
from aerobee.broker.store.self_check import SelfCheck
from aerobee.broker.store.settings import StoreSettings
from aerobee.broker.store.transient_store_pool import TransientStorePool
from aerobee.broker.store.worker import Worker
from aerobee.protocol.record import Message

log = structlog.get_logger("aerobee.store")

SLOW_LOCK_S = 0.5


class MessageStore:
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
        self.stats = StoreStats()
        self.counters = MappingCounters()
        self.refusals = Refusals()
        self.refusals.set(Cause.SHUT_DOWN, "the store is not open")
        unsynced: set[str] = set()  # folders with entries that are not yet on disk
        self.queue_table = QueueTable(settings, self.disk, self.counters, unsynced)
        self._pool = (
            TransientStorePool(
                settings.transient_store_pool_size, settings.mapped_file_size_commit_log
            )
            if settings.pool_enabled
            else None
        )
        self._maker = FileMaker(
            self.disk,
            settings.layout.commitlog,
            settings.mapped_file_size_commit_log,
            ahead=isinstance(self.disk, RealDisk) if ahead is None else ahead,
            populate=settings.warm_mapped_file_enable and self._pool is None,
        )
        self.commit_log = CommitLog(
            settings, self.disk, self.counters, self.queue_table, self._maker, self._pool
        )
        self.index = (
            IndexService(settings, self.disk, self.counters, unsynced, clock.now_ms)
            if settings.message_index_enable
            else None
        )
        self.reput = Reput(
            settings, self.commit_log, self.index, self._dispatch_limit(), clock, self.stats
        )
        self.reput.on_refusal = lambda reason: self.refusals.set(Cause.DISPATCH_FAILED, reason)
        self.reput.on_recovery = lambda: self.refusals.clear(Cause.DISPATCH_FAILED)
        fence = self._fence
        self.flush = LogFlush(
            settings, self.commit_log, clock, self.stats, self.reput.wake.set, fence
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
        )
        self.commit = (
            Commit(settings, self.commit_log, self._pool, clock, self._on_committed)
            if self._pool is not None
            else None
        )
        self.clean = Clean(settings, self.disk, self.commit_log, self.index, self.refusals, clock)
        self.self_check = SelfCheck(self.disk, self.commit_log, clock)
        self._reader = Reader(
            self.commit_log,
            self.index,
            settings.max_filter_message_size,
            settings.access_message_in_memory_max_ratio,
        )
        self._put_message_lock = threading.Lock()
        self._lock: DiskLock | None = None
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
        self.refusals.set(Cause.SYNC_FAILED, reason)

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
            clean = not self.disk.exists(layout.abort)
            self.commit_log.files.load()
            self.queue_table.load()
            if self.index is not None:
                self.index.load()
            point = self.checkpoint.load()
            self.flush.flushed_timestamp = point.physic_msg_timestamp
            facts = gather_facts(self.settings, self.commit_log, self.index, point, clean)
            if clean:
                self.disk.write_small(layout.abort, b"%d" % os.getpid())
                self.disk.syncdir(layout.root)
            recovery = Recovery(self.settings, self.commit_log, self.index, self.reput, progress)
            plan = recovery.run(facts)
            self.flush.flushed_timestamp = self.commit_log.last_store_timestamp
            if plan.mode is Mode.ABNORMAL:
                self.queue_flush.step(thorough=True)
        except OSError as error:
            self._unlock()
            raise StoreError(
                f"the store in {layout.root} cannot be opened: {error}; check who may read and "
                f"write there, and the disk"
            ) from error
        except StoreError:
            self._unlock()
            raise
        self.refusals.clear(Cause.SHUT_DOWN)
        if self.settings.broker_role == "SLAVE":
            self.refusals.set(
                Cause.SLAVE, "this broker is a slave (brokerRole=SLAVE): send to its master"
            )

    def _take_lock(self) -> None:
        path = self.settings.layout.lock
        try:
            self._lock = self.disk.lock(path)
        except BlockingIOError as error:
            raise StoreLocked(
                f"{self.settings.layout.root} is in use by another broker ({error.strerror}, see "
                f"{path}): stop it, or give this one another storePathRootDir"
            ) from error

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    async def start(self) -> None:
        """Run the coroutines."""
        self.commit_log.prepare_first_file()
        self.clean.measure()
        self.reput.wake.set()
        runs = {
            "store.reput": self.reput.run(),
            "store.index": self.reput.run_index(),
            "store.flush": self.flush.run(self._flush_worker),
            "store.flush-expiry": self.flush.run_expiry(),
            "store.flush-queues": self.queue_flush.run(self._queue_worker),
            "store.clean": self.clean.run(self._queue_worker),
            "store.self-check": self.self_check.run(),
        }
        if self.commit is not None:
            runs["store.commit"] = self.commit.run()
        self._tasks = [asyncio.create_task(run, name=name) for name, run in runs.items()]

    async def stop(self) -> None:
        """Take no more puts; dispatch, commit and flush all; checkpoint; unlock."""
        self._refuse_all()
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks = []
        self._maker.stop()
        if self.commit is not None:
            self.commit.step()
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
            self.commit.step()
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
        if complete and not self.flush.failed and not self.queue_flush.failed:
            if self.disk.exists(layout.abort):
                self.disk.unlink(layout.abort)
                self.disk.syncdir(layout.root)
        else:
            log.warning("the stop is not clean: the next start checks the log", path=layout.abort)
        self.commit_log.files.close()
        self.queue_table.close()
        if self.index is not None:
            self.index.close()
        self.checkpoint.close()
        self._unlock()

    # -- writing

    def put(self, messages: Sequence[Message]) -> list[PutResult]:
        """Append independent messages: one lock and one clock read for all."""
        refusal = self.refusals.current
        if refusal is not None:
            self.stats.put_failures += len(messages)
            return [RefusedPut(refusal.status, refusal.reason) for _ in messages]
        lock = self._put_message_lock
        if not lock.acquire(timeout=self.settings.os_page_cache_busy_time_out_mills / 1000):
            return [self._busy() for _ in messages]
        started = self.clock.monotonic()
        facts: list[Fact] = []
        try:
            results = self.commit_log.append(messages, self.clock.now_ms(), facts)
            self.reput.offer(facts)
        finally:
            lock.release()
        self._note_put(started, facts, len(messages))
        return results

    def put_batch(self, messages: Sequence[Message]) -> PutResult:
        """Append the messages of one batch: all in one file and one piece, or none."""
        refusal = self.refusals.current
        if refusal is not None:
            self.stats.put_failures += len(messages)
            return RefusedPut(refusal.status, refusal.reason)
        if not messages:
            return RefusedPut(PutStatus.MESSAGE_ILLEGAL, "the batch holds no message")
        lock = self._put_message_lock
        if not lock.acquire(timeout=self.settings.os_page_cache_busy_time_out_mills / 1000):
            return self._busy()
        started = self.clock.monotonic()
        facts: list[Fact] = []
        try:
            result = self.commit_log.append_batch(messages, self.clock.now_ms(), facts)
            self.reput.offer(facts)
        finally:
            lock.release()
        self._note_put(started, facts, len(messages))
        return result

    def _busy(self) -> PutResult:
        return RefusedPut(
            PutStatus.OS_PAGECACHE_BUSY,
            f"another put has held the log for over "
            f"{self.settings.os_page_cache_busy_time_out_mills} ms "
            f"(osPageCacheBusyTimeOutMills): the disk is too slow; send again later",
        )

    def _note_put(self, started: float, facts: list[Fact], asked: int) -> None:
        took = self.clock.monotonic() - started
        stats = self.stats
        stats.put_calls += 1
        stats.put_times.add(took)
        stats.puts += len(facts)
        stats.put_failures += asked - len(facts)
        if facts:
            last = facts[-1]
            stats.put_bytes += last[2] + last[3] - facts[0][2]
            self.reput.wake.set()
        if took * 1000 > stats.put_lock_ms_max:
            stats.put_lock_ms_max = took * 1000
        if took > SLOW_LOCK_S:
            log.warning(
                "put_message_lock was held long",
                ms=round(took * 1000),
                messages=asked,
                physical_offset=facts[0][2] if facts else None,
            )

    def when_durable(self, end_offset: int, callback: DurableCallback) -> None:
        """SYNC_FLUSH: call back when the log is on disk up to here; ASYNC_FLUSH: at once."""
        if self.sync_flush:
            self.flush.when_durable(end_offset, callback)
        else:
            callback(PutStatus.PUT_OK)

    def add_arrival_listener(self, callback: ArrivalListener) -> None:
        self.reput.listeners.append(callback)

    # -- reading

    def read_queue(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_count: int,
        *,
        max_bytes: int,
        matches: Callable[[int], bool] | None = None,
        matches_record: Callable[[memoryview], bool] | None = None,
    ) -> ReadResult:
        queue = self.queue_table.get(topic, queue_id)
        result = self._reader.read_queue(
            queue, queue_offset, max_count, max_bytes, matches, matches_record
        )
        if result.count:
            self.stats.gets_found += 1
            self.stats.messages_read += result.count
        else:
            self.stats.gets_missed += 1
        return result

    def read_cold(self, result: ReadResult) -> list[bytes]:
        """The bytes of a result's views, read with pread: for a thread beside the loop."""
        return [file.file.read(position, length) for file, position, length in result.spans]

    def is_cached(self, physical_offset: int, size: int) -> bool:
        """Whether the bytes can be read without waiting for the disk."""
        file = self.commit_log.find_readable(physical_offset)
        return file is None or file.file.is_cached(physical_offset - file.start, size)

    def record_at(self, physical_offset: int, size: int | None = None) -> memoryview | None:
        return self._reader.record_at(physical_offset, size)

    def queue_entry(
        self, topic: str, queue_id: int, queue_offset: int
    ) -> tuple[int, int, int] | None:
        queue = self.queue_table.get(topic, queue_id)
        return queue.entry(queue_offset) if queue is not None else None

    def min_offset(self, topic: str, queue_id: int) -> int:
        queue = self.queue_table.get(topic, queue_id)
        return queue.min_offset if queue is not None else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        queue = self.queue_table.get(topic, queue_id)
        return queue.max_offset if queue is not None else 0

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary = Boundary.LOWER
    ) -> int:
        queue = self.queue_table.get(topic, queue_id)
        return self._reader.offset_by_time(queue, timestamp_ms, boundary) if queue else 0

    def store_time(self, topic: str, queue_id: int, queue_offset: int) -> int:
        queue = self.queue_table.get(topic, queue_id)
        return self._reader.store_time(queue, queue_offset) if queue is not None else -1

    def earliest_time(self, topic: str, queue_id: int) -> int:
        return self.store_time(topic, queue_id, self.min_offset(topic, queue_id))

    def query(
        self,
        topic: str,
        key: str,
        max_count: int,
        begin_ms: int,
        end_ms: int,
        *,
        unique: bool = False,
    ) -> QueryResult:
        limit = min(max_count, self.settings.max_msgs_num_batch)
        return self._reader.query(topic, key, limit, begin_ms, end_ms, unique)

    # -- keeping

    def queues(self) -> dict[str, list[int]]:
        """The queue ids of each topic."""
        table: dict[str, list[int]] = {}
        for topic, queue_id in sorted(self.queue_table.table):
            table.setdefault(topic, []).append(queue_id)
        return table

    def delete_topic(self, topic: str) -> None:
        """Remove the topic's queues; its records stay in the log until they expire."""
        self._drain()
        self.reput.forget(topic)
        self.queue_table.remove_topic(topic)

    def clean_unused_topics(self, keep: set[str]) -> int:
        """Delete the queues of topics that are not in `keep`; how many topics there were."""
        unused = {topic for topic, _ in self.queue_table.table} - keep
        for topic in unused:
            self.delete_topic(topic)
        return len(unused)

    def change_settings(self, settings: StoreSettings) -> None:
        """Take over what may change while running: what cleaning and the disk guard go by."""
        self.clean.settings = settings

    def clean_expired(self, manual: bool = True) -> None:
        """Remove expired files now, without waiting for the hour."""
        if manual:
            self.clean.trigger()
        for _ in range(self.settings.delete_file_batch_max):
            if self.clean.step() >= self.settings.clean_resource_interval / 1000:
                break

    # -- positions and figures

    @property
    def min_physical_offset(self) -> int:
        return self.commit_log.files.min_offset

    @property
    def max_physical_offset(self) -> int:
        return self.commit_log.max_offset

    @property
    def flushed_offset(self) -> int:
        return self.commit_log.flushed_offset

    @property
    def committed_offset(self) -> int:
        return self.commit_log.committed_offset

    @property
    def dispatched_offset(self) -> int:
        return self.reput.dispatched_offset

    def disk_usage(self) -> dict[str, DiskSpace]:
        """The disks under the commitlog and the queues."""
        layout = self.settings.layout
        paths = (layout.commitlog, layout.root)
        return {path: self.disk.space(path) for path in paths if self.disk.exists(path)}
