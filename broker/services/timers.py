"""Timers: messages that are delivered at any time, to a tenth of a second, a year ahead.

They wait in rmq_sys_wheel_timer, queue 0. Each is noted as a unit of the timer log in the chain of
its second in the timer wheel: upstream's files, always in its form, so that a store folder can go
to a Java broker and come from one at any moment. When a second comes, its chain is read and its
messages are put to their topics in the order of their times. Memory does not grow with the timers:
only the second that runs is held.

Far timers roll: before their records are removed by age they are put anew, with TIMER_ROLL_TIMES.
"""

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from aerobee.broker.clock import Clock, watch_time_of_day
from aerobee.broker.services import stored, timer_recovery
from aerobee.broker.services.names_check import TIMER_TOPIC
from aerobee.broker.services.origins import MARK_BYTES, keep_mark_near, origins_since
from aerobee.broker.services.timer_checkpoint import Checkpoints, Reached
from aerobee.broker.services.timer_enqueue import Enqueue, Timer
from aerobee.broker.services.timer_keeper import TimerKeeper
from aerobee.broker.services.timer_list import TimerEntry, list_timers, parse_cursor
from aerobee.broker.services.timer_log import MAGIC_DELETE, MAGIC_ROLL, TimerLog
from aerobee.broker.services.timer_messages import (
    NEVER_ENQUEUED,
    NOTHING_RECALLED,
    fired,
    message_of,
    rolled,
)
from aerobee.broker.services.timer_slot import FIRST_PLACE, Place, TimerSlot, load_slot
from aerobee.broker.services.timer_wheel import SLOTS, TimerWheel
from aerobee.broker.settings import Settings
from aerobee.broker.store.results import Arrival, PutResult
from aerobee.broker.store.wake import Wake
from aerobee.protocol.record import Message, StoredMessage

if TYPE_CHECKING:
    from aerobee.broker.store.message_store import MessageStore

log = structlog.get_logger("aerobee.timers")

BATCH_MAX: Final = 256  # messages put at once, before the event loop has its turn
IDLE_S: Final = 60.0
RETRY_MS: Final = 100
FAILED_RETRY_S: Final = 1.0
_BEHIND_S: Final = 3600
_ROLL_MAX_S: Final = 7 * 24 * 3600 - 60  # what upstream's wheel can hold


class _Fired(NamedTuple):
    """A timer that has its turn."""

    place: Place
    counts: bool  # among those that wait
    message: StoredMessage | None
    made: Message | None  # what is put; None: it is recalled, or cannot be used


