"""Timers that were set while the clock was ahead by more than the wheel covers.

Once the clock is corrected they would wait for years. Those with a delay, or with a time farther
ahead than `timerMaxDelaySec` allows, keep using the old clock, which is continued from its last
known time. That is never later than the real one, so no timer is early. The same holds for a start
with a clock that is wrong for a moment (a machine without a battery begins in 1970). A due timer
gets a new unit in the running second, and fires there. Timers with a valid time of day get a new
unit for that time.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from aerobee.broker.base.clock import Clock
from aerobee.broker.services.timers.messages import (
    delay_of,
    deliver_time,
    leg,
    message_of,
    timer_key,
)
from aerobee.broker.services.timers.slot import Place, TimerSlot
from aerobee.broker.services.timers.timer_log import MAGIC_ROLL, TimerLog, Unit
from aerobee.broker.services.timers.wheel import EMPTY_SLOT, REACH_S, Slot, TimerWheel
from aerobee.protocol.files import properties as props
from aerobee.protocol.files.java_hash import tags_code
from aerobee.protocol.files.record import StoredMessage

if TYPE_CHECKING:
    from aerobee.broker.store.message_store import MessageStore

MOVED_MAX: Final = 256  # in one step
REACH_MS: Final = REACH_S * 1000
_SET_BACK_MS: Final = 60_000  # a smaller difference does not count


class FarTimers:
    """Continues the old clock, and moves timers that are due by it."""

    def __init__(
        self,
        store: "MessageStore",
        timer_log: TimerLog,
        wheel: TimerWheel,
        clock: Clock,
        max_delay_ms: int,
        roll_window_ms: Callable[[], int],
        take_slot: Callable[[int], TimerSlot],
        passed: Callable[[int], None],
        dropped: Callable[[int], None],
    ) -> None:
        """`take_slot` returns the timers of a second; `passed` is called when a second is done,
        `dropped` with the number of timers that were recalled or are lost."""
        self._store = store
        self._log = timer_log
        self._wheel = wheel
        self._clock = clock
        self._max_delay_ms = max_delay_ms
        self._roll_window_ms = roll_window_ms
        self._take_slot = take_slot
        self._passed = passed
        self._dropped = dropped
        self._shown_ms = 0  # what the old clock showed ...
        self._shown_at = 0.0  # ... at this moment of the monotonic one
        self._slot: TimerSlot | None = None

    def note_clock(self, shown_ms: int) -> None:
        """Continue the old clock from this time."""
        if shown_ms > self.clock_ms:
            self._shown_ms, self._shown_at = shown_ms, self._clock.monotonic()

    @property
    def clock_ms(self) -> int:
        """The old clock, a lower bound; 0: there is none."""
        if not self._shown_ms:
            return 0
        return self._shown_ms + round((self._clock.monotonic() - self._shown_at) * 1000)

    def noting_ms(self, message: StoredMessage, deliver_ms: int, now_ms: int) -> int:
        """The time base of a timer's unit: now, or the clock that accepted the timer."""
        if not self._goes_by_old_clock(message, deliver_ms, now_ms):
            return now_ms
        self.note_clock(message.store_timestamp)
        return max(now_ms, min(self.clock_ms, deliver_ms - 1))

    def _goes_by_old_clock(self, message: StoredMessage, deliver_ms: int, now_ms: int) -> bool:
        left_ms = deliver_ms - now_ms
        if left_ms <= REACH_MS:
            return False
        delay_ms = delay_of(message.properties)
        if delay_ms is not None:
            return left_ms > delay_ms + _SET_BACK_MS
        return left_ms > self._max_delay_ms and message.store_timestamp > now_ms + REACH_MS

    @property
    def waits(self) -> bool:
        """Whether there are far timers."""
        return bool(self._wheel.far_seconds)

    def due_ms(self, now_ms: int) -> int:
        """When to check for the next one, by the present clock."""
        if self._slot is None:
            first_ms = self._wheel.far_seconds[0] * 1000 + 1
        else:
            place = self._slot.peek()
            first_ms = (self._slot.second + 1) * 1000 if place is None else place[0]
        return now_ms + max(0, first_ms - self.clock_ms)

    @property
    def live(self) -> dict[int, TimerSlot]:
        """The far second that is in memory, to which new timers must be added."""
        return {} if self._slot is None else {self._slot.second: self._slot}

    def give_up(self, second: int) -> TimerSlot | None:
        """The remaining timers of a second that the present clock has reached before the old one
        has finished it; None: it is not in memory."""
        slot = self._slot
        if slot is None or slot.second != second:
            return None
        self._slot = None
        return slot

    def move_due(self, now_ms: int, second: int, live: Mapping[int, TimerSlot]) -> bool:
        """Move some that are due by the old clock to `second`; whether there may be more."""
        wheel = self._wheel
        clock_ms = self.clock_ms
        if self._slot is None:
            first_ms = wheel.far_seconds[0] * 1000 if wheel.far_seconds else clock_ms
            if not now_ms <= first_ms < clock_ms:  # a second that is reached fires anyway
                return False
            self._slot = self._take_slot(wheel.far_seconds[0])
        places = self._due_places(self._slot, clock_ms)
        if places:
            self._note_again(places, self._slot, now_ms, second, live)
        if clock_ms >= (self._slot.second + 1) * 1000 and not self._slot.waiting:
            wheel.forget(self._slot.second)
            self._passed(self._slot.second)
            self._slot = None
        return bool(places) or self._slot is None

    def _due_places(self, slot: TimerSlot, clock_ms: int) -> list[Place]:
        places: list[Place] = []
        while len(places) < MOVED_MAX:
            place = slot.peek()
            if place is None or place[0] > clock_ms:
                break
            places.append(place)
            slot.pop()
        return places

    def _note_again(
        self,
        places: list[Place],
        slot: TimerSlot,
        now_ms: int,
        second: int,
        live: Mapping[int, TimerSlot],
    ) -> None:
        log_end = self._log.end
        slots: dict[int, Slot] = {}
        noted: list[tuple[int, int, int]] = []
        try:
            for place in places:
                unit = self._log.read(place[1])
                message = message_of(self._store, unit) if unit else None
                if unit and message and timer_key(message) not in slot.recalled:
                    noted.append(self._add_unit(unit, message, now_ms, second, slots))
            self._log.write()
            self._wheel.put_all(slots)
        except OSError:  # they are retried: avoid duplicates
            self._log.take_back(log_end)
            for place in places:
                slot.add(*place)
            raise
        for noted_second, due_ms, position in noted:
            if noted_second in live:
                live[noted_second].add(due_ms, position)
        self._dropped(len(places) - len(noted))

    def _add_unit(
        self,
        unit: Unit,
        message: StoredMessage,
        now_ms: int,
        second: int,
        slots: dict[int, Slot],
    ) -> tuple[int, int, int]:
        """Second, time and position of the new unit."""
        magic, due_ms = unit.magic, now_ms
        deliver_ms = deliver_time(message.properties) or now_ms
        if not self._goes_by_old_clock(message, deliver_ms, now_ms):
            roll, due_ms = leg(deliver_ms, now_ms, self._roll_window_ms())
            magic = unit.magic & ~MAGIC_ROLL | roll
            second = max((due_ms - 1) // 1000, second)
        chain = slots.get(second) or self._wheel.get(second)
        position = self._log.add(
            chain.last,
            magic,
            now_ms,
            max(due_ms - 1, second * 1000),
            unit.physical_offset,
            unit.record_size,
            tags_code(props.get(message.properties, props.REAL_TOPIC)),
            due_ms,
        )
        first = position if chain == EMPTY_SLOT else chain.first
        slots[second] = Slot(first, position, chain.number + 1)
        return second, due_ms, position
