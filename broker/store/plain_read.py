"""The pull that selects nothing: entries of a queue into views of one file of the log.

Records that stand side by side become one view. What is out of the ordinary (a blank slot, records
in two files, one that is gone) is not handled here: `take` then says False, and the reader goes
entry by entry.
"""

from __future__ import annotations

import struct
from itertools import repeat
from typing import Final

import numpy as np

from aerobee.broker.store.consume_queue import ENTRY_SIZE
from aerobee.broker.store.mapped_file import MappedFile
from aerobee.broker.store.results import ReadResult

_PLACE: Final = struct.Struct(">qi8x")  # an entry without its tags code
_ENTRIES: Final = np.dtype([("offset", ">i8"), ("size", ">i4"), ("code", ">i8")])
_MANY_BYTES: Final = 64 * ENTRY_SIZE  # from here on numpy is faster than a loop


def first_offset(entries: memoryview) -> int:
    """Where the record of the first entry begins."""
    offset: int = _PLACE.unpack_from(entries)[0]
    return offset


def take(result: ReadResult, entries: memoryview, file: MappedFile, max_bytes: int) -> bool:
    """Take the records of the entries, up to `max_bytes` but one at least; all are in `file`."""
    collect = _few if len(entries) < _MANY_BYTES else _many
    if not collect(result, entries, file):
        return False
    if result.size > max_bytes and len(entries) > ENTRY_SIZE:
        result.views.clear()
        result.spans.clear()
        return collect(result, entries[: _fitting(entries, max_bytes) * ENTRY_SIZE], file)
    return True


def _few(result: ReadResult, entries: memoryview, file: MappedFile) -> bool:
    begin, view = file.start, file.view
    room = file.readable
    add_view, add_span = result.views.append, result.spans.append
    start = end = total = -1
    for offset, size in _PLACE.iter_unpack(entries):
        if offset != end:
            if total >= 0:
                start -= begin
                end -= begin
                if start < 0 or end > room:
                    return False
                add_view(view[start:end])
                add_span((file, start, end - start))
                total += end - start
            else:
                total = 0
            start = offset
        end = offset + size
    start -= begin
    end -= begin
    if start < 0 or end > room:
        return False
    add_view(view[start:end])
    add_span((file, start, end - start))
    result.size = total + end - start
    result.count = len(entries) // ENTRY_SIZE
    return True


def _many(result: ReadResult, entries: memoryview, file: MappedFile) -> bool:
    table = np.frombuffer(entries, _ENTRIES)
    starts = table["offset"].astype(np.int64)
    starts -= file.start
    ends = starts + table["size"]
    if starts.min() < 0 or ends.max() > file.readable:
        return False
    gaps = np.flatnonzero(starts[1:] != ends[:-1])
    run_starts = [int(starts[0]), *starts[gaps + 1].tolist()]
    run_ends = [*ends[gaps].tolist(), int(ends[-1])]
    view = file.view
    result.views += [view[start:end] for start, end in zip(run_starts, run_ends, strict=True)]
    lengths = map(len, result.views)
    result.spans += zip(repeat(file), run_starts, lengths, strict=False)
    result.size = sum(run_ends) - sum(run_starts)
    result.count = len(entries) // ENTRY_SIZE
    return True


def _fitting(entries: memoryview, max_bytes: int) -> int:
    """How many of the records stay within `max_bytes`; one at least."""
    sizes = np.frombuffer(entries, _ENTRIES)["size"].cumsum(dtype=np.int64)
    return max(1, int(sizes.searchsorted(max_bytes, "right")))
