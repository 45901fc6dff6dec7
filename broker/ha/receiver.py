"""A slave's end of the stream: bytes come in, whole records go to the log.

An incomplete record is buffered here, so that the log always ends with a whole record, for readers,
after a crash and when a master restarts.
"""

from __future__ import annotations

from typing import Final

from aerobee.broker.compiled import hot
from aerobee.broker.ha.wire import FrameReader, StreamError
from aerobee.protocol.files.record_layout import (
    BLANK_MAGIC,
    BLANK_SIZE,
    HEAD_V4_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    SIZE_AND_MAGIC,
    head_part,
)

_PLACE: Final = head_part("physical_offset")
_MAGICS: Final = frozenset({MAGIC_V1, MAGIC_V2})


class Receiver:
    """One link's state. `whole` is the end of the last whole record."""

    __slots__ = ("_file_size", "_frames", "_partial", "_wanted", "received", "whole")

    def __init__(
        self,
        log_end: int,
        file_size: int,
        known: bytes = b"",
        frames: FrameReader | None = None,
    ) -> None:
        """`known`: bytes after the log's end that the master does not send."""
        self._file_size = file_size
        self._frames = frames or FrameReader(file_size)
        self._partial = bytearray(known)
        self._wanted = BLANK_SIZE  # bytes of the partial record needed before the next check
        self.whole = log_end
        self.received = log_end + len(known)

    @property
    def is_between_frames(self) -> bool:
        return self._frames.is_between

    @property
    def frame_rest(self) -> int:
        """Bytes of the current frame that have not come yet."""
        return self._frames.rest

    def feed(self, data: memoryview) -> list[tuple[int, memoryview]]:
        """The complete records, as offset and bytes; each run within one file."""
        lots: list[tuple[int, memoryview]] = []
        for offset, piece in self._frames.feed(data):
            if offset != self.received and (piece or offset >= 0):  # -1: Java has no file yet
                raise StreamError(
                    f"the master continues at {offset}, our log ends at {self.received}"
                )
            self.received += len(piece)
            if self._partial:
                piece = self._complete(piece, lots)
            size = self._count_whole(piece)
            if size:
                lots.append((self.whole, piece[:size]))
                self.whole += size
            self._partial += piece[size:]
        return lots

    def _complete(self, piece: memoryview, lots: list[tuple[int, memoryview]]) -> memoryview:
        """Complete the partial record; returns the rest of the piece."""
        while piece and self._partial:
            missing = self._wanted - len(self._partial)
            self._partial += piece[:missing]
            piece = piece[missing:]
            if len(self._partial) < self._wanted:
                break
            record = memoryview(bytes(self._partial))
            if self._count_whole(record):  # else its size is known now
                lots.append((self.whole, record))
                self.whole += len(record)
                self._partial.clear()
        return piece

    def _count_whole(self, data: memoryview) -> int:
        """How many bytes at the start of `data` are whole records."""
        unpack, place_of = SIZE_AND_MAGIC.unpack_from, _PLACE.unpack_from
        base, end = self.whole, len(data)
        if not end:
            return 0
        file_end = self._file_size - base % self._file_size  # in `data`
        position = hot.whole_records(data, base, file_end) if hot is not None else 0
        self._wanted = BLANK_SIZE
        while end - position >= BLANK_SIZE:
            size, magic = unpack(data, position)
            if magic not in _MAGICS:
                self._check_blank(base + position, size, magic, file_end - position)
            elif not HEAD_V4_SIZE < size <= file_end - position - BLANK_SIZE:
                raise StreamError(f"a record of {size} bytes at {base + position}")
            if position + size > end:
                self._wanted = size
                break
            if magic != BLANK_MAGIC:
                (place,) = place_of(data, position)
                if place != base + position:
                    raise StreamError(f"the record at {base + position} was written for {place}")
            position += size
            if position == file_end < end:
                raise StreamError(f"a frame crosses the end of a file at {base + position}")
        return position

    def _check_blank(self, offset: int, size: int, magic: int, room: int) -> None:
        if magic != BLANK_MAGIC or size != room:
            raise StreamError(
                f"neither record nor end of file at {offset}: size {size}, magic "
                f"{magic & 0xFFFFFFFF:#010x}, {room} bytes left in the file"
            )
