"""checkpoint: one 4096-byte page that says up to where log, queues and index are on disk.

     0  8 physic_msg_timestamp     store time of the newest record in the flushed log
     8  8 logics_msg_timestamp     ... of the newest record whose queue entries are flushed
    16  8 index_msg_timestamp      ... of the newest record whose index entries are flushed
    24  8 master_flushed_offset    (5.0)
    32  8 confirm_physical_offset  (5.1.1)
    40  8 "AEROBEE1"               ours, in bytes that RocketMQ leaves alone
    48  8 dispatched_offset        every record below has its queue and index entries on disk
    56  8 index_file               the newest index file's name as a number, 0 for none
    64  8 index_count              entries of that file that are on disk
    72  4 CRC-32C of bytes 0..72

A page that RocketMQ has written since then fails the checksum; its own fields still count.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import crcmod.predefined
import structlog

from aerobee.broker.store.disk import Disk, DiskFile

log = structlog.get_logger("aerobee.store")

PAGE_SIZE = 4096
_MARK = b"AEROBEE1"
_FIELDS = struct.Struct(">qqqqq8sqqq")
_CRC = struct.Struct(">I")
_crc32c = crcmod.predefined.mkCrcFun("crc-32c")


@dataclass(slots=True)
class StoreCheckpoint:
    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_physical_offset: int = 0
    dispatched_offset: int = -1  # -1: not known, the page is not ours
    index_file: int = 0
    index_count: int = 0

    def encode(self) -> bytes:
        fields = _FIELDS.pack(
            self.physic_msg_timestamp,
            self.logics_msg_timestamp,
            self.index_msg_timestamp,
            self.master_flushed_offset,
            self.confirm_physical_offset,
            _MARK,
            self.dispatched_offset,
            self.index_file,
            self.index_count,
        )
        return (fields + _CRC.pack(_crc32c(fields))).ljust(PAGE_SIZE, b"\0")


def decode_checkpoint(page: bytes) -> StoreCheckpoint:
    """What a page says; a short or empty one says nothing."""
    if len(page) < _FIELDS.size + _CRC.size:
        return StoreCheckpoint()
    physic, logics, index, master, confirm, mark, dispatched, begin, count = _FIELDS.unpack_from(
        page
    )
    checkpoint = StoreCheckpoint(physic, logics, index, master, confirm)
    (crc,) = _CRC.unpack_from(page, _FIELDS.size)
    if mark == _MARK and crc == _crc32c(page[: _FIELDS.size]):
        checkpoint.dispatched_offset = dispatched
        checkpoint.index_file = begin
        checkpoint.index_count = count
    return checkpoint


class CheckpointFile:
    """The page on disk. It is written in place: all of it lies in the first sector."""

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
        return self.value

    def write(self) -> None:
        """Put the page on disk; OSError when that fails."""
        if self._file is None:
            exists = self._disk.exists(self._path)
            if exists and self._disk.length(self._path) != PAGE_SIZE:
                self._disk.unlink(self._path)
                exists = False
            file = self._disk.open(self._path) if exists else self._create()
            try:
                # A page without a block is taken by a full disk, and refused when it is synced.
                file.allocate(0, PAGE_SIZE)
            except OSError:
                file.close()
                raise
            self._file = file
        self._file.write(0, self.value.encode())
        self._file.sync()

    def _create(self) -> DiskFile:
        file = self._disk.create(self._path, PAGE_SIZE)
        self._disk.syncdir(self._path.rpartition("/")[0])
        return file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
