"""One index file: a hash table on disk from `topic#key` to physical offsets.

Entries are added in batches, with numpy: two entries of a batch in one slot are chained.

Nothing is accessed through a map: a lost device is then an error, not a SIGBUS. Entries and header
are written with each batch. The slots of the newest file are kept in memory, and those that changed
are written before a sync: they follow from the entries, so a start after a crash rebuilds them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aerobee.broker.compiled import hot
from aerobee.broker.store.files.disk import DiskFile
from aerobee.broker.store.files.mapped_file import MappedFile
from aerobee.protocol.files.index_columns import INDEX_ENTRY_TYPE, SLOT_TYPE
from aerobee.protocol.files.index_layout import (
    HEADER,
    HEADER_SIZE,
    INDEX_ENTRY,
    INDEX_ENTRY_SIZE,
    SECONDS_MAX,
    SLOT,
    SLOT_SIZE,
    index_file_size,
)

ALLOCATION_CHUNK: Final = 1024 * 1024
_SAMPLE: Final = 256  # entries checked to tell whether the number of slots is right
PASSED: Final = 512  # entries of other keys and times that a search skips before it yields
SMALL_BATCH: Final = 12
SLOTS_PER_PIECE: Final = 1024  # a page: the unit in which changed slots are written
ENTRIES_PER_PIECE: Final = 50_000

Numbers = Sequence[int] | NDArray[Any]


def entries_kept(file: DiskFile, slots: int, entries_max: int) -> int | None:
    """How many entries (0 included) a file has that is short because of a kill during a cut. None:
    it is short for another reason: another number of slots, or its end is lost."""
    start = index_file_size(slots, 0)
    count, rest = divmod(file.size - start, INDEX_ENTRY_SIZE)
    if rest or count < 1:
        return None
    begin_offset = HEADER.unpack(file.read(0, HEADER_SIZE))[2]
    if any(file.read(start, INDEX_ENTRY_SIZE)):
        return None
    seen = good = 0
    for first in range(1, count, ENTRIES_PER_PIECE):
        length = min(ENTRIES_PER_PIECE, count - first) * INDEX_ENTRY_SIZE
        data = file.read(start + first * INDEX_ENTRY_SIZE, length)
        entries = np.frombuffer(data, INDEX_ENTRY_TYPE)
        # Empty ones prove nothing: a power cut may have lost what was written to them.
        numbers = np.flatnonzero((entries["hash"] != 0) | (entries["offset"] != 0))
        numbers = numbers[: _SAMPLE - seen]
        found = entries[numbers]
        seen += len(found)
        good += int(
            np.count_nonzero(
                (found["hash"] >= 0)
                & (found["offset"] >= begin_offset)
                & (found["prev"] >= 0)
                & (found["prev"] < first + numbers)
            )
        )
        if seen == _SAMPLE:
            break
    if not seen:  # with another number of slots, these would have its entries among them
        table = np.frombuffer(file.read(HEADER_SIZE, slots * SLOT_SIZE), SLOT_TYPE)
        return count if np.all((table >= 0) & (table < entries_max)) else None
    return count if 2 * good >= seen else None  # a power cut may have torn a few


class IndexFile:
    __slots__ = (
        "_changed",
        "_table",
        "begin_offset",
        "begin_timestamp",
        "compiled",
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
        self.compiled: Any = hot
        self.slots = slots
        self.entries_max = entries
        self.entries_at = index_file_size(slots, 0)
        self.begin_timestamp = self.end_timestamp = 0
        self.begin_offset = self.end_offset = 0
        self.used_slots = 0
        self.count = 1
        self.flushed_count = 0
        self._table: NDArray[Any] | None = None  # the slots, once the file grows
        self._changed = np.zeros(-(-slots // SLOTS_PER_PIECE), bool)  # pieces of it to write

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
        """Read the header; an impossible count is clamped."""
        (
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_offset,
            self.end_offset,
            self.used_slots,
            self.count,
        ) = HEADER.unpack(self.file.read(0, HEADER_SIZE))
        self.count = min(max(self.count, 1), self.entries_max)
        self.flushed_count = self.count
        self.file.allocated = 0  # RocketMQ leaves holes in the slot table

    def load_table(self) -> None:
        """Load the slots, because the file is going to grow."""
        data = bytearray(self.file.read(HEADER_SIZE, self.slots * SLOT_SIZE))
        self._table = np.frombuffer(data, SLOT_TYPE)

    def drop_table(self) -> None:
        """The file is full, and its slots are on disk."""
        if not self._changed.any():
            self._table = None

    def begin(self, timestamp_ms: int, physical_offset: int) -> None:
        """Start a new file with the end of the one before it."""
        self.begin_timestamp = self.end_timestamp = timestamp_ms
        self.begin_offset = self.end_offset = physical_offset

    def prepare(self) -> None:
        """Allocate header and slots of a new file; OSError when there is no space."""
        self.file.allocate_to(self.entries_at + INDEX_ENTRY_SIZE, ALLOCATION_CHUNK)
        self._table = np.zeros(self.slots, SLOT_TYPE)
        self._write_header()

    def _position(self, number: int) -> int:
        return self.entries_at + number * INDEX_ENTRY_SIZE

    def _write_header(self) -> None:
        self.file.write(0, self._header())

    def _header(self) -> bytes:
        return HEADER.pack(
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_offset,
            self.end_offset,
            self.used_slots,
            self.count,
        )

    # -- adding

    def add(self, hashes: Numbers, offsets: Numbers, times: Numbers) -> None:
        """Add entries; there must be room for them. OSError when the disk refuses: none is
        added."""
        amount = len(offsets)
        self.file.allocate_to(self._position(self.count + amount), ALLOCATION_CHUNK)
        if self._table is None:
            self.load_table()
        before = self.begin_offset, self.begin_timestamp, self.used_slots
        if self.count == 1:
            self.begin_offset = int(offsets[0])
            self.begin_timestamp = int(times[0])
        try:
            if self.compiled is not None:
                self._add_compiled(hashes, offsets, times)
            elif amount <= SMALL_BATCH:
                self._add_one_by_one(hashes, offsets, times)
            else:
                self._add_many(np.asarray(hashes, np.int64), offsets, times)
        except OSError:
            self.begin_offset, self.begin_timestamp, self.used_slots = before
            raise
        self.count += amount
        self.end_offset = int(offsets[-1])
        self.end_timestamp = max(self.end_timestamp, int(times[-1]))
        with suppress(OSError):  # it is written again before a sync
            self._write_header()

    def _add_compiled(self, hashes: Numbers, offsets: Numbers, times: Numbers) -> None:
        columns = [np.ascontiguousarray(each, np.int64) for each in (hashes, offsets, times)]
        table, slots, number = self._table, self.slots, self.count
        entries, used = self.compiled.index_entries(
            table, slots, number, self.begin_timestamp, *columns
        )
        self.file.write(self._position(number), entries)
        self.used_slots += used
        self.compiled.index_slots(table, self._changed, slots, SLOTS_PER_PIECE, number, columns[0])

    def _add_one_by_one(self, hashes: Numbers, offsets: Numbers, times: Numbers) -> None:
        table = self._table
        assert table is not None
        number = self.count
        begin = self.begin_timestamp
        entries: list[bytes] = []
        newest: dict[int, int] = {}  # by slot, of this batch
        for key_hash, offset, time_ms in zip(hashes, offsets, times, strict=True):
            slot = key_hash % self.slots
            previous = newest.get(slot) or int(table[slot])
            if not 0 < previous < number:
                previous = 0
                self.used_slots += 1
            seconds = min(max((time_ms - begin) // 1000, 0), SECONDS_MAX) if begin > 0 else 0
            entries.append(INDEX_ENTRY.pack(key_hash, offset, seconds, previous))
            newest[slot] = number
            number += 1
        self.file.write(self._position(self.count), b"".join(entries))
        for slot, number in newest.items():
            table[slot] = number
            self._changed[slot // SLOTS_PER_PIECE] = True

    def _add_many(self, hashes: NDArray[Any], offsets: Numbers, times: Numbers) -> None:
        amount = len(hashes)
        table = self._table
        assert table is not None
        slots = hashes % self.slots
        numbers = np.arange(self.count, self.count + amount, dtype=np.int64)
        previous = table[slots].astype(np.int64)
        previous[(previous <= 0) | (previous >= self.count)] = 0
        order = np.argsort(slots, kind="stable")
        same = slots[order][1:] == slots[order][:-1]
        self.used_slots += int(np.count_nonzero(previous[order][np.r_[True, ~same]] == 0))
        previous[order[1:][same]] = numbers[order[:-1][same]]
        entries = np.empty(amount, INDEX_ENTRY_TYPE)
        entries["hash"] = hashes
        entries["offset"] = offsets
        begin = self.begin_timestamp
        if begin > 0:
            seconds = (np.asarray(times, np.int64) - begin) // 1000
            entries["seconds"] = np.clip(seconds, 0, SECONDS_MAX)
        else:
            entries["seconds"] = 0
        entries["prev"] = previous
        self.file.write(self._position(self.count), entries.tobytes())
        # Of equal slots numpy keeps the last assignment: the newest entry.
        table[slots] = numbers
        self._changed[slots // SLOTS_PER_PIECE] = True

    def write_slots(self) -> None:
        """Write header and changed slots before a sync; called in the sync thread. OSError when the
        disk refuses: they remain marked as changed."""
        self._write_header()
        table = self._table
        if table is None:
            return
        pieces = np.flatnonzero(self._changed)
        self._changed[pieces] = False  # first: later changes are written by the next call
        try:
            for run in np.split(pieces, np.flatnonzero(np.diff(pieces) != 1) + 1):
                if run.size:
                    first = int(run[0]) * SLOTS_PER_PIECE
                    values = table[first : (int(run[-1]) + 1) * SLOTS_PER_PIECE]
                    self.file.write(HEADER_SIZE + first * SLOT_SIZE, values.tobytes())
        except OSError:
            self._changed[pieces] = True
            raise

    # -- looking up

    def _newest_of(self, slot: int) -> int:
        if self._table is not None:
            return int(self._table[slot])
        (number,) = SLOT.unpack(self.file.read(HEADER_SIZE + slot * SLOT_SIZE, SLOT_SIZE))
        return int(number)

    def find(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        """Physical offsets under this hash, newest first, within the time range; yields None now
        and then while it searches. OSError when the disk fails."""
        read = self.file.read
        number = self._newest_of(key_hash % self.slots)
        above = self.count
        passed = 0
        while 0 < number < above:  # chains only descend: damage cannot make a cycle
            found, offset, seconds, previous = INDEX_ENTRY.unpack(
                read(self._position(number), INDEX_ENTRY_SIZE)
            )
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

        An earlier recovery may have cut the file and lost power before the checkpoint was written,
        so entries also end where they are empty, or torn: where offsets do not rise.
        """
        count = min(max(count, 1), self.entries_max)
        before = 0
        for number, entries in self._entries(count):
            empty = (entries["hash"] == 0) & (entries["offset"] == 0)
            torn = entries["offset"] < np.r_[before, entries["offset"][:-1]]
            beyond = np.flatnonzero(empty | torn | (entries["offset"] >= physical_offset))
            if beyond.size:
                return number + int(beyond[0])
            before = int(entries["offset"][-1])
        return count

    def _entries(self, count: int) -> Iterator[tuple[int, NDArray[Any]]]:
        """Entries 1..count-1 in pieces, each with the number of its first entry."""
        for number in range(1, count, ENTRIES_PER_PIECE):
            length = min(ENTRIES_PER_PIECE, count - number) * INDEX_ENTRY_SIZE
            yield (
                number,
                np.frombuffer(self.file.read(self._position(number), length), INDEX_ENTRY_TYPE),
            )

    def cut(self, count: int) -> None:
        """Keep entries 1..count-1 and rebuild the slots from them; the rest becomes zeros. Header
        and slots are written first and together, so a kill in between leaves a consistent file."""
        self.file.allocate_to(self._position(count), ALLOCATION_CHUNK)
        table = np.zeros(self.slots, SLOT_TYPE)
        for number, kept in self._entries(count):
            slots = kept["hash"].astype(np.int64) % self.slots
            table[slots] = np.arange(number, number + len(kept))
            self.end_offset = int(kept["offset"][-1])
            self.end_timestamp = self.begin_timestamp + int(kept["seconds"][-1]) * 1000
        self.used_slots = int(np.count_nonzero(table))
        self._table = table
        self._changed[:] = True
        self.count = count
        self.flushed_count = 0
        self.file.write(0, self._header() + table.tobytes())
        self._changed[:] = False
        self.file.cut(self._position(count))
