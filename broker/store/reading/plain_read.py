"""The read without a filter: entries of a queue to views of one file of the log.

Adjacent records become one view. Special cases (a blank slot, records in two files, one that is
gone) are not handled here: the result is then None, and the reader goes entry by entry. The
compiled part has its own `take`, which copies records without making views.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aerobee.broker.compiled import hot
from aerobee.broker.store.files.mapped_file import MappedFile
from aerobee.protocol.files.queue_entry import ENTRY_PLACE, ENTRY_SIZE
from aerobee.protocol.files.queue_entry_columns import ENTRY_TYPE

if TYPE_CHECKING:
    from aerobee.broker.compiled import _hot
    from aerobee.broker.store.files.residence import Records

# The file and the range of it that has all records; the records, their bytes and their number; how
# far before the log's end they begin. A plain tuple: one is made for each pull.
PlainRead = tuple[MappedFile, int, int, "Records", int, int, int]

# The range in the file, the records, their bytes, their number.
Taken = tuple[int, int, "Records", int, int]
Take = Callable[[bytes, MappedFile, int], Taken | None]
_Views = tuple[int, int, list[memoryview], int]
_places: Final = ENTRY_PLACE.iter_unpack
_MANY_BYTES: Final = 64 * ENTRY_SIZE  # from here on numpy is faster than a loop


def take(entries: bytes, file: MappedFile, max_bytes: int) -> Taken | None:
    """The records of the entries, if all are in `file`: as many as fit `max_bytes`, at least
    one."""
    taken = _take(entries, file)
    if taken is None:
        return None
    start, end, views, size = taken
    if size > max_bytes and len(entries) > ENTRY_SIZE:
        count = _fitting(entries, max_bytes)
        taken = _take(entries[: count * ENTRY_SIZE], file)
        return None if taken is None else (*taken, count)
    return start, end, views, size, len(entries) // ENTRY_SIZE


def take_compiled(entries: bytes, file: MappedFile, max_bytes: int) -> Taken | None:
    """The same in C."""
    readable = file.wrote if file.buffer is None else file.committed
    taken: Taken | None = _take_records(entries, file.view, file.start, readable, max_bytes)
    return taken


_take_records: Final[Any] = None if hot is None else hot.take_records
FASTEST: Final[Take] = take if hot is None else take_compiled


def answer(head: bytes, records: Records) -> bytes | _hot.Gathered:
    """Head and records for one write."""
    if isinstance(records, list):
        return b"".join((head, *records))
    return records.answer(head)


def _take(entries: bytes, file: MappedFile) -> _Views | None:
    if len(entries) >= _MANY_BYTES:
        return _take_many(entries, file)
    file_start, view = file.start, file.view
    limit = file.wrote if file.buffer is None else file.committed
    views: list[memoryview] = []
    add_view = views.append
    places = _places(entries)
    offset, size = next(places)
    first = start = offset - file_start
    end = start + size
    for offset, size in places:
        offset -= file_start
        if offset > end > start:
            add_view(view[start:end])
            start = offset
            end = offset + size
        elif offset == end and size > 0:  # adjacent
            end += size
        else:
            return None
    # Each run begins after the end of the one before: with these two all are in the file.
    if first < 0 or not start < end <= limit:
        return None
    add_view(view[start:end])
    return first, end, views, sum(map(len, views))


def _take_many(entries: bytes, file: MappedFile) -> _Views | None:
    table = np.frombuffer(entries, ENTRY_TYPE)
    starts = table["offset"].astype(np.int64)
    starts -= file.start
    ends = starts + table["size"]
    if starts.min() < 0 or ends.max() > file.readable or table["size"].min() <= 0:
        return None
    gaps = np.flatnonzero(starts[1:] != ends[:-1])
    run_starts = [int(starts[0]), *starts[gaps + 1].tolist()]
    run_ends = [*ends[gaps].tolist(), int(ends[-1])]
    view = file.view
    views = [view[start:end] for start, end in zip(run_starts, run_ends, strict=True)]
    return run_starts[0], run_ends[-1], views, sum(run_ends) - sum(run_starts)


def _fitting(entries: bytes, max_bytes: int) -> int:
    """How many of the records fit `max_bytes`; at least one."""
    sizes = np.frombuffer(entries, ENTRY_TYPE)["size"].cumsum(dtype=np.int64)
    return max(1, int(sizes.searchsorted(max_bytes, "right")))
