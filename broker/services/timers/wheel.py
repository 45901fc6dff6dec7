"""The timer wheel, upstream's `timerwheel`: for each second of two weeks its chain of units.

Slot of 32 bytes at (second mod 1209600): 8 the second, 8 first and 8 last unit's position in the
timer log, 4 count, 4 zero. A slot is valid only for the second stored in it. The file is sparse;
it is rebuilt from the timer log at every start, so a torn write in it does no harm. Which seconds
have timers is also in memory, a byte each: the next one is found at the speed of memchr. Blocks are
allocated before they are written; a slot that the disk refuses stays in memory until a sync can
write it.
"""

import threading
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from itertools import pairwise
from struct import Struct
from typing import Final, NamedTuple

import numpy as np

from aerobee.broker.base.reports import Reports
from aerobee.broker.store.errors import is_no_space
from aerobee.broker.store.files.disk import Disk, DiskFile

SLOTS: Final = 2 * 7 * 24 * 3600
SLOT: Final = Struct(">qqqii")
_SLOT_TYPE: Final = np.dtype(
    [("second", ">i8"), ("first", ">i8"), ("last", ">i8"), ("number", ">i4"), ("zero", ">i4")]
)
REACH_S: Final = SLOTS - 24 * 3600  # leaves a day for overdue timers
SECOND_MAX: Final = 2**62
_EMPTY: Final = -1
_BLOCK: Final = 1 << 12


class Slot(NamedTuple):
    first: int
    last: int
    number: int


EMPTY_SLOT: Final = Slot(_EMPTY, _EMPTY, 0)


class TimerWheel:
    """Seconds and their chains."""

    _file: DiskFile  # from `create` on

    def __init__(self, path: str, disk: Disk, reports: Reports | None = None) -> None:
        self._path = path
        self._reports = reports
        self._disk = disk
        self._marks = bytearray(SLOTS)
        self._allocated: set[int] = set()  # numbers of blocks
        self._unwritten: dict[int, bytes] = {}  # by index: slots that could not be written
        self._writing = threading.Lock()  # `sync` writes them in a thread
        self._far: dict[int, Slot] = {}
        self.far_seconds: list[int] = []  # in order
        self.far_from = SECOND_MAX  # the first second that the wheel does not reach

    def create(self) -> None:
        """Create an empty wheel."""
        if self._disk.exists(self._path):
            self._file = self._disk.open(self._path)
            self._file.truncate(0)
            self._file.extend(SLOTS * SLOT.size)
        else:
            self._file = self._disk.create(self._path, SLOTS * SLOT.size)
        self._marks = bytearray(SLOTS)
        self._allocated.clear()
        self._unwritten.clear()

    def get(self, second: int) -> Slot:
        if second in self._far:
            return self._far[second]
        index = second % SLOTS
        if not self._marks[index]:
            return EMPTY_SLOT
        stored, first, last, number, _ = SLOT.unpack(self._read(index))
        return Slot(first, last, number) if stored == second else EMPTY_SLOT

    def put(self, second: int, slot: Slot) -> None:
        if second >= self.far_from or second in self._far:
            if second not in self._far:
                insort(self.far_seconds, second)
            self._far[second] = slot
            return
        index = second % SLOTS
        content = SLOT.pack(second, *slot, 0)
        try:
            with self._writing:
                self._unwritten.pop(index, None)
                self._write(index, content)
        except OSError as error:
            if not is_no_space(error):
                raise
            with self._writing:
                self._unwritten[index] = content
            if self._reports is not None:
                self._reports.disk_error(
                    "a slot of the timer wheel could not be written",
                    error,
                    call="write",
                    path=self._path,
                    then="it is kept in memory and written once there is room",
                )
        self._marks[index] = 1

    def _read(self, index: int) -> bytes:
        return self._unwritten.get(index) or self._file.read(index * SLOT.size, SLOT.size)

    def _write(self, index: int, content: bytes) -> None:
        position = index * SLOT.size
        block = position // _BLOCK
        if block not in self._allocated:
            begin = block * _BLOCK
            self._file.allocate(begin, min(_BLOCK, self._file.size - begin))
            self._allocated.add(block)
        self._file.write(position, content)

    def put_all(self, slots: Mapping[int, Slot]) -> None:
        """Put all of them, or none: OSError if one cannot be written."""
        before: dict[int, Slot] = {}
        try:
            for second, slot in slots.items():
                before[second] = self.get(second)
                self.put(second, slot)
        except OSError:
            for second, slot in before.items():
                if slot == EMPTY_SLOT:
                    self.forget(second)
                elif second in self._far:
                    self._far[second] = slot
                else:  # in memory: this disk has just refused a write
                    with self._writing:
                        self._unwritten[second % SLOTS] = SLOT.pack(second, *slot, 0)
            raise

    def forget(self, second: int) -> None:
        """The second is done."""
        if second in self._far:
            del self._far[second]
            self.far_seconds.remove(second)
        else:
            self._marks[second % SLOTS] = 0

    def follow_clock_back(self, now_s: int) -> None:
        """Remove the seconds that are now beyond its range."""
        self.far_from = now_s + REACH_S
        data = self._file.read(0, SLOTS * SLOT.size)
        seconds = np.frombuffer(data, ">i8")[:: SLOT.size // 8]
        far = (seconds >= self.far_from) & (np.frombuffer(self._marks, np.uint8) != 0)
        for index in {*np.flatnonzero(far).tolist(), *self._unwritten}:
            second, first, last, number, _ = SLOT.unpack(self._read(index))
            if not self._marks[index] or second < self.far_from:
                continue
            self._marks[index] = 0
            self.put(second, Slot(first, last, number))

    def next_second(self, start: int, end: int) -> int | None:
        """The first second with timers that is before `end`, going round from `start`."""
        found = self._next_in_wheel(start)
        far = bisect_left(self.far_seconds, start)
        if far < len(self.far_seconds):
            second = self.far_seconds[far]
            found = second if found is None else min(found, second)
        return found if found is not None and found < end else None

    def _next_in_wheel(self, start: int) -> int | None:
        at = start % SLOTS
        for begin, stop in ((at, SLOTS), (0, at)):
            found = self._marks.find(1, begin, stop)
            if found >= 0:
                return int.from_bytes(self._read(found)[:8], "big")
        return None

    def counts(self, start: int, bounds: Sequence[int]) -> list[int]:
        """How many timers are due from each bound, in seconds from `start`, to the next one: the
        first counts from 0. Not of those beyond the wheel. From any thread."""
        found = []
        for low, high in pairwise((0, *bounds)):
            begin, end = start + low, start + high
            at, stop = begin % SLOTS, end % SLOTS
            spans = [(at, stop)] if at < stop else [(at, SLOTS), (0, stop)]
            found.append(sum(self._count(begin, end, *span) for span in spans))
        return found

    def _count(self, begin: int, end: int, at: int, stop: int) -> int:
        data = self._file.read(at * SLOT.size, (stop - at) * SLOT.size)
        slots = np.frombuffer(data, _SLOT_TYPE)
        marks = np.frombuffer(bytes(self._marks[at:stop]), np.uint8)
        wanted = (marks != 0) & (slots["second"] >= begin) & (slots["second"] < end)
        return int(slots["number"][wanted].sum())

    def sync(self) -> None:
        """Put all on disk; OSError while it has no room. From any thread."""
        for index in list(self._unwritten):
            with self._writing:
                content = self._unwritten.get(index)
                if content is not None:  # else a newer slot was written meanwhile
                    self._write(index, content)
                    del self._unwritten[index]
        self._file.sync()

    def close(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()
