"""Writes a unit of the timer log for each message of rmq_sys_wheel_timer, by its second."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from aerobee.broker.services.redelivery import put_again
from aerobee.broker.services.redelivery.origins import origin_of
from aerobee.broker.services.timers.counts import TimerCounts
from aerobee.broker.services.timers.far import REACH_MS, FarTimers
from aerobee.broker.services.timers.messages import carried_from, deliver_time, leg, recalled_key
from aerobee.broker.services.timers.slot import TimerSlot
from aerobee.broker.services.timers.timer_log import (
    MAGIC_DELETE,
    MAGIC_NOTED,
    MAGIC_ROLL,
    NONE,
    TimerLog,
)
from aerobee.broker.services.timers.wheel import EMPTY_SLOT, Slot, TimerWheel
from aerobee.broker.store.results import ReadResult, ReadStatus
from aerobee.protocol.files import properties as props
from aerobee.protocol.files.java_hash import tags_code
from aerobee.protocol.files.record import split_records
from aerobee.protocol.files.record_layout import CorruptRecord, head_part, record_properties
from aerobee.protocol.names import TIMER_TOPIC

if TYPE_CHECKING:
    from aerobee.broker.store.message_store import MessageStore

log = structlog.get_logger("aerobee.timers")

READ_MAX: Final = 512
READ_BYTES_MAX: Final = 4 << 20
_LONG_OVER_MS: Final = 3_600_000
_HEAD: Final = head_part("size", "queue_offset", "physical_offset")


class Timer(NamedTuple):
    """One message of the timer topic."""

    queue_offset: int
    physical_offset: int
    record_size: int
    deliver_ms: int
    properties: str
    is_copy: bool = False  # a unit points to it, or is going to: see `keeper`


# Delivers timers that are due; returns the queue offsets of those that failed.
DeliverDue = Callable[[list[Timer], int], set[int]]


class Enqueue:
    """Follows the timer topic's queue."""

    def __init__(
        self,
        store: "MessageStore",
        timer_log: TimerLog,
        wheel: TimerWheel,
        far: FarTimers,
        roll_window_ms: Callable[[], int],
        deliver_due: DeliverDue,
        copies_from: Callable[[list[Timer]], int],
        counts: TimerCounts,
    ) -> None:
        """`copies_from`: the lowest offset in the store's log that copies of these timers can have
        when they are delivered next."""
        self._store = store
        self._log = timer_log
        self._wheel = wheel
        self._far = far
        self._roll_window_ms = roll_window_ms
        self._deliver_due = deliver_due
        self._copies_from = copies_from
        self._counts = counts
        self._complete_at = 0
        self._delivered: set[int] = set()  # delivered, but going to be read again
        self.log_start: int | None = None  # their copies are in the store's log from this offset on
        self.queue_offset = 0
        self.pending = 0
        self.noted: set[int] = set()  # records with units that are going to be read again
        self._delivered_ms = 0  # of a rebuild: timers due by then fired long ago ...
        self._delivered_to = 0  # ... if they are before this queue offset: they had been read
        self._superseded: set[int] = set()  # records of a rebuild whose timers have rolled or fired
        self._stand_ins: set[int] = set()  # copies in a rebuild, whose originals are gone

    def start_at(self, queue_offset: int, log_end: int, pending: int) -> None:
        """Read from here on; `log_end`: the queue is complete once dispatched up to there."""
        self.queue_offset = queue_offset
        self._complete_at = log_end
        self.pending = pending

    def rebuild(self, delivered_ms: int, delivered_to: int, done: Iterable[int]) -> None:
        """Units of the timer log are lost: make them again, each once. Timers that were due by
        `delivered_ms` have fired, if they had been read: those before queue offset `delivered_to`.
        `done`: records that have fired, or still have a unit. A timer may have several records:
        copies, of which the first one counts now, and one for each roll, of which the last one
        counts."""
        self._delivered_ms, self._delivered_to = delivered_ms, delivered_to
        original: dict[int, int] = {}  # of each copy
        rolled: list[int] = []
        for record in self._all_records():
            rolled_from = origin_of(record)
            before = carried_from(record_properties(record))
            if rolled_from is not None:
                rolled.append(rolled_from)
            if before is not None:
                original[_HEAD.unpack_from(record)[2]] = original.get(before, before)
        over = {original.get(place, place) for place in (*rolled, *done)}
        counted: set[int] = set()
        for place, first in original.items():
            if first in over:
                self._superseded.add(place)
            elif first < self._store.min_physical_offset and first not in counted:
                counted.add(first)
                self._stand_ins.add(place)
        self._superseded |= over

    def _all_records(self) -> Iterator[memoryview]:
        """All records of the timer topic that the store still has, also those already read."""
        queue_offset, end = 0, self._store.max_offset(TIMER_TOPIC, 0)
        while queue_offset < end:
            found = self._read_queue(queue_offset)
            try:
                yield from self._records(found, queue_offset)
            finally:
                found.release()
            if found.next_offset <= queue_offset:
                break
            queue_offset = found.next_offset

    def _read_queue(self, queue_offset: int) -> ReadResult:
        return self._store.read_queue(
            TIMER_TOPIC, 0, queue_offset, READ_MAX, max_bytes=READ_BYTES_MAX
        )

    def has_read(self, physical_offset: int) -> bool:
        """Whether the timers before this offset have units."""
        if self._store.dispatched_offset < self._complete_at:
            return False
        entry = self._store.queue_entry(TIMER_TOPIC, 0, self.queue_offset)
        return entry is None or entry[0] >= physical_offset

    @property
    def has_more(self) -> bool:
        """Whether there are messages to read."""
        end = self._store.max_offset(TIMER_TOPIC, 0)
        if self.queue_offset <= end:
            return self.queue_offset < end
        # Past the end, which is normal only while the queue is incomplete.
        return self._store.dispatched_offset >= self._complete_at

    def step(self, now_ms: int, live: Mapping[int, TimerSlot], read_second: int) -> bool:
        """Process some messages; False if one that is due could not be delivered.

        `live`: the seconds that are in memory, to which new timers must be added."""
        found = self._read_queue(self.queue_offset)
        try:
            timers = [
                timer
                for timer in map(self._read, self._records(found, self.queue_offset))
                if timer is not None
                and timer.queue_offset not in self._delivered
                and timer.physical_offset not in self.noted
                and timer.physical_offset not in self._superseded
            ]
        finally:
            found.release()
        next_offset = found.next_offset
        copies = [timer for timer in timers if timer.is_copy]
        timers = [timer for timer in timers if not timer.is_copy]
        due = [
            timer
            for timer in timers
            if timer.deliver_ms <= now_ms and not self._was_delivered(timer)
        ]
        if due and self.log_start is None:
            self.log_start = self._copies_from(due)
        failed = self._deliver_due(due, now_ms) if due else set()
        self._delivered.update({timer.queue_offset for timer in due} - failed)
        if failed:
            next_offset = min(failed)
        later = [
            timer
            for timer in timers
            if timer.deliver_ms > now_ms and timer.queue_offset < next_offset
        ]
        if copies and copies[-1].queue_offset == next_offset - 1:
            later.append(copies[-1])  # the log's last unit shows how far the queue was read
        self._note(later, now_ms, live, read_second)
        if found.status is ReadStatus.OFFSET_OVERFLOW_BADLY or next_offset > self.queue_offset:
            self.queue_offset = next_offset
            if self.noted and self.queue_offset >= self._store.max_offset(TIMER_TOPIC, 0):
                self.noted = set()
            self._delivered = {offset for offset in self._delivered if offset >= next_offset}
        if not self._delivered:
            self.log_start = None
        return not failed

    def _was_delivered(self, timer: Timer) -> bool:
        """Whether it was, before a rebuild that reads it again."""
        was_read = timer.queue_offset < self._delivered_to
        return was_read and timer.deliver_ms <= self._delivered_ms

    def _read(self, record: memoryview) -> Timer | None:
        size, queue_offset, physical_offset = _HEAD.unpack_from(record)
        text = record_properties(record)
        deliver_ms = deliver_time(text)
        if deliver_ms is None:
            log.error(
                "a message of the timer topic is not a timer: ignored", offset=physical_offset
            )
            return None
        is_copy = self._is_copy(text, physical_offset)
        return Timer(queue_offset, physical_offset, size, deliver_ms, text, is_copy)

    def _is_copy(self, properties: str, physical_offset: int) -> bool:
        return (
            props.TIMER_CARRIED_FROM in properties
            and carried_from(properties) is not None
            and physical_offset not in self._stand_ins
        )

    def _add_noted(self, timer: Timer, now_ms: int) -> None:
        """Add a unit in no chain, with a time in the past: upstream ignores it, too."""
        slot_ms = now_ms - _LONG_OVER_MS
        offset, size = timer.physical_offset, timer.record_size
        self._log.add(NONE, MAGIC_NOTED, now_ms, slot_ms, offset, size, 0, 0)

    def _records(self, found: ReadResult, queue_offset: int) -> list[memoryview]:
        try:
            return list(split_records(self._store.read_cold(found)))
        except CorruptRecord:
            offsets = range(queue_offset, found.next_offset)
            sound = put_again.sound_messages(self._store, TIMER_TOPIC, 0, offsets)
            records = [self._store.record_at(each.physical_offset, each.size) for each in sound]
            return [record for record in records if record is not None]
        except OSError:
            if not self.noted:
                raise
            return list(self._not_noted(range(queue_offset, found.next_offset)))

    def _not_noted(self, queue_offsets: range) -> Iterator[memoryview]:
        """Skip the records that already have units: the bad sector may be in one of them."""
        for queue_offset in queue_offsets:
            entry = self._store.queue_entry(TIMER_TOPIC, 0, queue_offset)
            if entry is None or entry[0] in self.noted:
                continue
            if record := self._store.record_at(entry[0], entry[1]):
                yield record

    def _note(
        self, timers: list[Timer], now_ms: int, live: Mapping[int, TimerSlot], read_second: int
    ) -> None:
        """Write units and chains, then update the slots in memory."""
        log_end = self._log.end
        try:
            noted = self._write_units(timers, now_ms, read_second)
        except OSError:  # they are read again: avoid duplicates
            self._log.take_back(log_end)
            raise
        for second, deliver_ms, position, recall in noted:
            slot = live.get(second)
            if slot is None:
                continue
            if recall:
                slot.recalled.add(recall)
                slot.recalls.append(position)
            else:
                slot.add(deliver_ms, position)
        for timer in timers:
            if not timer.is_copy and recalled_key(timer.properties) is None:
                self.pending += 1
                if props.TIMER_ROLL_TIMES not in timer.properties:
                    topic = props.get(timer.properties, props.REAL_TOPIC) or ""
                    self._counts.add_set(topic, (timer.deliver_ms - now_ms) / 1000)

    def _write_units(
        self, timers: list[Timer], now_ms: int, read_second: int
    ) -> list[tuple[int, int, int, str | None]]:
        """Second, time, position and recalled key of each unit. Writes all or none."""
        slots: dict[int, Slot] = {}
        noted: list[tuple[int, int, int, str | None]] = []
        window_ms = self._roll_window_ms()
        for timer in timers:
            if timer.is_copy:
                self._add_noted(timer, now_ms)
                continue
            recall = recalled_key(timer.properties)
            written_ms = self._clock_of(timer, now_ms)
            magic, deliver_ms = leg(timer.deliver_ms, written_ms, window_ms)
            second = max((deliver_ms - 1) // 1000, read_second)
            chain = slots.get(second) or self._wheel.get(second)
            position = self._log.add(
                chain.last,
                magic | (MAGIC_DELETE if recall else 0),
                written_ms,
                max(deliver_ms - 1, second * 1000),
                timer.physical_offset,
                timer.record_size,
                tags_code(props.get(timer.properties, props.REAL_TOPIC)),
                deliver_ms,
            )
            first = position if chain == EMPTY_SLOT else chain.first
            slots[second] = Slot(first, position, chain.number + (-1 if recall else 1))
            noted.append((second, deliver_ms, position, None if magic & MAGIC_ROLL else recall))
        self._log.write()
        self._wheel.put_all(slots)
        return noted

    def _clock_of(self, timer: Timer, now_ms: int) -> int:
        if timer.deliver_ms - now_ms <= REACH_MS:
            return now_ms
        message = put_again.message_at(self._store, timer.physical_offset, timer.record_size)
        return now_ms if message is None else self._far.noting_ms(message, timer.deliver_ms, now_ms)
