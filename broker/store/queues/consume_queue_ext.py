"""consumequeue_ext: data that does not fit a queue entry (`enableConsumeQueueExt`, off by default).

    0  2 size of the unit (20 + b)     2  8 tags code     10  8 store time
   18  2 b                            20  b bitmap of the filters that the message passes

RocketMQ writes the bitmap with `enableCalcFilterBitMap`. Here filters are evaluated for each
message, so b is 0, which RocketMQ takes as "not calculated"; bitmaps of its own are passed over.

The queue entry then carries, in place of the tags code, the unit's address less 2^63: any tags
code below -2^31 is such an address. A unit that would not leave 4 bytes in its file goes to the
next; a size of -1 marks the end of the one before.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import numpy as np

from aerobee.broker.store.files.disk import Disk
from aerobee.broker.store.files.mapped_file import PAGE, MappedFile, MappingCounters
from aerobee.broker.store.files.mapped_file_queue import MappedFileQueue
from aerobee.protocol.files.queue_entry_columns import ENTRY_TYPE

UNIT: Final = struct.Struct(">hqqh")
_SHORT: Final = struct.Struct(">h")
_END: Final = -1
_ROOM: Final = 4
_SIGN: Final = 1 << 63
ADDRESS_MAX: Final = -(1 << 31) - 1
ALLOCATION_CHUNK: Final = 64 * 1024


class ExtUnit(NamedTuple):
    tags_code: int
    store_timestamp: int
    size: int


def is_address(tags_code: int) -> bool:
    """Whether a queue entry's tags code is the address of a unit."""
    return tags_code <= ADDRESS_MAX


def last_address(entries: bytes) -> int | None:
    """The address in the last queue entry that has one: newer entries may have been written with
    the setting off."""
    codes = np.frombuffer(entries, ENTRY_TYPE)["code"]
    found = np.flatnonzero(codes <= ADDRESS_MAX)
    return int(codes[found[-1]]) if found.size else None


class ConsumeQueueExt:
    """The units of one queue."""

    __slots__ = ("end", "files", "flushed")

    def __init__(
        self,
        disk: Disk,
        folder: str,
        file_size: int,
        counters: MappingCounters,
        unsynced: set[str],
    ) -> None:
        self.files = MappedFileQueue(
            disk,
            folder,
            file_size,
            "mappedFileSizeConsumeQueueExt",
            counters,
            unsynced,
            random=True,
        )
        self.end = 0  # of the last unit, in the stream
        self.flushed = 0

    def load(self) -> None:
        self.files.load()
        last = self.files.last
        self.end = last.end if last is not None else 0

    def put(self, tags_code: int, store_timestamp: int) -> int:
        """Add a unit; returns the address for the queue entry. OSError when the disk refuses."""
        file = self._file_with_room()
        position = self.end - file.start
        file.allocate_to(position + UNIT.size, ALLOCATION_CHUNK)
        file.write(position, UNIT.pack(UNIT.size, tags_code, store_timestamp, 0))
        address = self.end - _SIGN
        self.end += UNIT.size
        return address

    def _file_with_room(self) -> MappedFile:
        file = self.files.find(self.end)
        if file is None:
            return self.files.create(self.end - self.end % self.files.file_size)
        position = self.end - file.start
        if position + UNIT.size + _ROOM <= file.size:
            return file
        file.allocate_to(position + 2, ALLOCATION_CHUNK)
        file.write(position, _SHORT.pack(_END))
        self.end = file.end
        return self.files.find(self.end) or self.files.create(self.end)

    def get(self, address: int) -> ExtUnit | None:
        """The unit at an address; None when there is none."""
        byte = address + _SIGN
        file = self.files.find(byte)
        if file is None or byte >= self.end:
            return None
        position = byte - file.start
        if position + UNIT.size > file.size:
            return None
        head = file.read(position, UNIT.size)
        size, tags_code, store_timestamp, length = UNIT.unpack(head)
        if size != UNIT.size + length or length < 0 or position + size > file.size:
            return None
        return ExtUnit(tags_code, store_timestamp, size)

    def cut_after(self, address: int | None) -> None:
        """Drop the units after the one at `address`, the last that an entry points to."""
        self.end = self._end_of(address) if address is not None else 0
        file = self.files.find(self.end)
        self.files.remove_from(self.end if file is None or self.end == file.start else file.end)
        if file is not None and self.end > file.start:
            file.cut(self.end - file.start)
        self.flushed = min(self.flushed, self.end)

    def _end_of(self, address: int) -> int:
        """The end of a unit; the end of its file if it is damaged: later units are kept, and its
        space is not reused."""
        unit = self.get(address)
        if unit is not None:
            return address + _SIGN + unit.size
        file = self.files.find(address + _SIGN)
        return file.end if file is not None else 0

    def unflushed(self, least_pages: int) -> list[MappedFile]:
        waiting = self.end - self.flushed
        if waiting <= 0 or waiting < least_pages * PAGE:
            return []
        return list(self.files.overlapping(self.flushed, self.end))

    def close(self) -> None:
        self.files.close()
