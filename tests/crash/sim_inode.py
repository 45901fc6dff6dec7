"""The content of one file of the simulated disk, and what a power cut leaves of it."""

from __future__ import annotations

import random
from typing import NamedTuple

SECTOR = 512
PAGE = 4096


class Resize(NamedTuple):
    """A change of a file's length that may not be on disk."""

    number: int  # among all changes of names and lengths: a journal keeps their order
    length: int


class Inode:
    """The content of one file. `current` and `clean` may be longer than it is: a map stays."""

    __slots__ = (
        "allocated",
        "clean",
        "current",
        "durable",
        "length",
        "modified_ms",
        "resizes",
        "size_durable",
        "torn",
    )

    def __init__(self, content: bytes, modified_ms: int) -> None:
        self.length = len(content)
        self.current = bytearray(content)
        self.clean = bytearray(content)
        self.durable = bytearray(content)
        self.resizes: list[Resize] = []  # since the last sync
        self.allocated: list[tuple[int, int]] = []  # ranges that own blocks
        self.size_durable = False  # the length it was made with
        self.torn = False  # a small file between its truncation and its sync
        self.modified_ms = modified_ms

    def resize(self, length: int, number: int) -> None:
        grown = length - len(self.current)
        if grown > 0:  # BufferError when it is mapped: then it cannot become longer
            self.current.extend(bytes(grown))
            self.clean.extend(bytes(grown))
        if length < self.length:
            page = -(-length // PAGE) * PAGE
            for content in (self.current, self.clean):
                content[length:] = bytes(len(content) - length)
            self.allocated = [
                (start, min(end, page)) for start, end in self.allocated if start < page
            ]
        self.length = length
        self.resizes.append(Resize(number, length))

    def settle_length(self, before: int | None = None) -> None:
        """The changes of its length are on disk: all, or those that came `before` one of a name."""
        count = len(self.resizes) if before is None else self.count_before(before)
        self.durable = resized(self.durable, self.resizes[:count])
        self.size_durable = self.size_durable or before is None or count > 0
        del self.resizes[:count]

    def count_before(self, number: int) -> int:
        return sum(resize.number < number for resize in self.resizes)

    def dirty_sectors(self) -> list[int]:
        current, clean = self.current, self.clean
        if current == clean:
            return []
        return [
            at
            for at in range(0, len(current), SECTOR)
            if current[at : at + SECTOR] != clean[at : at + SECTOR]
        ]

    def is_allocated(self, position: int) -> bool:
        return any(start <= position < end for start, end in self.allocated)


def resized(content: bytearray, resizes: list[Resize]) -> bytearray:
    """The content after these changes of its length."""
    content = bytearray(content)
    for _, length in resizes:
        del content[length:]
        content.extend(bytes(length - len(content)))
    return content


def after_cut(
    inode: Inode,
    rng: random.Random,
    share: float,
    step: int,
    has_size: bool,
    newest: int,
    missing: int,
) -> Inode:
    """What is left of a file: its durable bytes and, of the dirty ones, a random part. Of all
    changes of names one numbered `newest` is there, and one of its folder numbered `missing` not.
    """
    if inode.torn:  # the old content, or any part of the new
        content = rng.choice((inode.current[: rng.randint(0, inode.length)], inode.durable))
        return _made(content, inode)
    if not has_size and rng.random() < 0.3:
        return _made(b"", inode)
    # The first change of its length is that of its making. A journal keeps its order: changes
    # before a name that is there are there too, and none between a name that is not and them.
    least = max(int(not inode.size_durable), inode.count_before(newest))
    most = len(inode.resizes)
    kept = rng.randint(least, most) if most > least else least
    if inode.count_before(missing) < kept < most:
        kept = most
    content = resized(inode.durable, inode.resizes[:kept])
    # Behind a truncation that is not on disk the file still has its old blocks.
    limit = min([len(content), *(length for _, length in inode.resizes[kept:])])
    if share:
        groups = sorted({at - at % step for at in inode.dirty_sectors()})
        for at in groups:
            if rng.random() < share:
                end = min(at + step, limit)
                content[at:end] = inode.current[at:end]
    return _made(content, inode)


def _made(content: bytes | bytearray, before: Inode) -> Inode:
    after = Inode(bytes(content), before.modified_ms)
    after.allocated = list(before.allocated)
    after.size_durable = True
    return after
