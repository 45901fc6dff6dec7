"""Which delayed messages were delivered, by the delivered copies in the log.

The progress of delay levels and timers is saved only now and then, and a crash may come in between.
So every delivered copy names its original record: the field "prepared transaction offset" holds the
complement of that record's physical offset. Otherwise the field is 0, or the offset of the half
message in a committed one, and never negative. Saved with the progress is a mark: all copies before
that place in the log are counted. A start reads the log from there to find the others.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
import structlog

from aerobee.broker.store.files.mapped_file import PAGE, MappedFile
from aerobee.broker.store.log.scan_block import read_block
from aerobee.protocol.files.record_columns import read_heads
from aerobee.protocol.files.record_layout import (
    HEADS,
    V6_HOSTS,
    CorruptRecord,
    head_part,
)
from aerobee.protocol.files.record_scan import find_record, scan_records

if TYPE_CHECKING:
    from aerobee.broker.store.message_store import MessageStore

log = structlog.get_logger("aerobee.services")

MARK_BYTES: Final = 64 << 20  # this much log may follow a mark before it is saved again
_LOOK_S: Final = 10.0
_BLOCK_RECORDS: Final = 8192
_SYS_FLAG: Final = head_part("sys_flag")
_FIELDS: Final = {
    v6_hosts: head_part("prepared_transaction_offset", v6_hosts=v6_hosts) for v6_hosts in HEADS
}


def origin_field(physical_offset: int) -> int:
    """The field's value in a copy of the record at this offset."""
    return ~physical_offset


def origin_of(record: memoryview) -> int | None:
    """The physical offset of the record that this one is a copy of; None: it is no copy."""
    (sys_flag,) = _SYS_FLAG.unpack_from(record)
    (field,) = _FIELDS[sys_flag & V6_HOSTS].unpack_from(record)
    return ~field if field < 0 else None


def origins_since(store: "MessageStore", mark: int | None) -> set[int]:
    """The physical offsets of the records whose copies are in the log from `mark` on.

    None: no mark was saved. Then the log is new, or a Java broker's, whose copies have no origin:
    it is read if it is short."""
    origins: set[int] = set()
    end = store.max_physical_offset
    if mark is None:
        mark = 0 if end < MARK_BYTES else end
    position = max(mark, store.min_physical_offset)
    while position < end and (file := store.commit_log.files.find(position)) is not None:
        for part in _readable(file, position - file.start, min(end - file.start, file.size)):
            _read_file(file, *part, origins)
        position = file.end
    return origins


def _readable(file: MappedFile, position: int, end: int) -> Iterator[tuple[int, int]]:
    """A range without its unreadable sectors, in parts that begin with a record."""
    while (bad := file.file.first_unreadable(position, end)) is not None:
        log.error(
            "the log cannot be read on a bad sector: what was delivered before may be delivered "
            "again if its copy is there",
            path=file.path,
            position=bad,
        )
        yield position, min(bad, end)
        after = bad + PAGE
        while after < end and file.file.first_unreadable(after, after + PAGE) is not None:
            after += PAGE
        whole = file.file.first_unreadable(after, end)
        position = find_record(file.view, file.start, after, end if whole is None else whole)
        if position >= end:
            return
    yield position, end


def _read_file(file: MappedFile, position: int, end: int, origins: set[int]) -> None:
    while position < end:
        block = read_block(file.view, file.start, position, end, _BLOCK_RECORDS, check_crc=False)
        if len(block):
            fields = read_heads(file.view, block.start)["prepared_transaction_offset"]
            origins.update((~fields[fields < 0].astype(np.int64)).tolist())
            position = int(block.end[-1])
        else:
            position = _read_one_by_one(file, position, end, origins)


def _read_one_by_one(file: MappedFile, position: int, end: int, origins: set[int]) -> int:
    """Records that a block scan cannot take; returns where to continue."""
    try:
        for number, record in enumerate(
            scan_records(file.view, file.start, position, end, check_crc=False)
        ):
            position = record.physical_offset - file.start
            (field,) = _FIELDS[record.sys_flag & V6_HOSTS].unpack_from(file.view, position)
            if field < 0:
                origins.add(~field)
            position += record.size
            if number >= _BLOCK_RECORDS:
                return position
    except CorruptRecord:
        return find_record(file.view, file.start, position + 1, end)
    return end


async def keep_mark_near(
    store: "MessageStore", mark: Callable[[], int], save: Callable[[], None]
) -> None:
    """Save the mark again when much log has followed it, also when nothing is delivered: a
    start does not have to read it all. Ends by cancellation."""
    while True:
        await asyncio.sleep(_LOOK_S)
        if store.flushed_offset - mark() >= MARK_BYTES:
            save()
