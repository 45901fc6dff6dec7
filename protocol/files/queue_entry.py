"""The entry of a consume queue, which points into the commitlog.

    0  8 physical offset     8  4 record size     12  8 tags code

Entry n is at byte 20 n of the stream. All zeros: the end. Size 0x7FFFFFFF: a slot of the first
file that was skipped because the queue began in its middle (pre-blank).
"""

import struct
from typing import Final

ENTRY: Final = struct.Struct(">qiq")
ENTRY_PLACE: Final = struct.Struct(">qi8x")  # without its tags code
ENTRY_OFFSET: Final = struct.Struct(">q")
ENTRY_SIZE: Final = ENTRY.size
BLANK_ENTRY_SIZE: Final = 0x7FFFFFFF
BLANK_ENTRY: Final = ENTRY.pack(0, BLANK_ENTRY_SIZE, 0)
