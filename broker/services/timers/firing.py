"""Timers: messages that are delivered at any time, to a tenth of a second, a year ahead.

They wait in rmq_sys_wheel_timer, queue 0. Each is noted as a unit of the timer log in the chain of
its second in the timer wheel: upstream's files, always in its form, so that a store folder can go
to a Java broker and come from one at any moment. When a second comes, its chain is read and its
messages are put to their topics in the order of their times. Memory does not grow with the timers:
only the current second is held.

Far timers roll: before their records expire they are put again, with TIMER_ROLL_TIMES.
"""

import asyncio
import os
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from aerobee.broker.base.clock import Clock
from aerobee.broker.services.config_files.classes import config_path
from aerobee.broker.services.redelivery import put_again
from aerobee.broker.services.redelivery.origins import MARK_BYTES, keep_mark_near, origins_since
from aerobee.broker.services.redelivery.rounds import Rounds, cancelled
from aerobee.broker.services.timers import recovery
from aerobee.broker.services.timers.checkpoint import Checkpoints, Reached
from aerobee.broker.services.timers.counts import TimerCounts
from aerobee.broker.services.timers.delivery import RETRY_MS, TimerDelivery
from aerobee.broker.services.timers.enqueue import Enqueue
from aerobee.broker.services.timers.far import FarTimers
from aerobee.broker.services.timers.keeper import TimerKeeper
from aerobee.broker.services.timers.listing import TimerEntry, list_timers, parse_cursor
from aerobee.broker.services.timers.messages import is_record, offset_after, within_queue
from aerobee.broker.services.timers.passed import Passed, PassedSeconds
from aerobee.broker.services.timers.slot import FIRST_PLACE, TimerSlot, load_slot
from aerobee.broker.services.timers.timer_log import TimerLog
from aerobee.broker.services.timers.unread import UnreadTimers
from aerobee.broker.services.timers.wheel import REACH_S, SECOND_MAX, TimerWheel
from aerobee.broker.settings import Settings
from aerobee.broker.store.results import PutResult
from aerobee.protocol.files.record import Message
from aerobee.protocol.names import TIMER_TOPIC

if TYPE_CHECKING:
    from aerobee.broker.store.message_store import MessageStore

log = structlog.get_logger("aerobee.timers")

_BEHIND_S: Final = 3600
_SECONDS_MAX: Final = 100  # that fire in one round when new timers cannot be read
_ROLL_MAX_S: Final = 7 * 24 * 3600 - 60  # what upstream's wheel can hold


