"""The real disk with faults that a test puts in: any call of the port, on any path, fails.

`calls` are the sites that were passed, so that a test can walk through all of them: the call and
the kind of file it was made on.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import Any, Final

from aerobee.broker.store.files.disk import Disk, DiskFile, DiskSpace
from aerobee.broker.store.files.real_disk import RealDisk, RealFile

# Not calls to the device, or with their own faults here. Every other call of the ports can fail,
# new ones included.
NO_FILE_CALLS: Final = frozenset({"close", "forget", "is_cached", "is_resident", "use_randomly"})
NO_DISK_CALLS: Final = frozenset({"exists", "is_folder", "space"})


def calls_of(port: type, left_out: frozenset[str]) -> frozenset[str]:
    calls = {name for name, value in vars(port).items() if callable(value) and name[0] != "_"}
    assert left_out < calls, left_out - calls
    return frozenset(calls - left_out)


FILE_CALLS: Final = calls_of(DiskFile, NO_FILE_CALLS)
DISK_CALLS: Final = calls_of(Disk, NO_DISK_CALLS)


SECTOR: Final = 512


@dataclass
class Fault:
    """Calls of this name on paths with this part fail, from the `after`-th on, `times` times."""

    call: str
    part: str
    number: int = errno.EIO
    after: int = 0
    times: int = 1 << 30
    raised: int = 0

    def meets(self, call: str, path: str) -> bool:
        if call != self.call or self.part not in path or self.raised >= self.times:
            return False
        self.after -= 1
        return self.after < 0


class ShortWrite(OSError):
    """The first half was written, for the rest there was no room."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


class FaultyFile:
    """A real file behind the disk's faults."""

    def __init__(self, file: RealFile, disk: FaultyDisk) -> None:
        self._file = file
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._file, name)
        if name not in FILE_CALLS:
            return value

        def called(*args: Any) -> Any:
            self._disk.check(name, self._file.path)
            if name == "read":
                self._disk.check_sectors(self._file.path, *args)
            return value(*args)

        return called

    def sync(self) -> None:
        self._disk.synced.append(self._file.path)
        if self._disk.fail_sync_of and self._disk.fail_sync_of in self._file.path:
            raise OSError(errno.EIO, os.strerror(errno.EIO), self._file.path)
        self._disk.check("sync", self._file.path)
        self._file.sync()

    def write(self, position: int, data: bytes) -> None:
        if self._disk.fail_write_of and self._disk.fail_write_of in self._file.path:
            self._file.write(position, data[: len(data) // 2])
            raise OSError(errno.EIO, os.strerror(errno.EIO), self._file.path)
        try:
            self._disk.check("write", self._file.path)
        except ShortWrite:
            self._file.write(position, data[: len(data) // 2])
            raise
        self._file.write(position, data)

    def allocate(self, start: int, length: int) -> None:
        if self._disk.no_space_for and self._disk.no_space_for in self._file.path:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._file.path)
        self._disk.check("allocate", self._file.path)
        self._file.allocate(start, length)


class FaultyDisk(RealDisk):
    def __init__(self) -> None:
        self.fail_sync_of = ""  # part of the path
        self.fail_write_of = ""
        self.no_space_for = ""
        self.synced: list[str] = []
        self.reported: DiskSpace | OSError | None = None
        self.faults: list[Fault] = []
        self.bad_sectors: set[tuple[str, int]] = set()  # folder and file, number of a block
        self.calls: dict[tuple[str, str], int] = {}  # (call, kind of file) -> count

    def check(self, call: str, path: str) -> None:
        """Note the call; OSError when a fault meets it."""
        site = call, kind_of(path)
        self.calls[site] = self.calls.get(site, 0) + 1
        for fault in self.faults:
            if fault.meets(call, path):
                fault.raised += 1
                raise OSError(fault.number, os.strerror(fault.number), path)

    def check_sectors(self, path: str, position: int, length: int) -> None:
        blocks = range(position // SECTOR, -(-(position + length) // SECTOR))
        name = "/".join(path.split("/")[-2:])
        if any((name, block) in self.bad_sectors for block in blocks):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def create(self, path: str, size: int) -> Any:
        self.check("create", path)
        return FaultyFile(super().create(path, size), self)

    def open(self, path: str) -> Any:
        self.check("open", path)
        return FaultyFile(super().open(path), self)

    def space(self, path: str) -> DiskSpace:
        if isinstance(self.reported, OSError):
            raise self.reported
        return self.reported or super().space(path)


def kind_of(path: str) -> str:
    """commitlog, consumequeue, index, ... or the file's own name: where it stands in a store."""
    parts = path.split("/")
    for kind in ("commitlog", "consumequeue_ext", "consumequeue", "index", "timerlog"):
        if kind in parts:
            return kind
    return parts[-1]


def _checked(name: str) -> Any:
    real = getattr(RealDisk, name)

    def called(self: FaultyDisk, path: str, *args: Any) -> Any:
        try:
            self.check(name, path)
        except ShortWrite:
            data, *others = args
            real(self, path, data[: len(data) // 2], *others)
            raise
        return real(self, path, *args)

    return called


for _name in DISK_CALLS:
    if _name not in vars(FaultyDisk):
        setattr(FaultyDisk, _name, _checked(_name))
