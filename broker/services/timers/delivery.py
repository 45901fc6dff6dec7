"""Puts the messages of due timers to the store, or rolls far ones."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from aerobee.broker.services.redelivery import put_again
from aerobee.broker.services.timers.counts import TimerCounts
from aerobee.broker.services.timers.enqueue import Timer
from aerobee.broker.services.timers.messages import (
    NEVER_ENQUEUED,
    NOTHING_RECALLED,
    fired,
    message_of,
    recalled_key,
    rolled,
)
from aerobee.broker.services.timers.slot import FIRST_PLACE, Place, TimerSlot
from aerobee.broker.services.timers.timer_log import MAGIC_DELETE, MAGIC_ROLL, TimerLog, Unit
from aerobee.broker.services.timers.unread import UnreadTimers
from aerobee.broker.store.results import PutResult
from aerobee.protocol.files.record import Message, StoredMessage
from aerobee.protocol.names import TIMER_TOPIC

if TYPE_CHECKING:
    from aerobee.broker.store.message_store import MessageStore

BATCH_MAX: Final = 256  # messages put at once, before the event loop runs again
RETRY_MS: Final = 100


class _Fired(NamedTuple):
    """A timer that is due."""

    place: Place
    counts: bool  # whether it was counted as pending
    message: StoredMessage | None
    made: Message | None  # the message to put; None: recalled, or unusable
    unread: tuple[Unit, OSError] | None = None  # its message cannot be read from disk


class TimerDelivery:
    """Puts due messages; skips those that were put before the start."""

    def __init__(
        self,
        store: "MessageStore",
        timer_log: TimerLog,
        put: Callable[[list[Message]], list[PutResult]],
        count_put: put_again.CountPut,
        counts: TimerCounts,
        unread: UnreadTimers,
    ) -> None:
        self._store = store
        self._unread = unread
        self._put_all = put
        self._log = timer_log
        self._count_put = count_put
        self._counts = counts
        self.last = FIRST_PLACE  # the last one done
        self.count = 0  # timers that were pending and are done
        self.known: set[int] = set()  # records whose timers fired before the start ...
        self.known_from = 0  # ... their copies are in the store's log from this offset on

    def copies_from(self, timers: list[Timer]) -> int:
        """The lowest offset in the store's log that a copy of these can have."""
        known = any(timer.physical_offset in self.known for timer in timers)
        return self.known_from if known else self._store.max_physical_offset

    def deliver_due(self, timers: list[Timer], now_ms: int) -> set[int]:
        """Deliver timers that were already due when they were read; returns those that failed. A
        recall among them may be of another: after a crash they are read together."""
        recalled: dict[int, set[str]] = {}  # by their seconds, as on the wheel
        for timer in timers:
            if (key := recalled_key(timer.properties)) is not None:
                recalled.setdefault(_second(timer), set()).add(key)
        ready = []
        for timer in sorted(timers, key=lambda timer: timer.deliver_ms):
            if timer.physical_offset in self.known:
                continue
            message = put_again.message_at(self._store, timer.physical_offset, timer.record_size)
            without = recalled.get(_second(timer), NOTHING_RECALLED)
            made = message and fired(message, NEVER_ENQUEUED, now_ms, without)
            if message is not None and made is not None:
                ready.append((message, made))
        results = self._put([made for _, made in ready])
        return {
            message.queue_offset
            for (message, _), result in zip(ready, results, strict=True)
            if not put_again.is_done(result, message, self._store.reports)
        }

    def fire(self, slot: TimerSlot, now_ms: int) -> int | None:
        """Fire what is due; returns when to check again, None if the slot is empty."""
        places: list[Place] = []
        batch: list[_Fired] = []
        batch_bytes = done = 0
        try:
            while (place := slot.peek()) is not None and place[0] <= now_ms:
                if len(batch) == BATCH_MAX or batch_bytes >= put_again.BATCH_BYTES_MAX:
                    break
                places.append(place)
                slot.pop()
                entry = self._prepared(place, slot, now_ms)
                batch.append(entry)
                batch_bytes += 0 if entry.message is None else entry.message.size
            done = self._put_batch(batch)
            self._defer_unread(batch[:done], slot, now_ms)
        finally:
            for place in places[done:]:
                slot.add(*place)
        if done < len(places):
            return now_ms + RETRY_MS
        following = slot.peek()
        return None if following is None else max(following[0], now_ms)

    def has_half_fired(self, slot: TimerSlot | None, now_ms: int) -> bool:
        """Whether this second is running and has fired in part: Java brokers know only whole
        seconds."""
        if slot is None or not slot.waiting or self.last[0] <= slot.second * 1000:
            return False
        return now_ms < (slot.second + 1) * 1000

    def _prepared(self, place: Place, slot: TimerSlot, now_ms: int) -> _Fired:
        unit = self._log.read(place[1])
        if unit is None:
            return _Fired(place, True, None, None)
        try:
            if slot.unread is not None:  # the recall that cannot be read may be for this timer
                raise slot.unread
            message = message_of(self._store, unit)
        except OSError as error:
            return _Fired(place, False, None, None, (unit, error))
        self._unread.note_read(unit.physical_offset)
        if message is None:
            return _Fired(place, True, None, None)
        if unit.magic & MAGIC_ROLL:
            made: Message | None = rolled(message)
        else:
            made = fired(message, unit.written_ms, now_ms, slot.recalled)
        return _Fired(place, not unit.magic & MAGIC_DELETE, message, made)

    def _defer_unread(self, batch: list[_Fired], slot: TimerSlot, now_ms: int) -> None:
        found = [entry.unread for entry in batch if entry.unread is not None]
        if not found:
            return
        try:
            self._unread.note_again([unit for unit, _ in found], slot, found[0][1], now_ms)
        except OSError:  # retry them
            for entry in batch:
                if entry.unread is not None:
                    slot.add(*entry.place)
            raise

    def _put_batch(self, batch: list[_Fired]) -> int:
        """Put them in order; returns how many are done, before the first that failed."""
        made = [entry.made for entry in batch if entry.made is not None]
        results = iter(self._put(made))
        for number, entry in enumerate(batch):
            if (
                entry.message is not None
                and entry.made is not None
                and not put_again.is_done(next(results), entry.message, self._store.reports)
            ):
                return number
            self.last = entry.place
            self.count += 1 if entry.counts else 0
        return len(batch)

    def _put(self, messages: list[Message]) -> list[PutResult]:
        results = self._put_all(messages) if messages else []
        for message, result in zip(messages, results, strict=True):
            if result.ok:
                self._count_put(message.topic, 1, result.size)
                if message.topic != TIMER_TOPIC:  # else it was only rolled
                    self._counts.add_delivered(message.topic)
        return results


def _second(timer: Timer) -> int:
    return (timer.deliver_ms - 1) // 1000
