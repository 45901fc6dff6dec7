"""Reading records with pread: for a thread, or for a few of them on the loop.

One call reads all that lie near each other and what is between them: the records of a topic with a
few queues alternate in the log, and a call for each costs more than the bytes in between. All go
into one piece of memory: thousands of small ones would leave holes in the heap.
"""

import mmap
from collections.abc import Iterator, Sequence
from typing import Final

from aerobee.broker.store.files.mapped_file import MappedFile
from aerobee.broker.store.results import Span

GAP_MAX: Final = 16 << 10  # bytes of other records that are read rather than a call more is made
TOGETHER_MAX: Final = 256 << 10
OWN_PAGES_MIN: Final = 256 << 10


def read_cold(spans: Sequence[Span]) -> memoryview:
    """The bytes of the spans, one after the other. OSError when the disk fails."""
    found = _memory(sum(length for _, _, length in spans))
    end = 0
    for near in _near(spans):
        for piece, length in _read(near):
            found[end : end + len(piece)] = piece
            end += length
    return found


def _memory(size: int) -> memoryview:
    """Large answers have pages of their own, which the system gets back when they are sent: between
    small objects they would leave holes in the heap."""
    return memoryview(mmap.mmap(-1, size) if size >= OWN_PAGES_MIN else bytearray(size))


def _near(spans: Sequence[Span]) -> Iterator[Sequence[Span]]:
    """Runs of spans that one call can read."""
    first = 0
    for number in range(1, len(spans)):
        file, position, length = spans[number]
        before, before_at, before_length = spans[number - 1]
        gap = position - (before_at + before_length)
        is_near = file is before and 0 <= gap <= GAP_MAX
        if not is_near or position + length - spans[first][1] > TOGETHER_MAX:
            yield spans[first:number]
            first = number
    if spans:
        yield spans[first:]


def _read(near: Sequence[Span]) -> Iterator[tuple[bytes | memoryview, int]]:
    """The bytes of each span, and how many it should have: a file may have become shorter."""
    file, begin, length = near[0]
    if len(near) == 1:
        yield file.file.read(begin, length), length
        return
    data = _read_range(file, begin, near[-1][1] + near[-1][2])
    for _, position, length in near:
        if data is None:
            yield file.file.read(position, length), length
        else:
            yield data[position - begin : position - begin + length], length


def _read_range(file: MappedFile, begin: int, end: int) -> memoryview | None:
    try:
        return memoryview(file.file.read(begin, end - begin))
    except OSError:  # what cannot be read may be between the records
        return None
