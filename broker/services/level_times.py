"""When the messages of one delay level are due, whatever was done to the clock.

A level's queue is in the order of acceptance and all its messages wait equally long, so its deliver
times only grow, unless the clock is set back. Then:

- A message is due no later than any behind it, which was accepted later: no message of a clock
  that was ahead keeps the others back.
- Messages that seem to have been accepted in the future go on by the clock that accepted them, as
  far as it is known: it is taken to run on from the newest of them. They come when the time of day
  reaches their deliver time or when they have waited their level's time, whichever is first, and
  never early.
"""

from typing import TYPE_CHECKING, Final

import numpy as np

from aerobee.broker.clock import Clock
from aerobee.broker.store.consume_queue import BLANK_ENTRY_SIZE, ENTRY_SIZE
from aerobee.broker.store.dispatch_block import ENTRY_TYPE

if TYPE_CHECKING:
    from aerobee.broker.store.consume_queue import ConsumeQueue

READ_MAX: Final = 100_000  # entries looked at in one go


class LevelTimes:
    """Follows the deliver times of one level's queue."""

    def __init__(self, clock: Clock, delay_ms: int | None) -> None:
        self._clock = clock
        self._delay_ms = delay_ms  # None: the setting does not name the level any more
        self._seen = 0  # entries before this queue offset have been looked at
        self._last_ms = 0  # the deliver time of the newest of them
        self._drops: list[tuple[int, int]] = []  # where a deliver time is before its predecessor's
        self._old_end = 0  # entries before this queue offset go by the old clock ...
        self._old_from = 0  # ... if their deliver times are later than this
        self._old_ms = 0  # what that clock showed ...
        self._old_at = 0.0  # ... at this moment of the monotonic one

    def follow(self, queue: "ConsumeQueue", next_offset: int, now_ms: int) -> bool:
        """Look at entries that have come; False when there are more than fit one go."""
        if self._seen < next_offset:
            self._seen, self._last_ms = next_offset, 0
        end = queue.max_offset
        if self._seen < end:
            self._read(queue)
        if self._drops and self._drops[0][0] <= next_offset:
            self._drops = [drop for drop in self._drops if drop[0] > next_offset]
        if self._delay_ms is not None and self._last_ms - self._delay_ms > now_ms:
            self._note_set_back(self._last_ms - self._delay_ms, now_ms, self._delay_ms)
        return self._seen >= end

    def _note_set_back(self, accepted_ms: int, now_ms: int, delay_ms: int) -> None:
        old_ms = self._old_clock_ms()
        if accepted_ms > old_ms:
            from_ms = now_ms + delay_ms
            self._old_from = min(from_ms, self._old_from) if old_ms > now_ms else from_ms
            self._old_ms, self._old_at = accepted_ms, self._clock.monotonic()
        self._old_end = self._seen

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
        """The same without regard to those behind it."""
        if queue_offset >= self._old_end or deliver_ms <= self._old_from:
            return deliver_ms
        return deliver_ms - max(0, self._old_clock_ms() - now_ms)

    def _old_clock_ms(self) -> int:
        if not self._old_end:
            return 0
        return self._old_ms + round((self._clock.monotonic() - self._old_at) * 1000)
