"""The message store: the API that other packages use, on the parts that `parts` builds.

The core is synchronous: a put appends without waiting for anything (`writer`).
`start` runs the coroutines (reput, commit, flush, clean), each a thin loop over a `step`.
"""

from __future__ import annotations

from collections.abc import Callable

from aerobee.broker.base.clock import Clock
from aerobee.broker.store.durability.waiters import join_outcomes
from aerobee.broker.store.files.disk import Disk, DiskSpace
from aerobee.broker.store.index.key_search import Search, search_key
from aerobee.broker.store.lifecycle import Lifecycle
from aerobee.broker.store.parts import FOREVER, build_parts
from aerobee.broker.store.queues.consume_queue import ConsumeQueue
from aerobee.broker.store.reading.cold_read import read_cold
from aerobee.broker.store.reading.log_tail import LogTail, find_log_tail
from aerobee.broker.store.recovery.recovery import Progress
from aerobee.broker.store.results import (
    ArrivalListener,
    Boundary,
    DurableCallback,
    PutStatus,
    ReadResult,
)
from aerobee.broker.store.retention.keepers import Keeper
from aerobee.broker.store.settings import StoreSettings
from aerobee.broker.store.writer import Writer

WhenCopied = Callable[[int, DurableCallback], None]


class MessageStore:
    """Puts, reads, lookups and housekeeping of one store directory."""

    def __init__(
        self,
        settings: StoreSettings,
        *,
        clock: Clock,
        disk: Disk | None = None,
        ahead: bool | None = None,
    ) -> None:
        """`ahead`: create files in a thread before they are needed (default on a real disk)."""
        parts = build_parts(settings, clock, disk, ahead)
        base, files = parts.base, parts.files
        dispatch, durability = parts.dispatch, parts.durability
        self.settings = settings
        self.clock = clock
        self.sync_flush = settings.sync_flush
        self.puts_wait = settings.sync_flush  # answers wait for `when_durable`
        self._when_copied: WhenCopied | None = None
        self.disk = base.disk
        self.stats = base.stats
        self.counters = base.counters
        self.refusals = base.refusals
        self.reports = base.reports
        self.commit_log = files.commit_log
        self.queue_table = files.queues
        self.index = files.index
        self._listeners = files.listeners
        self._pool = files.pool
        self.visible_limit = dispatch.visible_limit
        self.safe_limit = dispatch.safe_limit
        self._confirmed = dispatch.confirmed
        self.reput = dispatch.reput
        self._dispatcher = dispatch.dispatcher
        self.flush = durability.flush
        self.queue_flush = durability.queue_flush
        self.checkpoint = durability.checkpoint
        self.commit = durability.commit
        self.clean = parts.clean
        self.self_check = parts.self_check
        self.reader = parts.reader
        self.read_plain = parts.reader.read_plain
        self.hot_bytes = parts.reader.hot_bytes
        self._life = Lifecycle(parts)
        writer = Writer(base, files.commit_log, dispatch.reput, durability.flush)
        self.put = writer.put
        self.put_accepted = writer.put_accepted
        self.put_again = writer.put_again
        self.put_rows = writer.put_rows
        self.put_batch = writer.put_batch
        self.put_plain_batch = writer.put_plain_batch
        self.put_whole = writer.put_whole
        self.append_copy = writer.append_copy
        self._writer = writer

    # -- opening and closing

    def load(self, progress: Progress | None = None, cut_to: int | None = None) -> None:
        """Lock the directory, load and recover it; StoreError if that fails. `cut_to`: cut the log
        at this offset, the end of a record."""
        self._life.load(progress, cut_to)

    @property
    def was_stopped(self) -> bool:
        """The last run on the directory was shut down cleanly."""
        return self._life.opening.was_stopped

    def finish_start(self) -> bool:
        """Do what a full disk has deferred at the start; whether all is done."""
        return self._life.opening.finish()

    async def start(self) -> None:
        """Run the coroutines."""
        await self._life.start()

    async def stop(self) -> None:
        """Take no more puts; dispatch, commit and flush all; checkpoint; unlock."""
        self._confirmed.end = FOREVER  # no more readers
        await self._life.stop()

    def close(self) -> None:
        """As `stop`, synchronously: for a store whose coroutines were not started."""
        self._confirmed.end = FOREVER
        self._life.close()

    def abandon(self) -> None:
        """Release the directory as a killed process does: nothing is flushed, `abort` stays."""
        self._life.opening.release()

    # -- writing: `put`, `put_accepted`, `put_again`, `put_rows`, `put_batch`,
    # `put_plain_batch` and `put_whole` are the writer's

    def when_durable(self, end_offset: int, callback: DurableCallback) -> None:
        """Call back when the log up to here is as safe as the settings require: on disk
        (SYNC_FLUSH), on other brokers (`wait_for_copies`), both, or at once."""
        copied = flushed = callback
        if self.sync_flush and self._when_copied is not None:
            copied, flushed = join_outcomes(callback)
        if self._when_copied is not None:
            self._when_copied(end_offset, copied)
        if self.sync_flush:
            self.flush.when_durable(end_offset, flushed)
        elif self._when_copied is None:
            callback(PutStatus.PUT_OK)

    def wait_for_copies(self, when_copied: WhenCopied) -> None:
        """Puts are acknowledged once `when_copied` has called back for their end."""
        self._when_copied = when_copied
        self.puts_wait = True

    def confirm(self, end: int | None) -> None:
        """With an arbiter: consumers may see the log up to here; None: all that is safe."""
        self._confirmed.end = FOREVER if end is None else end
        self.reput.flushed()

    @property
    def confirmed_end(self) -> int:
        """The end given to `confirm`, at most the end of the log."""
        return min(self._confirmed.end, self.max_physical_offset)

    def on_append(self, callback: Callable[[int], None] | None) -> None:
        """Call this after each append, with the end of what was appended."""
        self._writer.on_append = callback

    def add_arrival_listener(
        self, callback: ArrivalListener, wants: Callable[[str, int], bool] | None = None
    ) -> None:
        """Call back after each dispatch with the arrivals in the queues that `wants` selects (None:
        all); other queues may be among them. When the answer of `wants` changes,
        `listening_changed` must be called."""
        self._listeners.add(callback, wants)
        for topic, queue_id in self.queue_table.table:
            self.queue_table.listening_changed(topic, queue_id)

    def listening_changed(self, topic: str, queue_id: int) -> None:
        """`wants` of a listener has changed for this queue."""
        self.queue_table.listening_changed(topic, queue_id)

    def prepare_queue(self, topic: str, queue_id: int) -> None:
        """A message to this queue is about to be put: start creating its first file."""
        if self.refusals.current is None:
            self.queue_table.get_or_create(topic, queue_id)

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
        if queue is not None and queue_offset + max_count > queue.max_offset < queue.assigned:
            self.reput.catch_up()
        result = self.reader.read_queue(
            queue, queue_offset, max_count, max_bytes, matches, matches_record
        )
        if result.count and queue is not None:
            result.max_offset = self.visible_end(queue)
        return result

    def visible_end(self, queue: ConsumeQueue) -> int:
        """The end of what consumers may see of a queue, dispatched or pending."""
        if queue.max_offset < queue.assigned:
            if self.visible_limit() == self.max_physical_offset:
                return queue.assigned
            self.reput.catch_up()
        return queue.max_offset

    def read_cold(self, result: ReadResult) -> memoryview:
        """The records of a result, read with pread: for a thread, or for a few records on the loop.
        OSError when the disk fails."""
        return read_cold(result.spans)

    def is_cached(self, physical_offset: int, size: int) -> bool:
        """Whether the bytes can be read without waiting for the disk."""
        file = self.commit_log.find_readable(physical_offset)
        return file is None or file.file.is_cached(physical_offset - file.start, size)

    def record_at(self, physical_offset: int, size: int | None = None) -> memoryview | None:
        return self.reader.record_at(physical_offset, size)

    def queue_entry(
        self, topic: str, queue_id: int, queue_offset: int
    ) -> tuple[int, int, int] | None:
        queue = self._caught_up(topic, queue_id)
        return queue.entry(queue_offset) if queue is not None else None

    def _caught_up(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, with all appended messages dispatched."""
        queue = self.queue_table.get(topic, queue_id)
        if queue is not None and queue.max_offset < queue.assigned:
            self.reput.catch_up()
        return queue

    def log_tail(self, before: int = FOREVER) -> LogTail:
        """The end of the log, or of its part that begins before this offset."""
        return find_log_tail(self.commit_log, self.queue_table, before)

    def forget(self, physical_offset: int, size: int) -> None:
        """These bytes of one file of the log will hardly be read again."""
        if (file := self.commit_log.find_readable(physical_offset)) is not None:
            file.file.forget(physical_offset - file.start, size)

    def read_log(self, physical_offset: int, size: int) -> bytes:
        """Bytes of one file of the log, as far as it has them."""
        return self.commit_log.read(physical_offset, size)

    def min_offset(self, topic: str, queue_id: int) -> int:
        queue = self.queue_table.get(topic, queue_id)
        return queue.min_offset if queue is not None else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        queue = self._caught_up(topic, queue_id)
        return queue.max_offset if queue is not None else 0

    def queue_end(self, topic: str, queue_id: int) -> int:
        """The offset of the queue's next message; after a start on a full disk some before it may
        not be readable yet."""
        queue = self.queue_table.get(topic, queue_id)
        return max(queue.assigned, queue.max_offset) if queue is not None else 0

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary = Boundary.LOWER
    ) -> int:
        queue = self._caught_up(topic, queue_id)
        return self.reader.offset_by_time(queue, timestamp_ms, boundary) if queue else 0

    def store_time(self, topic: str, queue_id: int, queue_offset: int) -> int:
        queue = self._caught_up(topic, queue_id)
        return self.reader.store_time(queue, queue_offset) if queue is not None else -1

    def store_time_later(self, topic: str, queue_id: int, queue_offset: int) -> Callable[[], int]:
        """A function that finds `store_time`, for any thread, as it may read the disk. Call this on
        the loop: only the loop dispatches, and knows which entries are in memory."""
        queue = self._caught_up(topic, queue_id)
        if queue is None:
            return lambda: -1
        return self.reader.store_time_later(queue, queue_offset)

    def earliest_time(self, topic: str, queue_id: int) -> int:
        return self.store_time(topic, queue_id, self.min_offset(topic, queue_id))

    def search(
        self,
        topic: str,
        key: str,
        max_count: int,
        begin_ms: int,
        end_ms: int,
        *,
        unique: bool = False,
    ) -> Search:
        """The records with a key, as a search that yields: see `key_search`."""
        self.reput.catch_up()
        limit = min(max_count, self.settings.max_msgs_num_batch)
        log, index, times = self.commit_log, self.index, (begin_ms, end_ms)
        return search_key(log, index, topic, key, limit, *times, unique, self.reports)

    # -- keeping

    def add_keeper(self, keeper: Keeper) -> None:
        """Ask it before a log file is removed: it stores its pending messages again."""
        self.clean.keepers.add(keeper)

    def queues(self) -> dict[str, list[int]]:
        """The queue ids of each topic."""
        table: dict[str, list[int]] = {}
        for topic, queue_id in sorted(self.queue_table.table):
            table.setdefault(topic, []).append(queue_id)
        return table

    def delete_topic(self, topic: str) -> None:
        """Remove the topic's queues; its records stay in the log until they expire."""
        self.reput.drain(kept=False)  # thousands of queues in one turn of the loop
        is_known = any(name == topic for name, _ in self.queue_table.table)
        self.reput.forget(topic, is_known)
        self.queue_table.remove_topic(topic)

    def clean_unused_topics(self, keep: set[str]) -> int:
        """Delete the queues of topics that are not in `keep`; how many topics there were."""
        unused = {topic for topic, _ in self.queue_table.table} - keep
        for topic in unused:
            self.delete_topic(topic)
        return len(unused)

    def change_settings(self, settings: StoreSettings) -> None:
        """Apply the settings that may change at run time: those of cleaning and the disk guard."""
        self.clean.settings = settings

    def clean_expired(self, manual: bool = True) -> None:
        """Remove expired files now, without waiting for the hour. The coroutine does it if it runs:
        of two that remove at the same time, one that fails could leave a hole."""
        if manual:
            self.clean.trigger()
        if self.clean.is_running:
            self.clean.wake.set()
            return
        for _ in range(self.settings.delete_file_batch_max):
            wait_s = self.clean.step()
            waits = self.clean.keepers.busy or self.clean.awaits_cover
            if waits or wait_s >= self.settings.clean_resource_interval / 1000:
                break  # `run` continues

    # -- positions and figures

    @property
    def min_physical_offset(self) -> int:
        return self.commit_log.files.min_offset

    @property
    def readable_from(self) -> int:
        """Records before this are removed, or about to be."""
        files = self.commit_log.files.files
        return next((file.start for file in files if file.usable), 0)

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
        return self._dispatcher.dispatched_offset

    @property
    def free_transient_buffers(self) -> int:
        """Buffers of the pool that are not in use; 2^31 - 1, as RocketMQ, without a pool."""
        return self._pool.available if self._pool is not None else 2**31 - 1

    def disk_usage(self) -> dict[str, DiskSpace]:
        """The disks under the commitlog and the queues."""
        layout = self.settings.layout
        paths = (layout.commitlog, layout.root)
        return {path: self.disk.space(path) for path in paths if self.disk.exists(path)}
