"""The timer wheel, upstream's `timerwheel`: for each second of two weeks its chain of units.

Slot of 32 bytes at (second mod 1209600): 8 the second, 8 first and 8 last unit's position in the
timer log, 4 count, 4 zero. A slot counts only while it holds the very second. The file is sparse;
it is rebuilt from the timer log at every start, so a torn write in it does no harm. Which seconds
have timers is also in memory, a byte each: the next one is found at the speed of memchr.
"""

import os
from collections.abc import Mapping
from struct import Struct
from typing import Final, NamedTuple

from aerobee.broker.store.system_calls import data_sync

SLOTS: Final = 2 * 7 * 24 * 3600
SLOT: Final = Struct(">qqqii")
SECOND_MAX: Final = 2**62
_EMPTY: Final = -1


class Slot(NamedTuple):
    first: int
    last: int
    number: int


EMPTY_SLOT: Final = Slot(_EMPTY, _EMPTY, 0)


class TimerWheel:
    """Seconds and their chains."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1
        self._marks = bytearray(SLOTS)

    def create(self) -> None:
        """Begin with no timers at all."""
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.ftruncate(self._fd, 0)
        os.ftruncate(self._fd, SLOTS * SLOT.size)
        self._marks = bytearray(SLOTS)

    def get(self, second: int) -> Slot:
        index = second % SLOTS
        if not self._marks[index]:
            return EMPTY_SLOT
        stored, first, last, number, _ = SLOT.unpack(
            os.pread(self._fd, SLOT.size, index * SLOT.size)
        )
        return Slot(first, last, number) if stored == second else EMPTY_SLOT

    def put(self, second: int, slot: Slot) -> None:
        index = second % SLOTS
        os.pwrite(self._fd, SLOT.pack(second, *slot, 0), index * SLOT.size)
        self._marks[index] = 1

    def put_all(self, slots: Mapping[int, Slot]) -> None:
        """All of them or, when the disk refuses one, none; OSError then."""
        before: dict[int, Slot] = {}
        try:
            for second, slot in slots.items():
                before[second] = self.get(second)
                self.put(second, slot)
        except OSError:
            for second, slot in before.items():
                if slot == EMPTY_SLOT:
                    self.forget(second)
                elif self.get(second) != slot:
                    self.put(second, slot)
            raise

    def forget(self, second: int) -> None:
        """The second's timers have had their turn."""
        self._marks[second % SLOTS] = 0

    def next_second(self, start: int, end: int, left_out_from: int = SECOND_MAX) -> int | None:
        """The first second with timers that is before `end`, going round from `start`; without
        those of a later round, which the clock has left behind when it was set back."""
        at = start % SLOTS
        for begin, stop in ((at, SLOTS), (0, at)):
            while (found := self._marks.find(1, begin, stop)) >= 0:
                second = int.from_bytes(os.pread(self._fd, 8, found * SLOT.size), "big")
                if second < left_out_from:
                    return second if second < end else None
                begin = found + 1
        return None

    def sync(self) -> None:
        data_sync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
