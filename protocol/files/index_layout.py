"""The layout of an index file: a hash table on disk from `topic#key` to physical offsets.

 0  8 begin timestamp    8  8 end timestamp   16  8 begin physical offset
24  8 end physical offset   32  4 used slots   36  4 count (starts at 1: entry 0 is unused)
40  slots x 4: number of the newest entry, 0 for none
    entries x 20: 4 hash, 8 physical offset, 4 seconds since begin, 4 number of the one before
"""

import struct
from typing import Final, NamedTuple

HEADER: Final = struct.Struct(">qqqqii")
BEGIN_TIME_AT, END_TIME_AT = 0, 8
END_OFFSET_AT, USED_SLOTS_AT, COUNT_AT = 24, 32, 36
SLOT: Final = struct.Struct(">i")
INDEX_ENTRY: Final = struct.Struct(">iqii")
HEADER_SIZE: Final = HEADER.size
SLOT_SIZE: Final = SLOT.size
INDEX_ENTRY_SIZE: Final = INDEX_ENTRY.size
SECONDS_MAX: Final = 0x7FFFFFFF


class IndexHeader(NamedTuple):
    begin_timestamp: int
    end_timestamp: int
    begin_offset: int
    end_offset: int
    used_slots: int
    next_number: int  # of the next entry; 1 in an empty file


def index_file_size(slots: int, entries: int) -> int:
    """Also where entry number `entries` begins."""
    return HEADER_SIZE + slots * SLOT_SIZE + entries * INDEX_ENTRY_SIZE
