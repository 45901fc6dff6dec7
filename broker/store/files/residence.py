"""Whether the records or entries of a pull are in memory; answers are cached for milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING, Final

from aerobee.broker.store.files import page_cache
from aerobee.broker.store.files.mapped_file import MappedFile
from aerobee.broker.store.files.mapped_file_queue import MappedFileQueue

if TYPE_CHECKING:
    from aerobee.broker.compiled import _hot

    Records = list[memoryview] | _hot.Records

_BLOCK: Final = 1 << 20
_FRESH_S: Final = 0.02  # how long an answer for a block is valid
_KNOWN_S: Final = 0.5
_BLOCKS_MAX: Final = 4096  # answers cached at most
_SPARSE: Final = 32  # records this far apart are checked one by one
_FEW: Final = 16  # pieces: checking each is faster than their blocks
_WIDE: Final = 16 * _BLOCK  # from here on checking each block takes longer than the pull

Span = tuple[MappedFile, int, int]  # file, position, length


class Residence:
    """Whether records can be sent without waiting for the disk; the kernel is queried once per
    block of the log, not once per pull.

    A block found in memory is assumed to stay there for some milliseconds: consumers read it piece
    by piece within that time. The system may drop a page right after any answer, so a blocking read
    becomes rare, not impossible; it drops the least recently used pages first, and these were just
    used.
    """

    __slots__ = ("_holed", "_recent_asked", "_until", "_whole_files", "_wide", "recent_until")

    def __init__(self, *, whole_files: bool = False) -> None:
        """With `whole_files` blocks end with their file, not with its readable part: a queue's file
        does not know how far it is written."""
        self._whole_files = whole_files
        self._until: dict[tuple[int, int], float] = {}  # by file and start of the block
        self._holed: dict[tuple[int, int], float] = {}  # not in memory: until when
        self.recent_until = 0.0  # until then all of the log's end counts as in memory
        self._recent_asked = 0.0
        self._wide = (0, 0, 0, 0.0)  # a wide range found in memory: file, start, end, until when

    def holds_recent(self, files: MappedFileQueue, start: int, end: int) -> bool:
        """Whether all of the log's end is in memory; checked once for many pulls. What is appended
        meanwhile is in memory, too."""
        now = monotonic()
        if now < self._recent_asked:
            return now < self.recent_until
        self._recent_asked = now + _FRESH_S
        for file in files.overlapping(start, end):
            if not self.holds_range(file, max(start - file.start, 0), file.readable):
                return False
        self.recent_until = now + _FRESH_S
        return True

    def holds_range(self, file: MappedFile, position: int, end: int) -> bool:
        """Whether the blocks of the range are in memory."""
        now = monotonic()
        until, key = self._until, id(file)
        first = position - position % _BLOCK
        if end <= first + _BLOCK:  # as most are
            return until.get((key, first), 0.0) >= now or self._has_block(file, first, now)
        is_wide = end - position > _WIDE
        if is_wide and self._is_in_wide(key, position, end, now):
            return True
        blocks = range(first, end, _BLOCK)
        for block in blocks:
            if until.get((key, block), 0.0) < now and not self._has_block(file, block, now):
                return False
        if is_wide:
            holds = min(until.get((key, block), 0.0) for block in blocks)
            self._note_wide(key, position, end, now, holds)
        return True

    def holds_records(
        self, files: Sequence[MappedFile], begin: int, end: int, records: Records
    ) -> bool:
        """Whether a pull's records are in memory: by their blocks, or, where these are many or have
        pages that were dropped, by the pages of the records alone."""
        file = files[0]
        if isinstance(records, list):  # the path in Python, with records of one file
            return self.holds_range(file, begin, end)
        by_blocks = len(files) == 1 and (end - begin <= _WIDE or len(records) > _FEW)
        if by_blocks and self._are_whole(file, begin, end):
            return True
        return page_cache.are_resident(records)

    def _are_whole(self, file: MappedFile, begin: int, end: int) -> bool:
        """Whether the blocks of the range are in memory; that they are not is kept for some
        milliseconds, too."""
        holed = self._holed
        if holed and holed.get((id(file), begin - begin % _BLOCK), 0.0) >= monotonic():
            return False
        if self.holds_range(file, begin, end):
            return True
        if len(holed) >= _BLOCKS_MAX:
            holed.clear()
        holed[id(file), begin - begin % _BLOCK] = monotonic() + _FRESH_S
        return False

    def _is_in_wide(self, key: int, position: int, end: int, now: float) -> bool:
        file, low, high, until = self._wide
        return file == key and low <= position and end <= high and now < until

    def _note_wide(self, key: int, position: int, end: int, now: float, holds: float) -> None:
        """The queues of a topic spread over about the same range, so one answer serves the next.
        Valid as long as the answer for its oldest block."""
        file, low, high, until = self._wide
        if file == key and now < until and position <= high and low <= end:
            self._wide = (key, min(low, position), max(high, end), min(until, holds))
        else:
            self._wide = (key, position, end, holds)

    def bring_in(self, file: MappedFile, position: int, end: int) -> None:
        """Load the blocks that `holds_range` checks; for a thread beside the loop."""
        for block in range(position - position % _BLOCK, end, _BLOCK):
            file.file.read(block, min(_BLOCK, self._end_of(file) - block))

    def holds(self, spans: Sequence[Span], size: int) -> bool:
        """Whether all spans (`size` bytes, in ascending order) are in memory."""
        file, position, _ = spans[0]
        last_file, last_position, last_length = spans[-1]
        end = last_position + last_length
        if (
            last_file is file
            and end - position <= size * _SPARSE + _BLOCK
            and self.holds_range(file, position, end)
        ):
            return True
        return all(
            self.holds_range(each, start, start + length)
            or (each.file.is_cached(start, length) and each.file.is_resident(start, length))
            for each, start, length in spans
        )

    def _end_of(self, file: MappedFile) -> int:
        return file.size if self._whole_files else file.readable

    def _has_block(self, file: MappedFile, position: int, now: float) -> bool:
        key, length = (id(file), position), min(_BLOCK, self._end_of(file) - position)
        if not file.file.is_cached(position, length):
            self._until.pop(key, None)
            return False
        # The more expensive check, for a block that was not checked for a while.
        is_known = now < self._until.get(key, 0.0) + _KNOWN_S
        if not is_known and not file.file.is_resident(position, length):
            return False
        if len(self._until) >= _BLOCKS_MAX:
            self._until.clear()
        self._until[key] = now + _FRESH_S
        return True
