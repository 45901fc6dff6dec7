"""config/timerMoves: which units of the timer log are about to point to another record.

0  4 magic    4  4 count    8  48 * count moves    4 CRC-32
"""

import os
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from aerobee.broker.store.files.disk import Disk, make_folder

_HEAD: Final = Struct(">ii")
_MAGIC: Final = 0x4142544A  # "ABTJ"
_MOVE: Final = Struct(">6q")


class Move(NamedTuple):
    """A unit of the timer log, the record that it points to, and its new record."""

    position: int
    slot_ms: int
    was_offset: int
    was_size: int
    offset: int
    size: int


class Journal:
    """The moves in progress, in a file of their own."""

    def __init__(self, path: str, disk: Disk) -> None:
        self._path = path
        self._disk = disk

    def write(self, moves: list[Move]) -> None:
        """On disk when this returns; OSError when it is not."""
        content = _HEAD.pack(_MAGIC, len(moves)) + b"".join(_MOVE.pack(*move) for move in moves)
        folder = os.path.dirname(self._path)
        make_folder(self._disk, folder)
        self._disk.write_small(self._path, content + crc32(content).to_bytes(4, "big"))
        self._disk.syncdir(folder)

    def read(self) -> list[Move]:
        """What was written whole; nothing else."""
        if not self._disk.exists(self._path):
            return []
        content, check = (data := self._disk.read_small(self._path))[:-4], data[-4:]
        if len(content) < _HEAD.size or crc32(content).to_bytes(4, "big") != check:
            return []
        magic, count = _HEAD.unpack_from(content)
        if magic != _MAGIC or len(content) != _HEAD.size + count * _MOVE.size:
            return []
        return [Move(*fields) for fields in _MOVE.iter_unpack(content[_HEAD.size :])]

    def remove(self) -> None:
        if self._disk.exists(self._path):
            self._disk.unlink(self._path)
