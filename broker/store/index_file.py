"""One index file: a hash table on disk from `topic#key` to physical offsets.

      0  8 begin timestamp    8  8 end timestamp   16  8 begin physical offset
     24  8 end physical offset   32  4 used slots   36  4 count (starts at 1: entry 0 is unused)
     40  slots x 4: number of the newest entry, 0 for none
         entries x 20: 4 hash, 8 physical offset, 4 seconds since begin, 4 number of the one before

Entries are added in batches, with numpy: a slot that a batch meets twice is chained inside it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aerobee.broker.store.disk import DiskFile
from aerobee.broker.store.mapped_file import MappedFile

HEADER_SIZE: Final = 40
SLOT_SIZE: Final = 4
ENTRY_SIZE: Final = 20
ALLOCATION_CHUNK: Final = 1024 * 1024
_SAMPLE: Final = 256  # entries looked at to tell whether the number of slots is right
PASSED: Final = 512  # entries of other keys and times between two pauses of a search
SMALL_BATCH: Final = 12

_HEADER: Final = struct.Struct(">qqqqii")
_ENTRY: Final = struct.Struct(">iqii")
_INT: Final = struct.Struct(">i")
_ENTRY_TYPE: Final = np.dtype(
    [("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("prev", ">i4")]
)
_MAX_SECONDS: Final = 0x7FFFFFFF
Numbers = Sequence[int] | NDArray[Any]


def index_file_size(slots: int, entries: int) -> int:
    return HEADER_SIZE + slots * SLOT_SIZE + entries * ENTRY_SIZE


def entries_kept(file: DiskFile, slots: int) -> int | None:
    """How many entries (0 included) a file has that a kill left short while it was cut; None when
    it was not: then it has another number of slots, or its end is lost."""
    start = HEADER_SIZE + slots * SLOT_SIZE
    count, rest = divmod(file.size - start, ENTRY_SIZE)
    if rest or count < 1:
        return None
    _, _, begin_offset, _, _, counted = _HEADER.unpack(file.read(0, HEADER_SIZE))
    looked_at = max(min(count, counted, _SAMPLE), 1)
    entries = np.frombuffer(file.read(start, looked_at * ENTRY_SIZE), _ENTRY_TYPE)
    if any(entries[0].tobytes()):
        return None
    numbers = np.arange(1, looked_at)
    good = (
        (entries["hash"][1:] >= 0)
        & (entries["offset"][1:] >= begin_offset)
        & (entries["prev"][1:] >= 0)
        & (entries["prev"][1:] < numbers)
        & ((entries["hash"][1:] != 0) | (entries["offset"][1:] != 0))
    )
    # A power cut may have torn a few.
    return count if 2 * int(np.count_nonzero(good)) >= len(numbers) else None


class IndexFile:
    __slots__ = (
        "begin_offset",
        "begin_timestamp",
        "count",
        "end_offset",
        "end_timestamp",
        "entries_at",
        "entries_max",
        "file",
        "flushed_count",
        "slots",
        "used_slots",
    )

    def __init__(self, file: MappedFile, slots: int, entries: int) -> None:
        self.file = file
        self.slots = slots
        self.entries_max = entries
        self.entries_at = HEADER_SIZE + slots * SLOT_SIZE
        self.begin_timestamp = self.end_timestamp = 0
        self.begin_offset = self.end_offset = 0
        self.used_slots = 0
        self.count = 1
        self.flushed_count = 0

    @property
    def path(self) -> str:
        return self.file.path

    @property
    def number(self) -> int:
        """Its name, yyyyMMddHHmmssSSS, as a number."""
        return int(os.path.basename(self.path))

    @property
    def room(self) -> int:
        return self.entries_max - self.count

    def load(self) -> None:
        """Read the header; a count that the file cannot have is brought into range."""
        (
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_offset,
            self.end_offset,
            self.used_slots,
            self.count,
        ) = _HEADER.unpack_from(self.file.view, 0)
        self.count = min(max(self.count, 1), self.entries_max)
        self.flushed_count = self.count
        self.file.allocated = 0  # others leave holes in the table of slots

    def begin(self, timestamp_ms: int, physical_offset: int) -> None:
        """Seed a new file with where the one before it ends."""
        self.begin_timestamp = self.end_timestamp = timestamp_ms
        self.begin_offset = self.end_offset = physical_offset

    def prepare(self) -> None:
        """Allocate header and slots; OSError when there is no space."""
        self.file.allocate_to(self.entries_at + ENTRY_SIZE, ALLOCATION_CHUNK)
        self._write_header()

    def _position(self, number: int) -> int:
        return self.entries_at + number * ENTRY_SIZE

    def _write_header(self) -> None:
        self.file.view[:HEADER_SIZE] = self._header()

    def _header(self) -> bytes:
        return _HEADER.pack(
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_offset,
            self.end_offset,
            self.used_slots,
            self.count,
        )

    # -- adding

    def add(self, hashes: Numbers, offsets: Numbers, times: Numbers) -> None:
        """Add entries for which there is room. OSError before anything is written."""
        amount = len(offsets)
        self.file.allocate_to(self._position(self.count + amount), ALLOCATION_CHUNK)
        if self.count == 1:
            self.begin_offset = int(offsets[0])
            self.begin_timestamp = int(times[0])
        if amount <= SMALL_BATCH:
            self._add_one_by_one(hashes, offsets, times)
        else:
            self._add_many(np.asarray(hashes, np.int64), offsets, times)
        self.count += amount
        self.end_offset = int(offsets[-1])
        self.end_timestamp = max(self.end_timestamp, int(times[-1]))
        self._write_header()

    def _add_one_by_one(self, hashes: Numbers, offsets: Numbers, times: Numbers) -> None:
        view = self.file.view
        number = self.count
        begin = self.begin_timestamp
        for key_hash, offset, time_ms in zip(hashes, offsets, times, strict=True):
            slot_at = HEADER_SIZE + key_hash % self.slots * SLOT_SIZE
            (previous,) = _INT.unpack_from(view, slot_at)
            if not 0 < previous < number:
                previous = 0
                self.used_slots += 1
            seconds = min(max((time_ms - begin) // 1000, 0), _MAX_SECONDS) if begin > 0 else 0
            _ENTRY.pack_into(view, self._position(number), key_hash, offset, seconds, previous)
            _INT.pack_into(view, slot_at, number)
            number += 1

    def _add_many(self, hashes: NDArray[Any], offsets: Numbers, times: Numbers) -> None:
        amount = len(hashes)
        slot_values = self._slot_array()
        slots = hashes % self.slots
        numbers = np.arange(self.count, self.count + amount, dtype=np.int64)
        previous = slot_values[slots].astype(np.int64)
        previous[(previous <= 0) | (previous >= self.count)] = 0
        order = np.argsort(slots, kind="stable")
        same = slots[order][1:] == slots[order][:-1]
        self.used_slots += int(np.count_nonzero(previous[order][np.r_[True, ~same]] == 0))
        previous[order[1:][same]] = numbers[order[:-1][same]]
        entries = np.empty(amount, _ENTRY_TYPE)
        entries["hash"] = hashes
        entries["offset"] = offsets
        begin = self.begin_timestamp
        if begin > 0:
            seconds = (np.asarray(times, np.int64) - begin) // 1000
            entries["seconds"] = np.clip(seconds, 0, _MAX_SECONDS)
        else:
            entries["seconds"] = 0
        entries["prev"] = previous
        start = self._position(self.count)
        self.file.view[start : start + amount * ENTRY_SIZE] = entries.tobytes()
        # Of equal slots numpy keeps the last assignment: the newest entry.
        slot_values[slots] = numbers

    def _slot_array(self) -> NDArray[Any]:
        return np.frombuffer(self.file.view, ">i4", self.slots, HEADER_SIZE)

    # -- looking up

    def find(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        """Physical offsets under this hash, newest first, within the time range; None now and
        then while it looks for the next."""
        view = self.file.view
        (number,) = _INT.unpack_from(view, HEADER_SIZE + key_hash % self.slots * SLOT_SIZE)
        above = self.count
        passed = 0
        while 0 < number < above:  # a chain only goes down: damage cannot make it endless
            found, offset, seconds, previous = _ENTRY.unpack_from(view, self._position(number))
            time_ms = self.begin_timestamp + seconds * 1000
            # The stored seconds are rounded down.
            if found == key_hash and begin_ms <= time_ms + 999 and time_ms <= end_ms:
                yield offset
            else:
                passed += 1
                if passed % PASSED == 0:
                    yield None
            above, number = number, previous

    # -- keeping

    def count_below(self, physical_offset: int, count: int) -> int:
        """How many of the first `count` entries (0 included) are of records below this offset.

        An earlier recovery may have cut the file and lost power before the checkpoint said so:
        entries end where they are empty, too, or torn, so that their offsets do not rise.
        """
        count = min(max(count, 1), self.entries_max)
        entries = np.frombuffer(self.file.view, _ENTRY_TYPE, count - 1, self._position(1))
        empty = (entries["hash"] == 0) & (entries["offset"] == 0)
        torn = np.zeros(count - 1, bool)
        torn[1:] = entries["offset"][1:] < entries["offset"][:-1]
        beyond = np.flatnonzero(empty | torn | (entries["offset"] >= physical_offset))
        return 1 + int(beyond[0]) if beyond.size else count

    def cut(self, count: int) -> None:
        """Keep entries 1..count-1 and build the slots anew from them; the rest becomes zeros.
        Header and slots are written first and together: a kill before the rest is gone leaves a
        file that agrees with itself."""
        self.file.allocate_to(self._position(count), ALLOCATION_CHUNK)
        kept = np.frombuffer(self.file.view, _ENTRY_TYPE, count - 1, self._position(1))
        slot_values = np.zeros(self.slots, ">i4")
        if count > 1:
            slot_values[kept["hash"].astype(np.int64) % self.slots] = np.arange(1, count)
            self.end_offset = int(kept["offset"][-1])
            self.end_timestamp = self.begin_timestamp + int(kept["seconds"][-1]) * 1000
        self.used_slots = int(np.count_nonzero(slot_values))
        self.count = count
        self.flushed_count = 0
        self.file.file.write(0, self._header() + slot_values.tobytes())
        self.file.cut(self._position(count))
