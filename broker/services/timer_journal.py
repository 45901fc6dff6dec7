"""config/timerMoves: which units of the timer log are about to point to another record.

0  4 magic    4  4 count    8  48 * count moves    4 CRC-32
"""

import os
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from aerobee.broker.store.system_calls import data_sync

_HEAD: Final = Struct(">ii")
_MAGIC: Final = 0x4142544A  # "ABTJ"
_MOVE: Final = Struct(">6q")


class Move(NamedTuple):
    """A unit of the timer log, the record that it points to, and the one that it shall."""

    position: int
    slot_ms: int
    was_offset: int
    was_size: int
    offset: int
    size: int


class Journal:
    """The moves under way, in a file of their own."""

    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, moves: list[Move]) -> None:
        """On disk when this returns; OSError when it is not."""
        content = _HEAD.pack(_MAGIC, len(moves)) + b"".join(_MOVE.pack(*move) for move in moves)
        folder = os.path.dirname(self._path)
        os.makedirs(folder, exist_ok=True)
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(fd, content + crc32(content).to_bytes(4, "big"), 0)
            data_sync(fd)
        finally:
            os.close(fd)
        folder_fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder_fd)
        finally:
            os.close(folder_fd)

    def read(self) -> list[Move]:
        """What was written whole; nothing else."""
        try:
            with open(self._path, "rb") as file:
                content, check = (data := file.read())[:-4], data[-4:]
        except FileNotFoundError:
            return []
        if len(content) < _HEAD.size or crc32(content).to_bytes(4, "big") != check:
            return []
        magic, count = _HEAD.unpack_from(content)
        if magic != _MAGIC or len(content) != _HEAD.size + count * _MOVE.size:
            return []
        return [Move(*fields) for fields in _MOVE.iter_unpack(content[_HEAD.size :])]

    def remove(self) -> None:
        if os.path.exists(self._path):
            os.unlink(self._path)
