"""How far a service has come, written after every step: exact after a kill of the process.

The JSON files of upstream say it seconds later, and only what is on disk for certain. This file is
not synced: after a power failure it may be ahead of the log. So it holds how long the log was when
it was written, and counts only if the log still is that long.

    0  4 magic    4  4 count    8  8 length of the log    16  8 * count numbers    4 CRC-32
"""

import os
from collections.abc import Sequence
from struct import Struct
from typing import Final
from zlib import crc32

_MAGIC: Final = 0x41425047  # "ABPG"
_HEAD: Final = Struct(">iiq")
_COUNT_MAX: Final = 4096


class ProgressFile:
    """A few numbers in a file of their own."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd: int | None = None

    def write(self, numbers: Sequence[int], log_end: int) -> None:
        """Replace the numbers; OSError when the disk refuses."""
        head = _HEAD.pack(_MAGIC, len(numbers), log_end)
        content = head + Struct(f">{len(numbers)}q").pack(*numbers)
        if self._fd is None:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.pwrite(self._fd, content + crc32(content).to_bytes(4, "big"), 0)

    def read(self, log_end: int) -> list[int] | None:
        """The numbers; None when there are none or they are of a longer log than this."""
        try:
            with open(self.path, "rb") as file:
                content = file.read(_HEAD.size + 8 * _COUNT_MAX + 4)
        except FileNotFoundError:
            return None
        if len(content) < _HEAD.size:
            return None
        magic, count, end = _HEAD.unpack_from(content)
        size = _HEAD.size + 8 * count
        if magic != _MAGIC or not 0 <= count <= _COUNT_MAX or len(content) < size + 4:
            return None
        if crc32(content[:size]) != int.from_bytes(content[size : size + 4], "big"):
            return None
        if end > log_end:
            return None
        return list(Struct(f">{count}q").unpack_from(content, _HEAD.size))

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
