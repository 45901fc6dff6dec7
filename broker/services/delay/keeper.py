"""Delayed messages outlive the files that hold them: they become timers of the same time.

A level's queue is in the order of the deliver times; a message that is put to its end again would
come too late. So the messages at a level's head go to the timer topic, or, when they are due, to
their destination; the level's progress advances as if it had delivered them.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from aerobee.broker.base.clock import Clock
from aerobee.broker.services.delay.schedule import Schedule
from aerobee.broker.services.redelivery import put_again
from aerobee.broker.services.timers.messages import as_timer
from aerobee.broker.settings import Settings
from aerobee.broker.store.retention.keepers import Standing
from aerobee.protocol.files.record import Message, StoredMessage
from aerobee.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC

if TYPE_CHECKING:
    from aerobee.broker.store.message_store import MessageStore

_AT_ONCE: Final = 64


class ScheduleKeeper:
    """Empties the heads of the delay levels."""

    kind = "delayed"

    def __init__(
        self, store: "MessageStore", schedule: Schedule, settings: Settings, clock: Clock
    ) -> None:
        self._store = store
        self._schedule = schedule
        self._settings = settings
        self._clock = clock
        self.carried = self.carried_bytes = 0
        self.problem = ""

    def carry(self, end: int, may_put: bool) -> Standing:
        for level in self._schedule.levels:
            start, stop = self._head(level, end)
            if start < stop:
                return self._carry_head(level, start, stop, may_put)
        return Standing.CLEAR

    def waiting(self, end: int) -> Iterator[StoredMessage]:
        for level in self._schedule.levels:
            for queue_offset in range(*self._head(level, end)):
                message = self._message(level, queue_offset)
                if message is not None:
                    yield message

    def _head(self, level: int, end: int) -> tuple[int, int]:
        """The queue offsets of a level that have not been delivered and lie before `end`."""
        next_offset, _ = self._schedule.progress(level)
        start = max(next_offset, self._store.min_offset(SCHEDULE_TOPIC, level - 1))
        stop = put_again.first_at_or_after(self._store, SCHEDULE_TOPIC, level - 1, end)
        return start, stop

    def _message(self, level: int, queue_offset: int) -> StoredMessage | None:
        entry = self._store.queue_entry(SCHEDULE_TOPIC, level - 1, queue_offset)
        return None if entry is None else put_again.message_at(self._store, entry[0], entry[1])

    def _carry_head(self, level: int, start: int, stop: int, may_put: bool) -> Standing:
        if not self._settings.timer_wheel_enable:
            self.problem = "delayed messages can only be kept as timers, but timerWheelEnable=false"
            return Standing.STUCK
        if not may_put:
            self.problem = "delayed messages fill most of the file: too little would be freed"
            return Standing.STUCK
        made, stop = self._made(level, start, min(stop, start + _AT_ONCE))
        log_start = self._store.max_physical_offset
        results = self._store.put_again([message for _, message in made]) if made else []
        failed: int | None = None
        for (queue_offset, message), result in zip(made, results, strict=True):
            if not result.ok:
                self.problem, failed = result.reason, queue_offset
                break
            self.carried += 1
            self.carried_bytes += result.size
            if message.topic != TIMER_TOPIC:
                self._schedule.count_put(message.topic, 1, result.size)
        self._schedule.set_progress(level, stop if failed is None else failed, log_start)
        return Standing.BUSY if failed is None else Standing.STUCK

    def _made(self, level: int, start: int, stop: int) -> tuple[list[tuple[int, Message]], int]:
        """What is put for each message, and the queue offset after the last one checked."""
        now_ms, size = self._clock.now_ms(), 0
        made: list[tuple[int, Message]] = []
        for queue_offset in range(start, stop):
            if size >= put_again.BATCH_BYTES_MAX:
                return made, queue_offset
            entry = self._store.queue_entry(SCHEDULE_TOPIC, level - 1, queue_offset)
            message = self._message(level, queue_offset)
            if entry is None or message is None:
                put_again.log_damaged(SCHEDULE_TOPIC, level - 1, queue_offset)
                continue
            ready = put_again.delivered(message)
            due_ms = self._schedule.due_ms(level, queue_offset, entry[2], now_ms)
            if ready is not None and due_ms > now_ms:
                ready = as_timer(message, due_ms, self._settings.timer_precision_ms)
            if ready is not None:
                made.append((queue_offset, ready))
                size += message.size
        return made, stop
