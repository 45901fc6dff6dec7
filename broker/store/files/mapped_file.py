"""One file of a stream, mapped into memory: a start offset, a fixed size and four positions.

    0 <= flushed <= committed <= wrote <= size        allocated: blocks exist up to here

`wrote` is where the next byte goes. Without a pool buffer `committed` is the same; with one,
bytes first go to the buffer and `commit` moves them into the file. Readers see up to `readable`.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

from aerobee.broker.store.files.disk import DiskFile

PAGE = 4096


@dataclass(slots=True)
class MappingCounters:
    """How many files, and bytes, one store has mapped."""

    files: int = 0
    bytes: int = 0


class MappedFile:
    __slots__ = (
        "_counted",
        "_counters",
        "_refused_ms",
        "allocated",
        "buffer",
        "committed",
        "file",
        "flushed",
        "holders",
        "size",
        "start",
        "usable",
        "wrote",
    )

    def __init__(
        self, file: DiskFile, start: int, counters: MappingCounters, size: int | None = None
    ) -> None:
        """`size`: what the file is extended to before its content is used."""
        self.file = file
        self.start = start
        self.size = file.size if size is None else size
        self.wrote = 0
        self.committed = 0
        self.flushed = 0
        self.allocated = 0
        self.buffer: memoryview | None = None
        self.holders = 0
        self.usable = True
        self._refused_ms = 0
        self._counters = counters
        self._counted = False

    @property
    def path(self) -> str:
        return self.file.path

    @property
    def end(self) -> int:
        return self.start + self.size

    @property
    def view(self) -> memoryview:
        if not self._counted:
            self._counted = True
            self._counters.files += 1
            self._counters.bytes += self.size
        return self.file.view()

    @property
    def readable(self) -> int:
        return self.wrote if self.buffer is None else self.committed

    @property
    def is_full(self) -> bool:
        return self.wrote >= self.size

    def allocate_to(self, position: int, chunk: int) -> None:
        """Allocate blocks up to `position` at least, in steps of `chunk`; OSError when the disk is
        full."""
        if position > self.allocated:
            start = self.allocated - self.allocated % PAGE
            end = min(self.size, -(-position // chunk) * chunk)
            self.file.allocate(start, end - start)
            self.allocated = end

    def write(self, position: int, data: bytes | memoryview) -> None:
        """Write bytes after what is readable; OSError when the disk refuses.

        Not through the map, unless writeWithoutMmap is off and the file was made ready: a store to
        a device that is gone is a SIGBUS. Besides, each sync has to write-protect every page that
        was stored to through a map, which interrupts all cores.
        """
        if self.buffer is None:
            self.file.write(position, data)
        else:
            self.buffer[position : position + len(data)] = data

    def read(self, position: int, length: int) -> bytes:
        """Bytes of the file, not through the map: an OSError where the map would raise SIGBUS."""
        return self.file.read(position, length)

    def check_readable(self, start: int, end: int) -> None:
        """Call before reading a range through the map. OSError when the device cannot read it."""
        at = self.file.first_unreadable(start, end)
        if at is not None:
            raise OSError(errno.EIO, f"Input/output error at byte {at}", self.path)

    def blank_out(self, start: int, end: int) -> None:
        """Undo a write, complete or partial: the bytes must not look like records."""
        self.write(start, bytes(end - start))

    def set_positions(self, position: int) -> None:
        self.wrote = self.committed = self.flushed = position

    def cut(self, position: int) -> None:
        """Drop what follows `position`, so that no later scan takes it for data."""
        if not self.file.is_empty_from(position):  # a full disk may not give freed blocks back
            self.file.truncate(position)
            self.file.extend(self.size)
        self.set_positions(position)
        self.allocated = min(self.allocated, position)

    def commit(self) -> int:
        """Move what the pool's buffer holds into the file; the number of bytes."""
        if self.buffer is None:
            self.committed = self.wrote
            return 0
        start, end = self.committed, self.wrote
        if end > start:
            self.file.write(start, self.buffer[start:end])
            self.committed = end
        return end - start

    def hold(self) -> bool:
        """Count a reader; False when the file is being removed."""
        if not self.usable:
            return False
        self.holders += 1
        return True

    def release(self) -> None:
        self.holders -= 1

    def shut(self, now_ms: int, force_after_ms: int) -> bool:
        """Refuse new readers; True when none is left or `force_after_ms` has passed."""
        if self.usable:
            self.usable = False
            self._refused_ms = now_ms
        return self.holders <= 0 or now_ms - self._refused_ms >= force_after_ms

    def close(self) -> None:
        self.usable = False
        if self._counted:
            self._counted = False
            self._counters.files -= 1
            self._counters.bytes -= self.size
        self.file.close()
