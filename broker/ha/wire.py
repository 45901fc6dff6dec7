"""RocketMQ's plain replication stream as bytes: reports go up, frames come down.

    slave   8 bytes       int64 end of its log; the last whole one counts
    master  12 + n bytes  int64 offset, int32 n, n bytes of the log as they are; n = 0: heartbeat

Frames cut records anywhere and never cross the end of a log file. No sockets here.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final

REPORT: Final = Struct(">q")
HEAD: Final = Struct(">qi")
# A Java slave collects a frame in a buffer of 4 MiB, head included.
FRAME_SIZE_MAX: Final = (4 << 20) - HEAD.size


class StreamError(Exception):
    """The other side does not follow the protocol, or has another log: close the connection."""


class ReportReader:
    """A slave's reports, however they are cut."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> int | None:
        """The last whole report; None while there is none."""
        data = self._rest + data
        whole = len(data) - len(data) % REPORT.size
        self._rest = data[whole:]
        return REPORT.unpack_from(data, whole - REPORT.size)[0] if whole else None


class FrameReader:
    """A master's frames, however they are cut."""

    __slots__ = ("_head", "_left", "_offset", "_size_max")

    def __init__(self, size_max: int) -> None:
        """`size_max`: of a frame's data; a log file, as no frame crosses the end of one."""
        self._size_max = size_max
        self._head = b""
        self._offset = 0  # of the next byte of the frame under way ...
        self._left = 0  # ... which has so many to come

    def feed(self, data: memoryview) -> Iterator[tuple[int, memoryview]]:
        """Offset and bytes. A frame may come in several pieces; an empty one is a heartbeat."""
        position = 0
        while position < len(data):
            if self._left:
                piece = data[position : position + self._left]
                offset = self._offset
                self._offset += len(piece)
                self._left -= len(piece)
                position += len(piece)
                yield offset, piece
                continue
            head = data[position : position + HEAD.size - len(self._head)]
            self._head += head
            position += len(head)
            if len(self._head) == HEAD.size:
                self._offset, self._left = HEAD.unpack(self._head)
                self._head = b""
                if not 0 <= self._left <= self._size_max:
                    raise StreamError(f"a frame of {self._left} bytes at {self._offset}")
                if not self._left:
                    yield self._offset, data[:0]
