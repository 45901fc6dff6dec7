"""The checkpoint's page on disk."""

from __future__ import annotations

import structlog

from aerobee.broker.store.files.disk import Disk, DiskFile
from aerobee.protocol.files.checkpoint import PAGE_SIZE, StoreCheckpoint, decode_checkpoint

log = structlog.get_logger("aerobee.store")


class CheckpointFile:
    """Written in place: all its fields lie in the page's first sector."""

    __slots__ = ("_disk", "_file", "_path", "value")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._file: DiskFile | None = None
        self.value = StoreCheckpoint()

    def load(self) -> StoreCheckpoint:
        if self._disk.exists(self._path):
            page = self._disk.read_small(self._path)
            if len(page) != PAGE_SIZE:
                log.warning(
                    "the checkpoint is not a page: ignored", path=self._path, size=len(page)
                )
                page = b""
            self.value = decode_checkpoint(page)
            if not self.value.trusted_ms:  # written by RocketMQ: use its timestamp
                self.value.trusted_ms = self._disk.modified_ms(self._path)
        return self.value

    def write(self, value: StoreCheckpoint) -> None:
        """Put the page on disk; OSError, and the value is as before, when that fails."""
        if self._file is None:
            exists = self._disk.exists(self._path)
            if exists and self._disk.length(self._path) != PAGE_SIZE:
                self._disk.unlink(self._path)
                exists = False
            file = self._disk.open(self._path) if exists else self._create()
            try:
                # On a full disk a write to an unallocated page succeeds, and its sync then fails.
                file.allocate(0, PAGE_SIZE)
            except OSError:
                file.close()
                raise
            self._file = file
        self._file.write(0, value.encode())
        self._file.sync()
        self.value = value

    def _create(self) -> DiskFile:
        file = self._disk.create(self._path, PAGE_SIZE)
        self._disk.syncdir(self._path.rpartition("/")[0])
        return file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
