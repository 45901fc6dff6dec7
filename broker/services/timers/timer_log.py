"""The timer log, upstream's `timerlog/`: one unit of 52 bytes for each timer that was set.

    0  4 size (52)                12  4 magic               36  4 size of the record
    4  8 previous unit of the     16  8 time of writing     40  4 hash of the real topic
         same second, -1: none    24  4 delay from it, ms   44  8 deliver time (upstream: 0)
                                  28  8 offset of the record

The deliver time has 48 bits; the 16 before it are a sum of the unit (0: none, it is upstream's), by
which a flipped bit is found. It leaves out what `repoint` changes: offset and size of the record,
which have checksums of their own, and the mark of that.

A file ends with a blank unit when less than a unit and a blank fit. Files are written by calls,
never through a map: a full disk is an error then, not the end of the process. Blocks are allocated
ahead of the writing, so that it is an error of the write, not of a later sync.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from struct import Struct
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aerobee.broker.store.files.disk import Disk, DiskFile, make_folder
from aerobee.broker.store.files.layout import offset_name, parse_offset_name
from aerobee.protocol.files.record_layout import BLANK_MAGIC

UNIT: Final = Struct(">iqiqiqiiq")
UNIT_SIZE: Final = UNIT.size
MAGIC_DEFAULT: Final = 1
MAGIC_ROLL: Final = 2  # to be put again, not delivered: it is due later
MAGIC_DELETE: Final = 4  # recalls another timer of the same second
MAGIC_CARRIED: Final = 8  # points to a copy of its original record
MAGIC_NOTED: Final = 12  # no timer: only shows how far the topic's queue was read
NONE: Final = -1

_MAGIC_MASK: Final = 0xF
_BLANK: Final = Struct(">iqi")
_BLOCK: Final = 1 << 12
_RECORD: Final = Struct(">qi")  # offset and size of the record, at byte 28 of a unit
_RECORD_AT: Final = 28
_MAGIC_AT: Final = 15  # its last byte
_CHUNK: Final = 1 << 16  # allocated at once
_SCAN_UNITS: Final = 100_000
_PIECE_UNITS: Final = 20_000  # read in a few milliseconds
_DTYPE: Final = np.dtype(
    [
        ("size", ">i4"),
        ("previous", ">i8"),
        ("magic", ">i4"),
        ("written_ms", ">i8"),
        ("delay_ms", ">i4"),
        ("physical_offset", ">i8"),
        ("record_size", ">i4"),
        ("topic_hash", ">i4"),
        ("deliver_ms", ">i8"),
    ]
)
Units = NDArray[np.void]
_SUM_AT: Final = 48  # bits
_DELIVER_MASK: Final = (1 << _SUM_AT) - 1
_MAGIC_WORD: Final = 7
_SUM_WORD: Final = 22
_WEIGHTS: Final = np.array(
    [
        0 if _RECORD_AT <= 2 * n < _RECORD_AT + _RECORD.size or n == _SUM_WORD else n + 1
        for n in range(26)
    ],
    np.int64,
)
_SUM_MAX: Final = 65_535


def _summed(units: bytes) -> bytearray:
    """The units with their sums; unchanged if a time leaves no room for one."""
    data = bytearray(units)
    words = np.frombuffer(data, ">u2").reshape(-1, UNIT_SIZE // 2)
    own = words[:, _SUM_WORD]
    own[:] = np.where(own == 0, _sums(words.astype(np.int64)), own)
    return data


def _sums(words: NDArray[np.int64]) -> NDArray[np.int64]:
    words = words.copy()
    magic = words[:, _MAGIC_WORD]
    words[:, _MAGIC_WORD] = np.where(magic == MAGIC_NOTED, magic, magic & ~MAGIC_CARRIED)
    return (words @ _WEIGHTS) % _SUM_MAX + 1


def _are_whole(units: Units) -> NDArray[np.bool_]:
    """Which units match their checksums, or have none."""
    words = units.view(">u2").reshape(-1, UNIT_SIZE // 2).astype(np.int64)
    sums = words[:, _SUM_WORD]
    whole: NDArray[np.bool_] = (sums == 0) | (sums == _sums(words))
    return whole


def _sound(each: NDArray[np.bool_]) -> int:
    """How many are true, before the first that is not."""
    return len(each) if each.all() else int(np.argmin(each))


class Unit(NamedTuple):
    """One timer, or one recall of a timer."""

    position: int
    previous: int
    magic: int
    written_ms: int
    slot_ms: int  # in the second under which it is kept
    physical_offset: int
    record_size: int
    deliver_ms: int  # 0: only its record has it, it was written by upstream


class TimerLog:
    """Appends units in batches; reads them by position."""

    def __init__(self, folder: str, file_size: int, disk: Disk) -> None:
        self._folder = folder
        self._file_size = file_size
        self._disk = disk
        self._files: dict[int, DiskFile] = {}  # by their starts, in order
        self._unsynced: set[int] = set()  # starts of files
        self._names_unsynced = False
        self._pending: list[bytes] = []
        self._pending_at = 0
        self._block: tuple[int, bytes] = (NONE, b"")
        self._allocated = 0  # blocks are allocated up to this position
        self._kept: tuple[int, int] = (NONE, 0)  # start of a file, and until which second
        self.end = 0

    # --- files

    def load(self) -> None:
        """Open what is there; `end` is only known after a `scan` and `cut`."""
        names = self._disk.listdir(self._folder)
        starts = sorted(start for name in names if (start := parse_offset_name(name)) is not None)
        self._names_unsynced = bool(names)  # a killed process may have made or removed them
        if not all(self._is_ours(start, is_last=start == starts[-1]) for start in starts):
            # One file is of another size, so all timers are read from the store again. The first
            # file is removed last, so that after a kill the rest begins at the same offset.
            for start in reversed(starts):
                self._disk.unlink(self._path(start))
            starts = []
        for start in starts:
            self._files[start] = self._disk.open(self._path(start))
            self._unsynced.add(start)
            if self._disk.length(self._path(start)) < self._file_size:
                self._files[start].extend(self._file_size)
        self.end = next(iter(self._files), 0)

    def _is_ours(self, start: int, *, is_last: bool) -> bool:
        """Whether a file has the size it should have: not that of another mappedFileSizeTimerLog.
        A kill leaves the last one short while it is made or cut."""
        size = self._disk.length(self._path(start))
        is_short = is_last and size < self._file_size
        return start % self._file_size == 0 and (size == self._file_size or is_short)

    def _path(self, start: int) -> str:
        return os.path.join(self._folder, offset_name(start))

    def _create(self, start: int) -> DiskFile:
        make_folder(self._disk, self._folder)
        file = self._files[start] = self._disk.create(self._path(start), self._file_size)
        self._names_unsynced = True
        return file

    def _remove(self, start: int) -> None:
        with suppress(FileNotFoundError):  # already removed by an operator
            self._disk.unlink(self._path(start))
        self._files.pop(start).close()
        self._names_unsynced = True

    def cut(self, end: int) -> None:
        """Cut the log here: what follows is zeroed or removed."""
        for start in [start for start in self._files if start > end]:
            self._remove(start)
        start = end // self._file_size * self._file_size
        file = self._files.get(start)
        if file is not None:
            file.truncate(end - start)
            file.extend(self._file_size)
        self.end = self._allocated = end
        self._block = (NONE, b"")

    def sync(self) -> None:
        """Put on disk what was written since the last time; from any thread. What is written
        meanwhile is for the next call."""
        for start in list(self._unsynced):
            self._unsynced.discard(start)
            file = self._files.get(start)
            try:
                if file is not None:
                    file.sync()
            except OSError:
                self._unsynced.add(start)
                raise
        if self._names_unsynced:
            self._names_unsynced = False
            try:
                self._disk.syncdir(self._folder)
            except OSError:
                self._names_unsynced = True
                raise

    def drop_before(self, min_physical_offset: int, read_second: int) -> int:
        """Remove files all of whose records are gone from the store, but for those of seconds
        before `read_second`; how many."""
        dropped = 0
        while len(self._files) > 1:
            start, file = next(iter(self._files.items()))
            units = (self._file_size - _BLANK.size) // UNIT_SIZE
            last = file.read((units - 1) * UNIT_SIZE, UNIT_SIZE)
            *_, physical_offset, _size, _topic, _deliver_ms = UNIT.unpack(last)
            if physical_offset >= min_physical_offset:
                break
            if self._needed_until(start, min_physical_offset, read_second) >= read_second:
                break  # its units point to records that were stored again
            self._remove(start)
            dropped += 1
        return dropped

    def _needed_until(self, start: int, min_physical_offset: int, read_second: int) -> int:
        """The last second for which a file is needed; it is read again only when that is over."""
        if self._kept[0] != start or self._kept[1] < read_second:
            seconds = [NONE]
            for _, units in self.pieces(start, start + self._file_size):
                there = units[units["physical_offset"] >= min_physical_offset]
                if len(there):
                    seconds.append(int((there["written_ms"] + there["delay_ms"]).max()) // 1000)
            self._kept = (start, max(seconds))
        return self._kept[1]

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    # --- writing

    def add(
        self,
        previous: int,
        magic: int,
        written_ms: int,
        slot_ms: int,
        physical_offset: int,
        record_size: int,
        topic_hash: int,
        deliver_ms: int,
    ) -> int:
        """Add a unit to the batch for the next `write`; returns its position."""
        position = self._place()
        self._pending.append(
            UNIT.pack(
                UNIT_SIZE,
                previous,
                magic,
                written_ms,
                slot_ms - written_ms,
                physical_offset,
                record_size,
                topic_hash,
                deliver_ms,
            )
        )
        self.end = position + UNIT_SIZE
        return position

    def _place(self) -> int:
        """Where the next unit goes; begins a new file when the last one is full."""
        inside = self.end % self._file_size
        room = self._file_size - inside
        if inside and room < UNIT_SIZE + _BLANK.size:
            self.write()
            start = self.end - inside
            blank = _BLANK.pack(room, 0, BLANK_MAGIC)
            self._write_at(self._files[start], start, inside, blank)
            self.end = start + self._file_size
        if not self._pending:
            self._pending_at = self.end
        return self.end

    def take_back(self, end: int) -> None:
        """Drop the units from `end` on: the next ones overwrite them."""
        self._pending, self.end = [], end

    def write(self) -> None:
        """Write the batch; OSError when the disk refuses, the batch is dropped then."""
        if not self._pending:
            return
        data, self._pending = bytes(_summed(b"".join(self._pending))), []
        start = self._pending_at // self._file_size * self._file_size
        self._block = (NONE, b"")
        try:
            file = self._files.get(start)
            if file is None:
                file = self._create(start)
            self._write_at(file, start, self._pending_at - start, data)
        except OSError:
            self.end = self._pending_at
            raise

    def _write_at(self, file: DiskFile, start: int, inside: int, data: bytes) -> None:
        end = start + inside + len(data)
        if end > self._allocated:
            begin = max(self._allocated, start)
            end = min(-(-end // _CHUNK) * _CHUNK, start + self._file_size)
            file.allocate(begin - start, end - begin)
            self._allocated = end
        self._unsynced.add(start)
        file.write(inside, data)

    def repoint(self, unit: Unit, physical_offset: int, size: int) -> None:
        """Let a unit point to another record; OSError when that fails."""
        start = unit.position // self._file_size * self._file_size
        at = unit.position - start
        self._block = (NONE, b"")
        self._unsynced.add(start)
        self._files[start].write(at + _RECORD_AT, _RECORD.pack(physical_offset, size))
        self._files[start].write(at + _MAGIC_AT, bytes([unit.magic | MAGIC_CARRIED]))

    # --- reading

    @property
    def start(self) -> int:
        """Where the first file begins."""
        return next(iter(self._files), self.end)

    def pieces(self, position: int, end: int | None = None) -> Iterator[tuple[int, Units]]:
        """Position and units of each piece from a position on, to `end` or to the log's."""
        while position < (self.end if end is None else end):
            at = position
            units, position = self.piece(at)
            yield at, units

    def piece(self, position: int) -> tuple[Units, int]:
        """Units from a position on, and where the next piece begins."""
        start = position // self._file_size * self._file_size
        whole = start + (self._file_size - _BLANK.size) // UNIT_SIZE * UNIT_SIZE
        stop = min(whole, self.end, position + _PIECE_UNITS * UNIT_SIZE)
        file = self._files.get(start)
        length = max(0, stop - position)
        data = file.read(position - start, length) if file is not None else b""
        units = np.frombuffer(data, _DTYPE, count=len(data) // UNIT_SIZE)
        ended = stop == whole or not len(units)
        return units, start + self._file_size if ended else position + len(units) * UNIT_SIZE

    def read(self, position: int) -> Unit | None:
        """The unit there; None when its file is gone."""
        block_at, block = self._block
        at = position - block_at
        if not 0 <= at <= len(block) - UNIT_SIZE:
            start = position // self._file_size * self._file_size
            file = self._files.get(start)
            if file is None:
                return None
            # Chains go backwards: the unit wanted is the last of the block.
            block_at = max(start, position + UNIT_SIZE - _BLOCK)
            block = file.read(block_at - start, position + UNIT_SIZE - block_at)
            self._block = (block_at, block)
            at = position - block_at
            if len(block) < at + UNIT_SIZE:
                return None
        size, previous, magic, written_ms, delay_ms, offset, record_size, _, deliver_ms = (
            UNIT.unpack_from(block, at)
        )
        if size != UNIT_SIZE:
            return None
        slot_ms = written_ms + delay_ms
        deliver_ms &= _DELIVER_MASK
        return Unit(position, previous, magic, written_ms, slot_ms, offset, record_size, deliver_ms)

    def scan(self) -> Iterator[tuple[int, Units]]:
        """Position and units, in pieces, up to the first that is none; `end` follows."""
        for start, file in self._files.items():
            if self.end != start:
                return  # a file is missing: the chain of files ends
            inside = 0
            while True:
                data = file.read(inside, min(_SCAN_UNITS * UNIT_SIZE, self._file_size - inside))
                units = np.frombuffer(data, _DTYPE, count=len(data) // UNIT_SIZE)
                shaped = (units["size"] == UNIT_SIZE) & (units["magic"] & ~_MAGIC_MASK == 0)
                # Sums of units only: most of a file is zeros.
                count = _sound(_are_whole(units[: _sound(shaped)]))
                if count:
                    yield start + inside, units[:count]
                inside += count * UNIT_SIZE
                self.end = start + inside
                if not count or count < len(units):
                    break
            if not self._is_blank(file, inside):
                return
            self.end = start + self._file_size

    def _is_blank(self, file: DiskFile, inside: int) -> bool:
        room = self._file_size - inside
        if room < _BLANK.size:
            return True
        size, _, magic = _BLANK.unpack(file.read(inside, _BLANK.size))
        return bool(magic == BLANK_MAGIC and size == room)  # else of a file of another size
