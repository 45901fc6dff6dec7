"""Reads records from the log's files without the map: a failing disk is then an OSError."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aerobee.broker.store.files.mapped_file import MappedFile
from aerobee.protocol.files.record_layout import BLANK_SIZE, CorruptRecord
from aerobee.protocol.files.record_scan import Scanned, check_record, scan_records

PIECE: Final = 1 << 20  # read at once
PROBE: Final = 4096  # bytes read of a record of unknown size


def read_record(
    file: MappedFile, physical_offset: int, size: int = PROBE
) -> tuple[Scanned, memoryview]:
    """The record at this offset and its bytes; `size`: its expected size. CorruptRecord when there
    is none or a damaged one, OSError when the disk fails."""
    position = physical_offset - file.start
    room = file.readable - position
    if size <= 0:
        raise CorruptRecord(physical_offset, f"a record of {size} bytes")
    data = file.read(position, min(size, room))
    whole = int.from_bytes(data[:4], "big")
    if len(data) < whole <= room:
        data = file.read(position, whole)
    view = memoryview(data)
    record = check_record(view, physical_offset, 0, len(view), True)
    return record, view[: record.size]


def read_records(
    file: MappedFile, position: int, end: int
) -> Iterator[tuple[Scanned, memoryview, int]]:
    """All records of a range, without checking their checksums: each with the piece of the file
    that holds it and the offset of that piece. OSError when the disk fails."""
    step = PIECE
    while end - position >= BLANK_SIZE:
        piece = memoryview(file.read(position, min(step, end - position)))
        base, taken = file.start + position, 0
        file_end = file.size - position
        try:
            records = scan_records(piece, base, 0, len(piece), check_crc=False, file_end=file_end)
            for record in records:
                taken = record.physical_offset + record.size - base
                yield record, piece, base
        except CorruptRecord:
            if not taken:
                if len(piece) >= end - position:
                    raise
                step = end - position  # the record may be longer than a piece
        else:
            if len(piece) - taken >= BLANK_SIZE or not taken:
                return  # a blank record: the file is over
        if taken:
            position += taken
            step = PIECE
