"""checkpoint: one 4096-byte page that says up to where log, queues and index are on disk.

     0  8 physic_msg_timestamp     store time of the newest record in the flushed log
     8  8 logics_msg_timestamp     ... of the newest record whose queue entries are flushed
    16  8 index_msg_timestamp      ... of the newest record whose index entries are flushed
    24  8 master_flushed_offset    (5.0)
    32  8 confirm_physical_offset  (5.1.1)
    40  8 logics_physical_offset   (5.5) every record below has its queue entries on disk, or 0
   256  8 "AEROBEE2"               ours, in bytes that RocketMQ does not use
   264  8 dispatched_offset        every record below has its queue and index entries on disk
   272  8 index_file               the newest index file's name as a number, 0 for none
   280  8 index_count              entries of that file that are on disk
   288  4 CRC-32C of bytes 0..48 and 256..288
   296  8 trusted_ms               the time by which files expire, in whole hours, or 0
   304  8 doubted_ms               how long a clock that is ahead of it has been doubted, likewise
   312  4 CRC-32C of bytes 296..312

A page that RocketMQ has written since then fails the checksum; its own fields still count.

RocketMQ 5.5 begins the recovery after a kill at the newest log file that begins at or before the
offset at 40, if there is one, whatever the times say. Our mark once stood there, as a huge offset
("AEROBEE1" at 40, the fields at 48, the checksum of 0..72 at 72): this version still reads that.
"""

import struct
from dataclasses import dataclass
from typing import Final

import crcmod.predefined

PAGE_SIZE: Final = 4096
OURS_AT: Final = 256
_UPSTREAM: Final = struct.Struct(">6q")
_OURS: Final = struct.Struct(">8s3q")
_CRC: Final = struct.Struct(">I")
_TIME: Final = struct.Struct(">2q")
_TIME_AT: Final = 296
_MARK: Final = b"AEROBEE2"
_OLD_MARK: Final = b"AEROBEE1"
_OLD_AT: Final = 40
_crc32c = crcmod.predefined.mkCrcFun("crc-32c")


@dataclass(slots=True)
class StoreCheckpoint:
    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_physical_offset: int = 0
    dispatched_offset: int = -1  # -1: not known, the page was not written by Aerobee
    index_file: int = 0
    index_count: int = 0
    trusted_ms: int = 0  # 0: not known
    doubted_ms: int = 0

    def encode(self) -> bytes:
        upstream = _UPSTREAM.pack(
            self.physic_msg_timestamp,
            self.logics_msg_timestamp,
            self.index_msg_timestamp,
            self.master_flushed_offset,
            self.confirm_physical_offset,
            max(self.dispatched_offset, 0),
        )
        ours = _OURS.pack(_MARK, self.dispatched_offset, self.index_file, self.index_count)
        crc = _CRC.pack(_crc32c(upstream + ours))
        time = _TIME.pack(self.trusted_ms, self.doubted_ms)
        page = (upstream.ljust(OURS_AT, b"\0") + ours + crc).ljust(_TIME_AT, b"\0")
        return (page + time + _CRC.pack(_crc32c(time))).ljust(PAGE_SIZE, b"\0")


def decode_checkpoint(page: bytes) -> StoreCheckpoint:
    """What a page says; a short or empty one says nothing."""
    if len(page) < PAGE_SIZE:
        return StoreCheckpoint()
    checkpoint = StoreCheckpoint(*_UPSTREAM.unpack_from(page)[:5])
    ours = _claims(page, OURS_AT, _MARK, page[: _UPSTREAM.size])
    if ours is None:
        ours = _claims(page, _OLD_AT, _OLD_MARK, page[:_OLD_AT])
    if ours is not None:
        checkpoint.dispatched_offset, checkpoint.index_file, checkpoint.index_count = ours
    time = page[_TIME_AT : _TIME_AT + _TIME.size]
    if _CRC.unpack_from(page, _TIME_AT + _TIME.size)[0] == _crc32c(time):
        checkpoint.trusted_ms, checkpoint.doubted_ms = _TIME.unpack(time)
    return checkpoint


def _claims(page: bytes, position: int, mark: bytes, before: bytes) -> tuple[int, int, int] | None:
    """Our own fields, if present and written together with the bytes `before`."""
    end = position + _OURS.size
    found, dispatched, index_file, index_count = _OURS.unpack_from(page, position)
    (crc,) = _CRC.unpack_from(page, end)
    if found != mark or crc != _crc32c(before + page[position:end]):
        return None
    return dispatched, index_file, index_count
