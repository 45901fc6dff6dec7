"""The message store: the parts wired together, and the few verbs that others call.

The core is synchronous: `put` appends under put_message_lock without waiting for anything.
`start` runs the coroutines (reput, commit, flush, clean), each a thin loop over a `step`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from aerobee.broker.store.commitlog import Fact, LogFull, Row
from aerobee.broker.store.consume_queue import ENTRY_SIZE, ConsumeQueue
from aerobee.broker.store.disk import DiskSpace
from aerobee.broker.store.keepers import Keeper
from aerobee.broker.store.key_search import Search, search_key
from aerobee.broker.store.lifecycle import StoreLifecycle
from aerobee.broker.store.mapped_file import MappedFile
from aerobee.broker.store.plain_read import PlainRead
from aerobee.broker.store.refusals import Cause
from aerobee.broker.store.results import (
    ArrivalListener,
    Boundary,
    DurableCallback,
    PutResult,
    PutStatus,
    ReadResult,
    Refusal,
    RefusedPut,
)
from aerobee.broker.store.settings import StoreSettings
from aerobee.protocol.record import Message

log = structlog.get_logger("aerobee.store")

SLOW_LOCK_S = 0.5
RECENT_ENTRIES = 50_000  # of a queue: what was written last is in memory, no need to ask


class MessageStore(StoreLifecycle):
    """Puts, reads, lookups and housekeeping of one store directory."""

    # -- writing

    def put(self, messages: Sequence[Message]) -> list[PutResult]:
        """Append independent messages: one lock and one clock read for all."""
        return self._put(messages, self.refusals.current)

    def put_again(self, messages: Sequence[Message]) -> list[PutResult]:
        """The same for messages that were acknowledged and wait in a file that is to be removed:
        also while sends are refused because the disk fills up, for it makes room."""
        return self._put(messages, self.refusals.besides(Cause.DISK_FULL))

    def _put(self, messages: Sequence[Message], refusal: Refusal | None) -> list[PutResult]:
        if refusal is not None:
            self.stats.put_failures += len(messages)
            return [RefusedPut(refusal.status, refusal.reason) for _ in messages]
        lock = self._put_message_lock
        if not lock.acquire(False) and not lock.acquire(timeout=self._busy_after_s):
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

    def put_rows(self, rows: Sequence[Row]) -> list[Fact]:
        """Append plain messages, cheaply: a fact for each that was taken. What is left, from the
        first that was not, is for `put`, which also knows the reason."""
        lock = self._put_message_lock
        if self.refusals.current is not None or not lock.acquire(False):
            return []
        started = self.clock.monotonic()
        facts: list[Fact] = []
        try:
            facts = self.commit_log.append_rows(rows, self.clock.now_ms())
            self.reput.offer(facts)
        except LogFull:
            return []
        finally:
            lock.release()
        self._note_put(started, facts, len(facts))
        return facts

    def put_batch(self, messages: Sequence[Message]) -> PutResult:
        """Append the messages of one batch: all in one file and one piece, or none."""
        refusal = self.refusals.current
        if refusal is not None:
            self.stats.put_failures += len(messages)
            return RefusedPut(refusal.status, refusal.reason)
        if not messages:
            return RefusedPut(PutStatus.MESSAGE_ILLEGAL, "the batch holds no message")
        lock = self._put_message_lock
        if not lock.acquire(False) and not lock.acquire(timeout=self._busy_after_s):
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
            if self.sync_flush:  # consumers see only what is flushed, whether or not anybody waits
                self.flush.ask(last[2] + last[3])
            else:
                self.reput.nudge(facts)
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

    def add_arrival_listener(
        self, callback: ArrivalListener, wants: Callable[[str, int], bool] | None = None
    ) -> None:
        """Call back after each dispatch with what arrived in the queues that `wants` is true for
        (None: in all). Others' queues may be among them. When what it wants of a queue changes,
        `listening_changed` must be called."""
        self.reput.listeners.append(callback)
        self.queue_table.add_wanted(wants)

    def listening_changed(self, topic: str, queue_id: int) -> None:
        """A listener has begun or ceased to want a queue's arrivals."""
        self.queue_table.listening_changed(topic, queue_id)

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
        result = self._reader.read_queue(
            queue, queue_offset, max_count, max_bytes, matches, matches_record
        )
        if result.count and queue is not None:
            self.stats.gets_found += 1
            self.stats.messages_read += result.count
            result.max_offset = self.visible_end(queue)
        else:
            self.stats.gets_missed += 1
        return result

    def visible_end(self, queue: ConsumeQueue) -> int:
        """The end of what consumers may see of a queue, dispatched or waiting for it."""
        if queue.max_offset < queue.assigned:
            if self.visible_limit() == self.max_physical_offset:
                return queue.assigned
            self.reput.catch_up()
        return queue.max_offset

    def read_plain(
        self, topic: str, queue_id: int, queue_offset: int, max_count: int, max_bytes: int
    ) -> PlainRead | None:
        """What most pulls want, with less ado: every record of a range, not far behind the log's
        end. None: ask `read_queue`. Whoever keeps a view holds the file meanwhile."""
        queue = self.queue_table.table.get((topic, queue_id))
        if queue is None:
            return None
        found = self._reader.read_plain(queue, queue_offset, max_count, max_bytes)
        if found is not None:
            self.stats.gets_found += 1
            self.stats.messages_read += found[6]
        return found

    def old_entries(
        self, topic: str, queue_id: int, queue_offset: int, count: int
    ) -> tuple[MappedFile, int, int] | None:
        """File, begin and end of a queue's entries, unless they were written lately."""
        queue = self.queue_table.table.get((topic, queue_id))
        if queue is None or queue.max_offset - queue_offset < RECENT_ENTRIES:
            return None
        file = queue.files.find(queue_offset * ENTRY_SIZE)
        if file is None or queue_offset < queue.min_offset:
            return None
        position = queue_offset * ENTRY_SIZE - file.start
        return file, position, min(position + count * ENTRY_SIZE, file.size)

    def read_cold(self, result: ReadResult) -> list[bytes]:
        """The bytes of a result's views, read with pread: for a thread beside the loop, or where a
        few records are read on it. OSError when the disk fails."""
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
        queue = self._caught_up(topic, queue_id)
        return queue.entry(queue_offset) if queue is not None else None

    def _caught_up(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, with what was appended to it so far."""
        queue = self.queue_table.get(topic, queue_id)
        if queue is not None and queue.max_offset < queue.assigned:
            self.reput.catch_up()
        return queue

    def min_offset(self, topic: str, queue_id: int) -> int:
        queue = self.queue_table.get(topic, queue_id)
        return queue.min_offset if queue is not None else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        queue = self._caught_up(topic, queue_id)
        return queue.max_offset if queue is not None else 0

    def queue_end(self, topic: str, queue_id: int) -> int:
        """The number that the queue's next message gets; some before it may not be readable yet,
        after a start without room on the disk."""
        queue = self.queue_table.get(topic, queue_id)
        return max(queue.assigned, queue.max_offset) if queue is not None else 0

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary = Boundary.LOWER
    ) -> int:
        queue = self._caught_up(topic, queue_id)
        return self._reader.offset_by_time(queue, timestamp_ms, boundary) if queue else 0

    def store_time(self, topic: str, queue_id: int, queue_offset: int) -> int:
        queue = self._caught_up(topic, queue_id)
        return self._reader.store_time(queue, queue_offset) if queue is not None else -1

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
        """The records with a key, as a search that pauses: see `key_search`."""
        self.reput.catch_up()
        limit = min(max_count, self.settings.max_msgs_num_batch)
        return search_key(self.commit_log, self.index, topic, key, limit, begin_ms, end_ms, unique)

    # -- keeping

    def add_keeper(self, keeper: Keeper) -> None:
        """Ask it before a log file is removed: it stores again what of its own waits there."""
        self.clean.keepers.add(keeper)

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
            wait_s = self.clean.step()
            if self.clean.keepers.busy or wait_s >= self.settings.clean_resource_interval / 1000:
                break  # `run` goes on with it

    # -- positions and figures

    @property
    def min_physical_offset(self) -> int:
        return self.commit_log.files.min_offset

    @property
    def readable_from(self) -> int:
        """Records before this are gone, or about to."""
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
        return self.reput.dispatched_offset

    @property
    def free_transient_buffers(self) -> int:
        """Buffers of the pool that are not in use; 2^31 - 1, as RocketMQ, without a pool."""
        return self._pool.available if self._pool is not None else 2**31 - 1

    def disk_usage(self) -> dict[str, DiskSpace]:
        """The disks under the commitlog and the queues."""
        layout = self.settings.layout
        paths = (layout.commitlog, layout.root)
        return {path: self.disk.space(path) for path in paths if self.disk.exists(path)}
