"""Reading records with pread: for a thread, or for a few of them on the loop.

Records that are close together are read with one call, including the bytes between them: the
records of a topic with a few queues alternate in the log, and a call for each costs more than the
bytes in between. All are copied into one buffer: thousands of small ones would fragment the heap.
"""

import mmap
from collections.abc import Iterator, Sequence
from typing import Final

from aerobee.broker.store.files.mapped_file import MappedFile
from aerobee.broker.store.results import Span

GAP_MAX: Final = 16 << 10  # bytes of other records that are cheaper to read than another call
TOGETHER_MAX: Final = 256 << 10
OWN_PAGES_MIN: Final = 256 << 10


def read_cold(spans: Sequence[Span]) -> memoryview:
    """The bytes of the spans, one after the other. OSError when the disk fails."""
    found = _memory(sum(length for _, _, length in spans))
    end = 0
    for run in _runs(spans):
        for piece, length in _read(run):
            found[end : end + len(piece)] = piece
            end += length
    return found


def _memory(size: int) -> memoryview:
    """Large answers get pages of their own, which are returned to the system once they are sent:
    between small objects they would fragment the heap."""
    return memoryview(mmap.mmap(-1, size) if size >= OWN_PAGES_MIN else bytearray(size))


def _runs(spans: Sequence[Span]) -> Iterator[Sequence[Span]]:
    """Runs of spans that one call can read."""
    first = 0
    for number in range(1, len(spans)):
        file, position, length = spans[number]
        before, before_at, before_length = spans[number - 1]
        gap = position - (before_at + before_length)
        is_close = file is before and 0 <= gap <= GAP_MAX
        if not is_close or position + length - spans[first][1] > TOGETHER_MAX:
            yield spans[first:number]
            first = number
    if spans:
        yield spans[first:]


def _read(run: Sequence[Span]) -> Iterator[tuple[bytes | memoryview, int]]:
    """The bytes of each span, and how many it should have: a file may have become shorter."""
    file, begin, length = run[0]
    if len(run) == 1:
        yield file.file.read(begin, length), length
        return
    data = _read_range(file, begin, run[-1][1] + run[-1][2])
    for _, position, length in run:
        if data is None:
            yield file.file.read(position, length), length
        else:
            yield data[position - begin : position - begin + length], length


def _read_range(file: MappedFile, begin: int, end: int) -> memoryview | None:
    try:
        return memoryview(file.file.read(begin, end - begin))
    except OSError:  # the unreadable bytes may be between the records
        return None
