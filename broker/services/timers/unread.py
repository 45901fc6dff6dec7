"""Due timers whose messages cannot be read from disk, for example on a bad sector.

Each gets a new unit of the timer log in a later second, so that it survives a restart; the other
timers are not affected. It fires late, once its message can be read, and is never dropped. The
recalls of its second move with it, as one of them may be for this timer.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog

from aerobee.broker.base.reports import Reports
from aerobee.broker.services.timers.slot import TimerSlot
from aerobee.broker.services.timers.timer_log import TimerLog, Unit
from aerobee.broker.services.timers.wheel import EMPTY_SLOT, Slot, TimerWheel

log = structlog.get_logger("aerobee.timers")

RETRY_MIN_MS: Final = 1000
RETRY_MAX_MS: Final = 60_000


class UnreadTimers:
    """Defers them, each time for twice as long, up to a minute."""

    def __init__(
        self,
        timer_log: TimerLog,
        wheel: TimerWheel,
        reports: Reports,
        live: Callable[[], Mapping[int, TimerSlot]],
    ) -> None:
        """`live`: the seconds in memory, to which new timers must be added."""
        self._log = timer_log
        self._wheel = wheel
        self._reports = reports
        self._live = live
        self._waits_ms: dict[int, int] = {}  # by the offsets of their records

    @property
    def count(self) -> int:
        return len(self._waits_ms)

    def note_read(self, physical_offset: int) -> None:
        """A message was read; it may have been unreadable before."""
        if self._waits_ms and self._waits_ms.pop(physical_offset, None) is not None:
            log.info("a timer's message can be read again", offset=physical_offset)

    def note_again(
        self, units: Sequence[Unit], slot: TimerSlot, error: OSError, now_ms: int
    ) -> None:
        """Defer these, and copy the recalls of their slot. OSError if the units cannot be written:
        nothing has changed then."""
        log_end = self._log.end
        waits_ms = {unit.physical_offset: self._next_wait(unit) for unit in units}
        slots: dict[int, Slot] = {}
        noted: list[tuple[int, int, int]] = []
        recalls: list[tuple[int, int]] = []
        try:
            for unit in units:
                due_ms = now_ms + waits_ms[unit.physical_offset]
                if slot.unread is not None:
                    due_ms = self._alone_ms(due_ms)
                position = self._add(unit, due_ms, now_ms, slots)
                noted.append(((due_ms - 1) // 1000, due_ms, position))
            for second in list(slots) if slot.recalls else ():
                for unit in filter(None, map(self._log.read, slot.recalls)):
                    recalls.append((second, self._add(unit, second * 1000 + 1, now_ms, slots)))
            self._log.write()
            self._wheel.put_all(slots)
        except OSError:
            self._log.take_back(log_end)
            raise
        self._waits_ms |= waits_ms
        live = self._live()
        for second, due_ms, position in noted:
            if second in live:
                live[second].add(due_ms, position)
        for second, position in recalls:
            if second in live:
                live[second].recalls.append(position)
                live[second].recalled |= slot.recalled
                live[second].unread = live[second].unread or slot.unread
        self._reports.disk_error(
            "a timer is due and its message cannot be read",
            error,
            call="read",
            then="retried within a minute; the other timers continue",
            timers=len(self._waits_ms),
        )

    def _next_wait(self, unit: Unit) -> int:
        waited_ms = self._waits_ms.get(unit.physical_offset, 0)
        return min(max(RETRY_MIN_MS, 2 * waited_ms), RETRY_MAX_MS)

    def _alone_ms(self, due_ms: int) -> int:
        """A time in a second without timers: they would have to wait for the recall as well."""
        live = self._live()
        for alone_ms in range(due_ms, due_ms + RETRY_MAX_MS, 1000):
            second = (alone_ms - 1) // 1000
            if second not in live and self._wheel.get(second) == EMPTY_SLOT:
                return alone_ms
        return due_ms

    def _add(self, unit: Unit, due_ms: int, now_ms: int, slots: dict[int, Slot]) -> int:
        second = (due_ms - 1) // 1000
        chain = slots.get(second) or self._wheel.get(second)
        position = self._log.add(
            chain.last,
            unit.magic,
            now_ms,
            due_ms - 1,
            unit.physical_offset,
            unit.record_size,
            0,
            due_ms,
        )
        first = position if chain == EMPTY_SLOT else chain.first
        slots[second] = Slot(first, position, chain.number + 1)
        return position