class Timers:
    """Delivers timers in their time."""

    def __init__(
        self,
        store: "MessageStore",
        settings: Settings,
        clock: Clock,
        root: str,
        count_put: stored.CountPut = stored.not_counted,
    ) -> None:
        self._store = store
        self._count_put = count_put
        self._settings = settings
        self._clock = clock
        self.log = TimerLog(os.path.join(root, "timerlog"), settings.mapped_file_size_timer_log)
        self.wheel = TimerWheel(os.path.join(root, "timerwheel"))
        self._enqueue = Enqueue(
            store, self.log, self.wheel, self._roll_window_ms, self._deliver_due
        )
        self.checkpoints = Checkpoints(
            os.path.join(root, "config", "timercheck"), store, self._sync, self._point_now, clock
        )
        self.keeper = TimerKeeper(
            store,
            self.log,
            self._enqueue,
            self.checkpoints,
            lambda: self._second,
            os.path.join(root, "config", "timerMoves"),
            clock,
        )
        self._read_second = 0  # seconds before this one have had their turn
        self._fired = FIRST_PLACE  # the last that has had its turn
        self._delivered: set[int] = set()  # records whose timers fired before the start ...
        self._loaded_mark = 0  # ... their copies stand in the store's log from here on
        self._slot: TimerSlot | None = None
        self._begun: dict[int, TimerSlot] = {}  # seconds that ran when the clock was set back
        self._wake = Wake()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def pending(self) -> int:
        """How many timers wait; a recalled one counts until its second has come."""
        return self._enqueue.pending

    @property
    def offset_behind(self) -> int:
        """Timers that have come and are not noted on the wheel yet."""
        return max(0, self._store.max_offset(TIMER_TOPIC, 0) - self._enqueue.queue_offset)

    @property
    def read_behind(self) -> int:
        """By how many seconds the delivery is late; 0 when nothing waits."""
        if not self.pending:
            return 0
        return max(0, self._clock.now_ms() // 1000 - self._second)

    def page(
        self, cursor: str, count: int, topic: str | None = None
    ) -> tuple[list[TimerEntry], str]:
        """A page of the timers that wait, of one topic or of all, and the next page's cursor."""
        start = parse_cursor(cursor) if cursor else (self._second, self._fired)
        return list_timers(self._store, self.log, self.wheel, start, count, topic)

    @property
    def _second(self) -> int:
        """The second that runs, or the next one to look for."""
        return self._read_second if self._slot is None else self._slot.second

    def _roll_window_ms(self) -> int:
        """How far ahead a timer is noted: well before its record is removed by age."""
        kept_s = self._settings.file_reserved_time * 3600 // 2
        return max(60, min(self._settings.timer_roll_window_slot, kept_s, _ROLL_MAX_S)) * 1000

    # --- start and stop

    def load(self) -> None:
        """Find what is pending; the store must be loaded."""
        point = self.checkpoints.load()
        end = self._store.max_physical_offset
        self._delivered = origins_since(self._store, self.checkpoints.mark)
        self._loaded_mark = self.checkpoints.mark or 0
        self.log.load()
        self._delivered |= self.keeper.load(self._delivered)
        queue_offset = max(point.queue_offset, self._store.min_offset(TIMER_TOPIC, 0))
        unread = self._store.queue_entry(TIMER_TOPIC, 0, queue_offset)
        found = timer_recovery.recover(
            self.log,
            self.wheel,
            read_second=point.read_ms // 1000,
            read_end=point.log_end,
            unread_from=end if unread is None else unread[0],
            max_physical_offset=end,
            fired=self._delivered,
        )
        # Not behind the running second: it may get new timers yet.
        self._read_second = min(found.read_second, self._clock.now_ms() // 1000)
        self._enqueue.noted = found.noted
        if self.log.end < point.log_end:
            log.warning(
                "the timer log is gone or damaged: timers are read anew from the store",
                sound_up_to=self.log.end,
                was=point.log_end,
            )
            queue_offset = self._behind(found.last_physical_offset)
            self._enqueue.skip_before_ms = point.read_ms
        self._enqueue.start_at(queue_offset, end, found.timers)
        if found.timers:
            log.info("timers are pending", timers=found.timers)
        else:
            self._read_second = max(self._read_second, self._clock.now_ms() // 1000)
        if self.checkpoints.mark is None and end >= MARK_BYTES:
            self._save_point()

    def _behind(self, physical_offset: int) -> int:
        """The queue offset behind the record there; 0 when none of the timer topic is."""
        record = stored.message_at(self._store, physical_offset)
        return record.queue_offset + 1 if record and record.topic == TIMER_TOPIC else 0

    def _save_point(self) -> None:
        """Write the checkpoint now; when the disk refuses, by and by."""
        try:
            self.checkpoints.step()
        except OSError as error:
            log.error("timers cannot be written to disk; trying again", error=str(error))
            self.checkpoints.dirty.set()

    async def start(self) -> None:
        self._store.add_arrival_listener(
            self._arrived, lambda topic, _queue_id: topic == TIMER_TOPIC
        )
        self._tasks = [
            asyncio.create_task(self._run(), name="timers"),
            asyncio.create_task(
                self.checkpoints.run(self._settings.timer_flush_interval_ms / 1000),
                name="timers-checkpoints",
            ),
            asyncio.create_task(
                keep_mark_near(
                    self._store, lambda: self.checkpoints.mark or 0, self.checkpoints.dirty.set
                ),
                name="timers-mark",
            ),
            asyncio.create_task(
                watch_time_of_day(self._clock, self._wake.set), name="timers-clock"
            ),
        ]

    async def stop(self) -> None:
        """End the loops, at the end of a second; `save` follows once the store has stopped."""
        while self._is_half_fired():
            await self._clock.sleep(0.02)
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        self._tasks.clear()

    def _is_half_fired(self) -> bool:
        """Whether a part of the second that runs has fired: a Java broker knows whole ones only."""
        slot = self._slot
        if slot is None or not slot.waiting or self._fired[0] <= slot.second * 1000:
            return False
        return self._clock.now_ms() < (slot.second + 1) * 1000

    def save(self) -> None:
        """The last word, after the store's stop: nothing that was delivered is delivered again."""
        if self._slot is not None and not self._slot.waiting:
            self._read_second, self._slot = self._slot.second + 1, None
        self._sync()
        self.checkpoints.save(self._point_now())
        self.keeper.save()
        self.close()

    def _sync(self) -> None:
        """Put the files on disk; from any thread."""
        self.keeper.sync()
        self.log.sync()
        self.wheel.sync()

    def close(self) -> None:
        """Leave the files as they are."""
        self.log.close()
        self.wheel.close()

    async def _run(self) -> None:
        tick_ms = self._settings.timer_precision_ms
        while True:
            try:
                due_ms = self.step(self._clock.now_ms())
            except Exception as error:  # the next round must come, whatever is wrong with this one
                stored.say_failed(self._store.reports, "delivering timers failed", error)
                await self._clock.sleep(FAILED_RETRY_S)
                continue
            now_ms = self._clock.now_ms()
            if due_ms is None:
                await self._wake.wait_at_most(self._clock, IDLE_S)
            elif due_ms <= now_ms:
                await asyncio.sleep(0)  # more is due: let the others have their turn
            else:
                tick = -(-due_ms // tick_ms) * tick_ms
                await self._wake.wait_at_most(self._clock, (tick - now_ms) / 1000)

    def _arrived(self, arrivals: list[Arrival]) -> None:
        if self._wake.is_set:
            return
        for arrival in arrivals:
            if arrival[0] == TIMER_TOPIC:
                self._wake.set()
                return

    # --- one round

    def step(self, now_ms: int) -> int | None:
        """Set new timers, fire those that are due; returns when to look again, None: no timer."""
        if now_ms // 1000 < self._second or now_ms < self._fired[0]:
            self._follow_clock_back(now_ms)
        behind = self._second < now_ms // 1000 - _BEHIND_S  # those that wait go first then
        if self._enqueue.has_more and not behind:
            running = {} if self._slot is None else {self._slot.second: self._slot}
            delivered = self._enqueue.step(now_ms, self._begun | running, self._read_second)
            self.checkpoints.dirty.set()
            if not delivered:
                return now_ms + RETRY_MS
        due_ms = self._fire(now_ms)
        return now_ms if self._enqueue.has_more else due_ms

    def _follow_clock_back(self, now_ms: int) -> None:
        """Seconds that have had their turn come once more; timers set from now on fire in them.

        What has fired in them may fire again after a restart, until they have passed."""
        log.warning("the clock was set back: timers follow it", second=self._second, now_ms=now_ms)
        if self._slot is not None:
            self._begun[self._slot.second] = self._slot
            self._slot = None
        self._read_second = now_ms // 1000
        self._fired = FIRST_PLACE
        self.checkpoints.dirty.set()

    def _deliver_due(self, timers: list[Timer], now_ms: int) -> set[int]:
        """Deliver timers that were due when they were read; those that could not be."""
        ready = []
        for timer in sorted(timers, key=lambda timer: timer.deliver_ms):
            if timer.physical_offset in self._delivered:
                self._enqueue.log_start = self._loaded_mark
                continue
            message = stored.message_at(self._store, timer.physical_offset, timer.record_size)
            made = message and fired(message, NEVER_ENQUEUED, now_ms, NOTHING_RECALLED)
            if message is not None and made is not None:
                ready.append((message, made))
        results = self._put([made for _, made in ready])
        return {
            message.queue_offset
            for (message, _), result in zip(ready, results, strict=True)
            if not stored.is_done(result, message, self._store.reports)
        }

    def _fire(self, now_ms: int) -> int | None:
        """Fire what is due of one second: after a long stop there may be very many of them."""
        if self._slot is None:
            now_s = now_ms // 1000
            second = self.wheel.next_second(self._read_second, now_s + 1, now_s + SLOTS)
            if second is None or second * 1000 >= now_ms:
                self._read_second = max(self._read_second, now_s)
                end = now_s + SLOTS
                following = self.wheel.next_second(self._read_second, end, end)
                return None if following is None else following * 1000 + 1
            self._slot = self._begun.pop(second, None) or self._load_slot(second)
        more = self._fire_slot(self._slot, now_ms)
        if more is not None:
            return more
        if now_ms < (self._slot.second + 1) * 1000:
            return (self._slot.second + 1) * 1000  # it may get more until then
        self.wheel.forget(self._slot.second)
        self._read_second = self._slot.second + 1
        self._slot = None
        self.log.drop_before(self._store.min_physical_offset, self._read_second)
        self.checkpoints.dirty.set()
        return now_ms  # for the next second

    def _load_slot(self, second: int) -> TimerSlot:
        slot = load_slot(self._store, self.log, self.wheel, second, fired=self._delivered)
        slot.log_start = self._loaded_mark if slot.has_fired else self._store.max_physical_offset
        return slot

    def _fire_slot(self, slot: TimerSlot, now_ms: int) -> int | None:
        """Fire what is due; when to look again, None when the slot is empty."""
        places: list[Place] = []
        batch: list[_Fired] = []
        batch_bytes = done = 0
        try:
            while (place := slot.peek()) is not None and place[0] <= now_ms:
                if len(batch) == BATCH_MAX or batch_bytes >= stored.BATCH_BYTES_MAX:
                    break
                places.append(place)
                slot.pop()
                entry = self._taken_up(place, slot, now_ms)
                batch.append(entry)
                batch_bytes += 0 if entry.message is None else entry.message.size
            done = self._put_batch(batch)
        finally:
            for place in places[done:]:
                slot.add(*place)
        if places:
            self.checkpoints.dirty.set()
        if done < len(places):
            return now_ms + RETRY_MS
        following = slot.peek()
        return None if following is None else max(following[0], now_ms)

    def _taken_up(self, place: Place, slot: TimerSlot, now_ms: int) -> _Fired:
        unit = self.log.read(place[1])
        message = message_of(self._store, unit) if unit else None
        if unit is None or message is None:
            return _Fired(place, True, None, None)
        if unit.magic & MAGIC_ROLL:
            made: Message | None = rolled(message)
        else:
            made = fired(message, unit.written_ms, now_ms, slot.recalled)
        return _Fired(place, not unit.magic & MAGIC_DELETE, message, made)

    def _put_batch(self, batch: list[_Fired]) -> int:
        """Put them in order; how many, before the first that failed, have had their turn."""
        made = [entry.made for entry in batch if entry.made is not None]
        results = iter(self._put(made))
        for number, entry in enumerate(batch):
            if (
                entry.message is not None
                and entry.made is not None
                and not stored.is_done(next(results), entry.message, self._store.reports)
            ):
                return number
            self._fired = entry.place
            self._enqueue.pending -= 1 if entry.counts else 0
        return len(batch)

    def _put(self, messages: list[Message]) -> list[PutResult]:
        put = self._store.put_again if self.keeper.is_held_up else self._store.put
        results = put(messages) if messages else []
        for message, result in zip(messages, results, strict=True):
            if result.ok:
                self._count_put(message.topic, 1, result.size)
        return results

    # --- progress

    def _point_now(self) -> Reached:
        """How far it has come; what was delivered lies before the log's end."""
        end = self._store.max_physical_offset
        slots = [*self._begun.values(), *([] if self._slot is None else [self._slot])]
        starts = [slot.log_start for slot in slots]
        if self._enqueue.log_start is not None:
            starts.append(self._enqueue.log_start)
        return Reached(
            end,
            min(starts, default=end),
            self._second * 1000,
            self.log.end,
            self._enqueue.queue_offset,
        )