class Timers:
    """Delivers timers when they are due."""

    def __init__(
        self,
        store: "MessageStore",
        settings: Settings,
        clock: Clock,
        root: str,
        count_put: put_again.CountPut = put_again.not_counted,
    ) -> None:
        config_folder = os.path.join(root, "config")
        self._store = store
        self._settings = settings
        self._clock = clock
        self.log = TimerLog(
            os.path.join(root, "timerlog"), settings.mapped_file_size_timer_log, store.disk
        )
        self.wheel = TimerWheel(os.path.join(root, "timerwheel"), store.disk, store.reports)
        self._far = FarTimers(
            store,
            self.log,
            self.wheel,
            clock,
            settings.timer_max_delay_sec * 1000,
            self._roll_window_ms,
            self._take_slot,
            lambda second: self._passed.add_far(second, self.log.end),
            self._note_dropped,
        )
        self.counts = TimerCounts()
        self.unread = UnreadTimers(
            self.log, self.wheel, store.reports, lambda: self._begun | self._far.live
        )
        self._delivery = TimerDelivery(
            store, self.log, self._put, count_put, self.counts, self.unread
        )
        self._enqueue = Enqueue(
            store,
            self.log,
            self.wheel,
            self._far,
            self._roll_window_ms,
            self._delivery.deliver_due,
            self._delivery.copies_from,
            self.counts,
        )
        self.checkpoints = Checkpoints(
            config_path(config_folder, "timercheck"), store, self._sync, self._point_now, clock
        )
        self.keeper = TimerKeeper(
            store,
            self.log,
            self._enqueue,
            self.checkpoints,
            lambda: self._second,
            lambda: self._passed.ranges,
            config_path(config_folder, "timerMoves"),
            clock,
        )
        self._loaded_end = self._loaded_second = 0  # of the store's log, and the time, at the start
        self._read_second = 0  # seconds before this one are done
        self._slot: TimerSlot | None = None
        self._passed = PassedSeconds()  # before the clock was set back
        self._seen = (0, 0.0)  # the time of the last round, by both clocks
        self._begun: dict[int, TimerSlot] = {}  # seconds that ran when the clock was set back
        self._rounds = Rounds(
            store,
            clock,
            TIMER_TOPIC,
            self.step,
            failure="delivering timers failed",
            tick_ms=settings.timer_precision_ms,
        )
        self._ended: Reached | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def pending(self) -> int:
        """How many timers are pending; a recalled one counts until its second."""
        return self._enqueue.pending

    @property
    def offset_behind(self) -> int:
        """Messages of the timer topic that are not on the wheel yet."""
        return max(0, self._store.max_offset(TIMER_TOPIC, 0) - self._enqueue.queue_offset)

    @property
    def enqueue_offset(self) -> int:
        """Queue offset of the first message that is not on the wheel yet."""
        return self._enqueue.queue_offset

    @property
    def due_messages(self) -> int:
        """Timers of the running second that are not delivered yet."""
        return 0 if self._slot is None else self._slot.waiting

    @property
    def read_behind(self) -> int:
        """By how many seconds the delivery is late; 0 when nothing waits."""
        if not self.pending:
            return 0
        now_s = self._clock.now_ms() // 1000
        late = self._slot.second if self._slot else self.wheel.next_second(self._second, now_s)
        return 0 if late is None else max(0, now_s - late)

    def page(
        self, cursor: str, count: int, topic: str | None = None
    ) -> tuple[list[TimerEntry], str]:
        """A page of the pending timers, of one topic or of all, and the next page's cursor."""
        start = parse_cursor(cursor) if cursor else (self._second, self._delivery.last)
        return list_timers(self._store, self.log, self.wheel, start, count, topic)

    @property
    def _second(self) -> int:
        """The running second, or the next one to read."""
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
        self._delivery.known = origins_since(self._store, self.checkpoints.mark)
        self._delivery.known_from = self.checkpoints.mark or 0
        self._loaded_end, self._loaded_second = end, self._clock.now_ms() // 1000
        self.log.load()
        self._delivery.known |= self.keeper.load(self._delivery.known)
        queue_offset = read_to = within_queue(self._store, point.queue_offset)
        unread = self._store.queue_entry(TIMER_TOPIC, 0, queue_offset)
        now_s = self._clock.now_ms() // 1000
        self.wheel.far_from = now_s + REACH_S
        reached = Passed(0, point.read_ms // 1000, point.log_end)
        self._passed.ranges = list(self.checkpoints.passed)
        if reached.end > now_s:  # the clock was set back
            self._passed.ranges.append(reached)
        found = recovery.recover(
            self.log,
            self.wheel,
            passed=[reached, *self.checkpoints.passed],
            unread_from=end if unread is None else unread[0],
            max_physical_offset=end,
            fired=self._delivery.known,
            is_record=partial(is_record, self._store),
        )
        # Not after the running second: it may get new timers.
        self._read_second = min(found.read_second, now_s)
        self._enqueue.noted = found.noted
        if found.far_clock_ms:
            self._far.note_clock(max(found.far_clock_ms, self.checkpoints.old_clock_ms))
        if self.log.end < point.log_end:
            log.warning(
                "the timer log is gone or damaged: timers are read from the store again",
                sound_up_to=self.log.end,
                was=point.log_end,
            )
            queue_offset = offset_after(self._store, found.last_physical_offset)
        self._enqueue.start_at(queue_offset, end, found.timers)
        if self.log.end < point.log_end:
            done = self._delivery.known | recovery.noted_records(self.log)
            self._enqueue.rebuild(point.read_ms, read_to, done)
        if found.timers:
            log.info("timers are pending", timers=found.timers)
        else:
            self._read_second = max(self._read_second, self._clock.now_ms() // 1000)
        if self.checkpoints.mark is None and end >= MARK_BYTES:
            self._save_point()

    def _save_point(self) -> None:
        """Write the checkpoint now; when the disk refuses, retry later."""
        try:
            self.checkpoints.step()
        except OSError as error:
            self.checkpoints.note_refused(error)

    async def start(self) -> None:
        self._tasks = [
            *self._rounds.start("timers"),
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
        ]

    async def stop(self) -> None:
        """End the loops, at the end of a second; `save` follows once the store has stopped."""
        while self._delivery.has_half_fired(self._slot, self._clock.now_ms()):
            await self._clock.sleep(0.02)
        await cancelled(self._tasks)
        self.end()

    def end(self) -> None:
        """No round follows. Before the store's stop: afterwards its log has no end any more."""
        if self._slot is not None and not self._slot.waiting:
            self._read_second, self._slot = self._slot.second + 1, None
        try:
            self._ended = self._point_now()
        except OSError as error:  # the last checkpoint counts
            self.checkpoints.note_refused(error)

    def save(self) -> None:
        """The final save, after the store's stop: nothing that was delivered is delivered again."""
        self._sync()
        if self._ended is not None and self.checkpoints.save_durable(self._ended):
            self.keeper.save()
        self.close()

    def _sync(self) -> None:
        """Put the files on disk; from any thread."""
        self.keeper.sync()
        self.log.sync()
        self.wheel.sync()

    def close(self) -> None:
        """Close the files without writing."""
        self.log.close()
        self.wheel.close()
        self.checkpoints.close()

    # --- one round

    def step(self, now_ms: int) -> int | None:
        """Set new timers, fire due ones; returns when to run again, None: no timer."""
        if now_ms // 1000 < self._second or now_ms < self._delivery.last[0]:
            self._follow_clock_back(now_ms)
        self._seen = (now_ms, self._clock.monotonic())
        self.wheel.far_from = now_ms // 1000 + REACH_S
        behind = self._second < now_ms // 1000 - _BEHIND_S  # then deliver pending timers first
        running = {} if self._slot is None else {self._slot.second: self._slot}
        live = self._begun | running | self._far.live
        try:
            if self._enqueue.has_more and not behind:
                delivered = self._enqueue.step(now_ms, live, self._read_second)
                self.checkpoints.dirty.set()
                if not delivered:
                    return now_ms + RETRY_MS
            moved = self._far.move_due(now_ms, max(self._second, (now_ms - 1) // 1000), live)
        except OSError:  # a bad sector: timers on the wheel still fire
            for _ in range(_SECONDS_MAX):
                if (due_ms := self._fire(now_ms)) is None or due_ms > now_ms:
                    break
            raise
        due_ms = self._fire(now_ms)
        if moved or self._enqueue.has_more:
            return now_ms
        if not self._far.waits:
            return due_ms
        self.checkpoints.dirty.set()  # the old clock continues
        far_ms = self._far.due_ms(now_ms)
        return far_ms if due_ms is None else min(due_ms, far_ms)

    def _follow_clock_back(self, now_ms: int) -> None:
        """Seconds that were finished run again, for timers that are set from now on."""
        log.warning("the clock was set back: timers follow it", second=self._second, now_ms=now_ms)
        self._passed.ranges.append(Passed(0, self._second, self.log.end))
        if self._slot is not None:
            self._begun[self._slot.second] = self._slot
            self._slot = None
        self._read_second = now_ms // 1000
        self._delivery.last = FIRST_PLACE
        self.wheel.follow_clock_back(now_ms // 1000)
        if self._far.waits:
            seen_ms, seen_at = self._seen
            self._far.note_clock(seen_ms + round((self._clock.monotonic() - seen_at) * 1000))
        self.checkpoints.dirty.set()

    def _fire(self, now_ms: int) -> int | None:
        """Fire the due timers of one second; after a long stop there may be very many seconds."""
        if self._slot is None:
            self.keeper.drop_files(self._read_second)
            now_s = now_ms // 1000
            second = self.wheel.next_second(self._read_second, now_s + 1)
            if second is None or second * 1000 >= now_ms:
                self._read_second = max(self._read_second, now_s)
                following = self.wheel.next_second(self._read_second, SECOND_MAX)
                return None if following is None else following * 1000 + 1
            self._slot = self._take_slot(second)
        last, count = self._delivery.last, self._delivery.count
        more = self._delivery.fire(self._slot, now_ms)
        self._enqueue.pending -= self._delivery.count - count
        if self._delivery.last != last:
            self.checkpoints.dirty.set()
        if more is not None:
            return more
        if now_ms < (self._slot.second + 1) * 1000:
            return (self._slot.second + 1) * 1000  # it may get more until then
        self.wheel.forget(self._slot.second)
        self._read_second = self._slot.second + 1
        self._slot = None
        self.checkpoints.dirty.set()
        return now_ms  # for the next second

    def _note_dropped(self, count: int) -> None:
        self._enqueue.pending -= count

    def _take_slot(self, second: int) -> TimerSlot:
        begun = self._begun.pop(second, None) or self._far.give_up(second)
        if begun is not None:
            return begun
        slot = load_slot(self._store, self.log, self.wheel, second, fired=self._delivery.known)
        slot.log_start = (
            self._delivery.known_from if slot.has_fired else self._store.max_physical_offset
        )
        return slot

    def _put(self, messages: list[Message]) -> list[PutResult]:
        held_up = self.keeper.is_held_up
        return (self._store.put_again if held_up else self._store.put_accepted)(messages)

    # --- progress

    def _point_now(self) -> Reached:
        """How far it has come; what was delivered lies before the log's end."""
        end = self._store.max_physical_offset
        slots = [*self._begun.values(), *self._far.live.values()]
        slots += [] if self._slot is None else [self._slot]
        self._passed.drop_before(self._second)
        starts = [slot.log_start for slot in slots]
        if self._enqueue.log_start is not None:
            starts.append(self._enqueue.log_start)
        over = self._second > self._loaded_second and self._enqueue.has_read(self._loaded_end)
        if self._delivery.known and not over:  # the next start must find them as well
            starts.append(self._delivery.known_from)
        return Reached(
            end,
            min(starts, default=end),
            self._far.clock_ms,
            tuple(self._passed.ranges),
            self._second * 1000,
            self.log.end,
            self._enqueue.queue_offset,
        )
