"""Delay levels: messages wait in SCHEDULE_TOPIC_XXXX, a queue for each level, until they are due.

A level's queue is in the order of acceptance; its entries carry the deliver times in the place of
the tags code (`level_times`: what a clock that was set does to them). How far each level has come
is in config/delayOffset.json, never ahead of the flushed log; a start finds later deliveries in the
log (`origins`).
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import structlog

from aerobee.broker.base.clock import Clock
from aerobee.broker.services.config_files.classes import config_path
from aerobee.broker.services.config_files.config_file import ConfigFile, DataVersion, as_int
from aerobee.broker.services.delay.level_times import LevelTimes
from aerobee.broker.services.redelivery import put_again
from aerobee.broker.services.redelivery.origins import keep_mark_near, origins_since
from aerobee.broker.services.redelivery.rounds import FAILED_RETRY_S, Rounds, cancelled
from aerobee.broker.settings import Settings
from aerobee.broker.store.queues.queue_start import first_real
from aerobee.protocol.files.record import Message, StoredMessage
from aerobee.protocol.files.record_layout import head_part
from aerobee.protocol.names import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from aerobee.broker.store.message_store import MessageStore

log = structlog.get_logger("aerobee.schedule")

BATCH_MAX: Final = 256  # messages of one level put at once, before the next level
RETRY_MS: Final = 100
_FAILURE: Final = "delivering delayed messages failed"
_RETRY_FAILED_MS: Final = round(FAILED_RETRY_S * 1000)
_PLACE: Final = head_part("queue_id", "queue_offset")
_MARK: Final = "logOffset"  # of the saved file; Java brokers pass over it


class Schedule:
    """Delivers delayed messages when they are due."""

    def __init__(
        self,
        store: "MessageStore",
        settings: Settings,
        clock: Clock,
        config_folder: str,
        count_put: put_again.CountPut = put_again.not_counted,
    ) -> None:
        self._store = store
        self.count_put = count_put
        self._clock = clock
        self._flush_s = settings.flush_delay_offset_interval / 1000
        self._delays_ms = settings.delay_levels_ms
        self._is_slave = settings.is_slave
        self.data_version = DataVersion(clock.now_ms())
        self.file = ConfigFile(
            config_path(config_folder, "delayOffset.json"), clock, self._snapshot, store.disk
        )
        self._levels: dict[int, LevelTimes] = {}
        self._next: dict[int, int] = {}  # level -> queue offset of the next message
        self._durable: dict[int, int] = {}  # the same, as far as it is on disk
        # Log before and after the copies, level, next.
        self._unflushed: deque[tuple[int, int, int, int]] = deque()
        self._mark = 0  # copies before this place of the log are counted in the saved file
        self._mark_max = -1  # a slave: the same at its master; -1: unknown
        self._retries_ms: dict[int, int] = {}  # level -> when to try a disk again that failed
        self._rounds = Rounds(store, clock, SCHEDULE_TOPIC, self.step, failure=_FAILURE)
        self._tasks: list[asyncio.Task[None]] = []

    # --- start and stop

    def load(self) -> None:
        """Read how far each level has come; the store must be loaded."""
        content = self.file.load() or {}
        self.data_version.load(content.get("dataVersion"))
        table = content.get("offsetTable")
        for level, queue_offset in (table if isinstance(table, dict) else {}).items():
            self._next[as_int(level, 0)] = as_int(queue_offset, 0)
        mark = as_int(content.get(_MARK), -1)
        if not content and self._store.disk.exists(self.file.path):
            mark = 0  # it is damaged: rebuild from the copies in the log
        self._pass_delivered(origins_since(self._store, mark if mark >= 0 else None))
        self._durable = dict(self._next)
        self._mark = max(mark, 0)
        if self._is_slave:  # copies that come from now on are its master's to count
            self._mark_max = self._mark
        if mark < 0:  # save one now: without it a long log is not read for copies
            try:
                self.file.save()
            except OSError:  # a full disk, say; once it is not any more
                self.file.changed_lazily()
        # Also levels that the setting does not name any more, when messages were put to them.
        known = {queue_id + 1 for queue_id in self._store.queues().get(SCHEDULE_TOPIC, ())}
        self._levels = {
            level: LevelTimes(self._clock, self._delay_ms(level))
            for level in sorted(known.union(range(1, len(self._delays_ms) + 1)))
        }
        for level in self._next:  # before a message comes in the place of one that is gone
            self._within_queue(level)

    def _pass_delivered(self, origins: set[int]) -> None:
        """Resume after the last delivered message of each level: none before it is pending."""
        passed = 0
        for level, queue_offset in self._places(origins):
            before = self._next.get(level, 0)
            self._next[level] = max(before, queue_offset + 1)
            passed += queue_offset >= before
        if passed:
            log.info("delayed messages of the last seconds were delivered already", count=passed)

    def _places(self, origins: set[int]) -> Iterator[tuple[int, int]]:
        """Level and queue offset of those delayed messages that are still in their queue."""
        for physical_offset in origins:
            record = self._store.record_at(physical_offset)
            if record is None:
                continue
            queue_id, queue_offset = _PLACE.unpack_from(record)
            entry = self._store.queue_entry(SCHEDULE_TOPIC, queue_id, queue_offset)
            if entry is not None and entry[0] == physical_offset:
                yield queue_id + 1, queue_offset

    async def start(self) -> None:
        self._tasks = [
            *self._rounds.start("schedule"),
            asyncio.create_task(self.file.run(self._flush_s), name="schedule-offsets"),
            asyncio.create_task(
                keep_mark_near(self._store, lambda: self._mark, self.file.changed_lazily),
                name="schedule-mark",
            ),
        ]

    async def stop(self) -> None:
        """End the loop; `save` follows once the store has stopped and all is on disk."""
        await cancelled(self._tasks)

    def save(self) -> None:
        """The final save, after the store's stop: nothing that was delivered is delivered again."""
        self.file.save()

    # --- one round

    def step(self, now_ms: int) -> int | None:
        """Deliver what is due; returns when to run again, None when nothing is pending."""
        due_ms: int | None = None
        for level in self._levels:
            retry_ms = self._retries_ms.get(level, 0)
            if now_ms < retry_ms <= now_ms + _RETRY_FAILED_MS:
                next_ms: int | None = retry_ms  # a disk that fails is slow: not in every round
            else:
                try:
                    next_ms = self._step_level(level, now_ms)
                except OSError as error:  # the other levels do not wait for this one's disk
                    next_ms = self._retry_at(level, now_ms, error)
            if next_ms is not None:
                due_ms = next_ms if due_ms is None else min(due_ms, next_ms)
        self._note_flushed()
        return due_ms

    def _retry_at(self, level: int, now_ms: int, error: OSError) -> int:
        put_again.log_failure(self._store.reports, _FAILURE, error)
        self._retries_ms[level] = retry_ms = now_ms + _RETRY_FAILED_MS
        return retry_ms

    def _delay_ms(self, level: int) -> int | None:
        return self._delays_ms[level - 1] if level <= len(self._delays_ms) else None

    def _step_level(self, level: int, now_ms: int) -> int | None:
        queue_offset = self._within_queue(level)
        queue = self._store.queue_table.get(SCHEDULE_TOPIC, level - 1)
        if queue is None:
            return None
        times = self._levels[level]
        all_seen = times.follow(queue, queue_offset, now_ms)
        batch: list[tuple[StoredMessage, Message]] = []
        batch_bytes = 0
        due_ms: int | None = None
        while len(batch) < BATCH_MAX and batch_bytes < put_again.BATCH_BYTES_MAX:
            try:
                entry = self._store.queue_entry(SCHEDULE_TOPIC, level - 1, queue_offset)
                if entry is None and queue_offset < queue.max_offset:  # of damaged records
                    put_again.log_damaged(SCHEDULE_TOPIC, level - 1, queue_offset)
                    queue_offset = first_real(queue, queue_offset + 1, queue.max_offset)
                    continue
                if entry is None:
                    break
                physical_offset, size, deliver_ms = entry
                entry_due_ms = times.due_ms(queue_offset, deliver_ms, now_ms)
                if entry_due_ms > now_ms:
                    due_ms = entry_due_ms
                    break
                message = put_again.message_at(self._store, physical_offset, size)
            except OSError as error:  # a bad sector: messages before it are delivered
                due_ms = self._retry_at(level, now_ms, error)
                break
            if message is None:
                put_again.log_damaged(SCHEDULE_TOPIC, level - 1, queue_offset)
            ready = put_again.delivered(message) if message is not None else None
            if message is not None and ready is not None:
                batch.append((message, ready))
                batch_bytes += size
            queue_offset += 1
        else:
            due_ms = now_ms  # there may be more
        log_start = self._store.max_physical_offset
        if batch:
            done = self._deliver(batch)
            if done is not None:
                queue_offset = done
                due_ms = now_ms + RETRY_MS
        if queue_offset != self._next.get(level, 0):
            self._advance(level, queue_offset, log_start)
        return due_ms if all_seen else now_ms

    def _within_queue(self, level: int) -> int:
        queue_offset = self._next.get(level, 0)
        least = self._store.min_offset(SCHEDULE_TOPIC, level - 1)
        most = self._store.queue_end(SCHEDULE_TOPIC, level - 1)
        inside = min(max(queue_offset, least), max(most, least))
        if inside != queue_offset:
            log.warning(
                "the progress of a delay level is outside of its queue and was corrected",
                level=level,
                was=queue_offset,
                now=inside,
            )
            self._advance(level, inside, self._store.max_physical_offset)
        return inside

    def _deliver(self, batch: list[tuple[StoredMessage, Message]]) -> int | None:
        """Put them; the queue offset of the first that must be retried, None for none."""
        results = self._store.put_accepted([ready for _, ready in batch])
        for (message, ready), result in zip(batch, results, strict=True):
            if not put_again.is_done(result, message, self._store.reports):
                return message.queue_offset
            if result.ok:
                self.count_put(ready.topic, 1, result.size)
        return None

    # --- progress

    def _advance(self, level: int, queue_offset: int, log_start: int) -> None:
        self._next[level] = queue_offset
        log_end = self._store.max_physical_offset
        self._unflushed.append((log_start, log_end, level, queue_offset))
        self.file.changed_lazily()

    def _note_flushed(self) -> None:
        flushed = self._store.flushed_offset
        while self._unflushed and self._unflushed[0][1] <= flushed:
            _, _, level, queue_offset = self._unflushed.popleft()
            self._durable[level] = queue_offset

    @property
    def levels(self) -> list[int]:
        return list(self._levels)

    def due_ms(self, level: int, queue_offset: int, deliver_ms: int, now_ms: int) -> int:
        """When a pending message is due, by the present time of day."""
        queue = self._store.queue_table.get(SCHEDULE_TOPIC, level - 1)
        if queue is not None:
            self._levels[level].follow(queue, self._next.get(level, 0), now_ms)
        return self._levels[level].due_ms(queue_offset, deliver_ms, now_ms)

    def set_progress(self, level: int, queue_offset: int, log_start: int) -> None:
        """The messages before this one need no delivery any more; their copies are in the log from
        `log_start` on."""
        self._advance(level, queue_offset, log_start)

    def progress(self, level: int) -> tuple[int, int]:
        """The queue offset that a level has come to, and the end of its queue."""
        return self._next.get(level, 0), self._store.max_offset(SCHEDULE_TOPIC, level - 1)

    def take_over(self, content: Mapping[Any, Any]) -> None:
        """A slave: know how far its master has come."""
        self._mark_max = as_int(content.get(_MARK), -1)
        table = content.get("offsetTable")
        reached = {
            as_int(level, 0): as_int(at, 0)
            for level, at in (table if isinstance(table, dict) else {}).items()
        }
        if reached != self._durable:
            self._next, self._durable = dict(reached), reached
            self.file.changed_lazily()

    def take_back(self, origins: set[int], cut_to: int) -> None:
        """The log is about to be cut here, with the copies of these records: they become pending
        again. OSError when that cannot be saved."""
        for level, queue_offset in self._places(origins):
            self._next[level] = min(self._next.get(level, 0), queue_offset)
        self._durable = dict(self._next)
        self._mark_max = cut_to
        self.file.save()

    def table_json(self) -> dict[str, Any]:
        """As the file and GET_ALL_DELAY_OFFSET have it."""
        self._note_flushed()
        return {
            "dataVersion": self.data_version.to_json(),
            _MARK: self._mark,
            "offsetTable": dict(self._durable),
        }

    def _snapshot(self) -> dict[Any, Any]:
        self._note_flushed()
        if self._unflushed:
            self.file.changed_lazily()  # what is not on disk yet is saved the next time
        self.data_version.next(self._clock.now_ms())
        flushed = self._store.flushed_offset
        self._mark = min(flushed, self._unflushed[0][0]) if self._unflushed else flushed
        if self._mark_max >= 0:
            self._mark = min(self._mark, self._mark_max)
        return self.table_json()
