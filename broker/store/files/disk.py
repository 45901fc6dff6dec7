"""The port to storage: everything the store does to files goes through a `Disk`.

`RealDisk` (in `real_disk`) is the operating system's. Tests run the same store code on a simulated
disk, so nothing here knows what the files mean, and nothing else in the store calls `os` for its
files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """Size and free space of a path's file system, as available to ordinary users."""

    total: int
    free: int

    @property
    def used_ratio(self) -> float:
        return 1.0 - self.free / self.total if self.total else 0.0


class DiskFile(Protocol):
    """One open file of a fixed length."""

    path: str
    size: int
    prewritten: int  # blocks before this position were written by `prewrite`
    ready: int  # `write` stores through the view what ends before this position

    def view(self) -> memoryview:
        """The whole file as writable shared memory; the same object every time."""

    def use_randomly(self) -> None:
        """Call before the first `view`: a page fault then loads one page only. Without it the
        kernel reads ahead, and the first store into a fresh file costs a millisecond. There may be
        many such files: they may be closed between two uses (see `open_files`)."""

    def allocate(self, start: int, length: int) -> None:
        """Allocate blocks for the range. OSError (no space) instead of a later SIGBUS."""

    def prewrite(self, start: int, length: int) -> None:
        """Write the blocks of a range of whole pages to disk, unchanged. The first sync of a block
        that is only allocated has to mark it as written: that costs a journal commit of the file
        system, whose failure is not reported. Others may write to the range meanwhile. OSError
        where the system has no such call."""

    def make_ready(self, start: int, length: int) -> None:
        """Let `write` store through the view up to the end of this range, which has blocks. Its
        pages are loaded for that, and made dirty unless `prewrite` wrote them. Others may write to
        the range meanwhile. OSError where the system has no such call, or no memory."""

    def sync(self) -> None:
        """Return when all that was written to the file is on disk."""

    def truncate(self, length: int) -> None:
        """Drop the bytes from `length` on, and their blocks. The file is short until `extend`;
        after a kill in between, a start finds it short."""

    def extend(self, size: int) -> None:
        """Give the file this length: the new bytes read as zeros and own no blocks."""

    def is_empty_from(self, position: int) -> bool:
        """Whether everything after `position` is zeros; False where there is much to read."""

    def write(self, position: int, data: bytes | memoryview) -> None: ...

    def read(self, position: int, length: int) -> bytes: ...

    def send_to(self, socket: int, position: int, length: int) -> int:
        """Send bytes of the file to a socket without copying them to user space; how many it took.
        BlockingIOError when it would block."""

    def is_cached(self, position: int, length: int) -> bool:
        """Whether the range can be read without waiting for the device."""

    def is_resident(self, position: int, length: int) -> bool:
        """Whether a cached range can be accessed through the view: a page that could not be read is
        in the cache, too, and touching it is a SIGBUS."""

    def forget(self, position: int, length: int) -> None:
        """The range will hardly be read again: the memory of what is on disk may be used for other
        pages at once."""

    def first_unreadable(self, start: int, end: int) -> int | None:
        """The first position in a range of the view that the device cannot read (a SIGBUS if
        touched). None: all of it is in memory now."""

    def close(self) -> None:
        """Close; views in use stay valid until they are released."""


class DiskLock(Protocol):
    def release(self) -> None: ...


class Disk(Protocol):
    def create(self, path: str, size: int) -> DiskFile:
        """A new file of this length with no blocks yet. FileExistsError if it exists."""

    def open(self, path: str) -> DiskFile: ...

    def exists(self, path: str) -> bool: ...

    def is_folder(self, path: str) -> bool: ...

    def length(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int: ...

    def set_modified_ms(self, path: str, time_ms: int) -> None:
        """Set the file's modification time, which RocketMQ relies on."""

    def listdir(self, path: str) -> list[str]:
        """The names in a folder, sorted; none if there is no such folder. Without `lost+found`."""

    def makedirs(self, path: str) -> list[str]:
        """Make the folder and its parents; the folders that got a new entry, to be synced."""

    def syncdir(self, path: str) -> None: ...

    def rename(self, old: str, new: str) -> None: ...

    def unlink(self, path: str) -> None: ...

    def rmtree(self, path: str) -> None:
        """Remove a folder and all that is in it."""

    def read_small(self, path: str) -> bytes: ...

    def write_small(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Create or overwrite a small file and sync its content (its name: `syncdir`); `mode`
        is that of a new one."""

    def space(self, path: str) -> DiskSpace: ...

    def lock(self, path: str) -> DiskLock:
        """Take the exclusive lock, or raise BlockingIOError when it is held."""


def make_folder(disk: Disk, path: str) -> None:
    """Make a folder and its parents, durably."""
    for changed in disk.makedirs(path):
        disk.syncdir(changed)
