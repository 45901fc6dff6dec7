"""The real disk with faults that a test puts in: syncs that fail, space that runs out."""

from __future__ import annotations

import errno
import os
from typing import Any

from aerobee.broker.store.disk import DiskSpace, RealDisk, RealFile


class FaultyFile:
    """A real file behind the disk's faults."""

    def __init__(self, file: RealFile, disk: FaultyDisk) -> None:
        self._file = file
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def sync(self) -> None:
        self._disk.synced.append(self._file.path)
        if self._disk.fail_sync_of and self._disk.fail_sync_of in self._file.path:
            raise OSError(errno.EIO, os.strerror(errno.EIO), self._file.path)
        self._file.sync()

    def write(self, position: int, data: bytes) -> None:
        if self._disk.fail_write_of and self._disk.fail_write_of in self._file.path:
            self._file.write(position, data[: len(data) // 2])
            raise OSError(errno.EIO, os.strerror(errno.EIO), self._file.path)
        self._file.write(position, data)

    def allocate(self, start: int, length: int) -> None:
        if self._disk.no_space_for and self._disk.no_space_for in self._file.path:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._file.path)
        self._file.allocate(start, length)


class FaultyDisk(RealDisk):
    def __init__(self) -> None:
        self.fail_sync_of = ""  # part of the path
        self.fail_write_of = ""
        self.no_space_for = ""
        self.synced: list[str] = []
        self.reported: DiskSpace | OSError | None = None

    def create(self, path: str, size: int) -> Any:
        return FaultyFile(super().create(path, size), self)

    def open(self, path: str) -> Any:
        return FaultyFile(super().open(path), self)

    def space(self, path: str) -> DiskSpace:
        if isinstance(self.reported, OSError):
            raise self.reported
        return self.reported or super().space(path)
