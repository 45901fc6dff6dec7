"""epochFileCheckpoint: which part of the log was written under which master.

    line 1   number of entries
    line 2   CRC-32 of the lines below, its lowest 31 bits; 0: not checked; before 5.1: absent
    line 3.. epoch-start, in their order; an epoch ends where the next one starts

RocketMQ 5 writes this file in controller mode, and so do we.
"""

import zlib
from itertools import pairwise
from typing import Final, NamedTuple

FILE_NAME: Final = "epochFileCheckpoint"
_CRC_MASK: Final = 0x7FFFFFFF
_UNCHECKED: Final = 0


class Epoch(NamedTuple):
    """One master's term: it wrote the log from `start` on."""

    number: int
    start: int


def encode_epochs(entries: tuple[Epoch, ...]) -> bytes:
    lines = "".join(f"{epoch.number}-{epoch.start}\n" for epoch in entries).encode()
    return b"%d\n%d\n" % (len(entries), zlib.crc32(lines) & _CRC_MASK) + lines


def decode_epochs(data: bytes) -> tuple[Epoch, ...]:
    """ValueError when the file is damaged."""
    count, _, rest = data.partition(b"\n")
    first, _, lines = rest.partition(b"\n")
    if b"-" in first:
        lines = rest
    elif int(first or b"0") not in (_UNCHECKED, zlib.crc32(lines) & _CRC_MASK):
        raise ValueError("its checksum is wrong")
    entries = []
    for line in lines.split():
        number, _, start = line.partition(b"-")
        entries.append(Epoch(int(number), int(start)))
    if len(entries) != int(count):
        raise ValueError(f"it says {int(count)} entries and has {len(entries)}")
    for before, after in pairwise(entries):
        if after.number <= before.number or after.start < before.start:
            raise ValueError(f"epoch {after.number} does not follow epoch {before.number}")
    return tuple(entries)
