"""When the messages of one delay level are due, also if the clock was set.

A level's queue is in the order of acceptance and all its messages wait equally long, so its deliver
times only grow, unless the clock is set back. Then:

- A message is due no later than those after it, which were accepted later: a message of a clock
  that was ahead does not hold up the others.
- Messages whose store time is in the future keep the clock that accepted them, as
  far as it is known: it is taken to run on from the newest of them. They come when the time of day
  reaches their deliver time or when they have waited their level's time, whichever is first, and
  never early.
"""

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from aerobee.broker.base.clock import Clock
from aerobee.protocol.files.queue_entry import BLANK_ENTRY_SIZE, ENTRY_SIZE
from aerobee.protocol.files.queue_entry_columns import ENTRY_TYPE

if TYPE_CHECKING:
    from aerobee.broker.store.queues.consume_queue import ConsumeQueue

READ_MAX: Final = 100_000  # entries checked in one go


class _OldClock(NamedTuple):
    """A former clock that accepted messages, before it was set back."""

    end: int  # entries before this queue offset, behind those of the clock before, go by it ...
    deliver_from: int  # ... if their deliver times are later than this
    shown_ms: int  # what it showed ...
    shown_at: float  # ... at this moment of the monotonic clock


class LevelTimes:
    """Follows the deliver times of one level's queue."""

    def __init__(self, clock: Clock, delay_ms: int | None) -> None:
        self._clock = clock
        self._delay_ms = delay_ms  # None: the setting does not name the level any more
        self._seen = 0  # entries before this queue offset have been checked
        self._last_ms = 0  # the deliver time of the newest of them
        self._drops: list[tuple[int, int]] = []  # where a deliver time is before its predecessor's
        self._old_clocks: list[_OldClock] = []  # in the order of their entries

    def follow(self, queue: "ConsumeQueue", next_offset: int, now_ms: int) -> bool:
        """Check new entries; False if there are more than one call may check."""
        if self._seen < next_offset:
            self._seen, self._last_ms = next_offset, 0
        end = queue.max_offset
        if self._seen < end:
            self._read(queue)
        if self._drops and self._drops[0][0] <= next_offset:
            self._drops = [drop for drop in self._drops if drop[0] > next_offset]
        while self._old_clocks and self._old_clocks[0].end <= next_offset:
            del self._old_clocks[0]
        if self._delay_ms is not None and self._last_ms - self._delay_ms > now_ms:
            self._note_set_back(now_ms, self._delay_ms)
        return self._seen >= end

    def _note_set_back(self, now_ms: int, delay_ms: int) -> None:
        if not self._old_clocks or self._old_clocks[-1].end < self._seen:
            shown_ms = self._last_ms - delay_ms
            at = self._clock.monotonic()
            self._old_clocks.append(_OldClock(self._seen, now_ms + delay_ms, shown_ms, at))

    def _read(self, queue: "ConsumeQueue") -> None:
        data = queue.entries(self._seen, READ_MAX)
        entries = np.frombuffer(data, ENTRY_TYPE, len(data) // ENTRY_SIZE)
        real = np.flatnonzero(entries["size"] != BLANK_ENTRY_SIZE)
        times = entries["code"][real].astype(np.int64)
        if queue.ext is not None:
            times = np.array([queue.real_tags_code(code) for code in times.tolist()], np.int64)
        before = np.concatenate(([self._last_ms], times[:-1]))
        for index in np.flatnonzero(times < before).tolist():
            while self._drops and self._drops[-1][1] >= times[index]:
                self._drops.pop()
            self._drops.append((self._seen + int(real[index]), int(times[index])))
        if len(times):
            self._last_ms = int(times[-1])
        # Nothing readable where the queue says there is: do not look there for ever.
        self._seen = self._seen + len(entries) if len(entries) else queue.max_offset

    def due_ms(self, queue_offset: int, deliver_ms: int, now_ms: int) -> int:
        """When an entry is due, in the time of day of now."""
        due_ms = self._due_alone(queue_offset, deliver_ms, now_ms)
        for drop_offset, drop_ms in self._drops:
            if drop_offset > queue_offset:
                due_ms = min(due_ms, self._due_alone(drop_offset, drop_ms, now_ms))
        return due_ms

    def _due_alone(self, queue_offset: int, deliver_ms: int, now_ms: int) -> int:
        """The same, regardless of the messages after it."""
        for clock in self._old_clocks:
            if queue_offset < clock.end:
                if deliver_ms <= clock.deliver_from:
                    break
                passed_ms = round((self._clock.monotonic() - clock.shown_at) * 1000)
                return deliver_ms - max(0, clock.shown_ms + passed_ms - now_ms)
        return deliver_ms
