"""A consume queue's files: entries in log order, found by physical offset."""

import os
from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from aerobee.pipeline.source.decode import Ints
from aerobee.protocol.files.queue_entry import BLANK_ENTRY_SIZE, ENTRY_SIZE
from aerobee.protocol.files.queue_entry_columns import ENTRY_TYPE


class QueueReader:
    """The entries of one consume queue, found by physical offset."""

    def __init__(self, folder: str) -> None:
        self._files = []
        for name in sorted(os.listdir(folder)):
            path = os.path.join(folder, name)
            if len(name) == 20 and name.isdigit() and os.path.getsize(path) >= ENTRY_SIZE:
                self._files.append((int(name) // ENTRY_SIZE, path))

    def last_end(self, is_sure: Callable[[int], bool] | None = None) -> int:
        """Where the newest entry's record ends; 0 when the queue has none. With `is_sure`, of the
        newest entry whose physical offset passes; all entries before it pass too."""
        for _, path in reversed(self._files):
            entries = _entries(path)
            count = len(entries)
            if is_sure is not None:
                count = _count_sure(entries["offset"], is_sure)
            if count and entries["size"][count - 1] != BLANK_ENTRY_SIZE:
                return int(entries["offset"][count - 1]) + int(entries["size"][count - 1])
        return 0

    def end_offset(self) -> int:
        """The queue offset after the newest entry."""
        for base, path in reversed(self._files):
            if count := len(_entries(path)):
                return base + count
        return 0

    def any_between(self, low: int, high: int) -> bool:
        return any(first < last for _, _, first, last in self._ranges(low, high))

    def between(self, low: int, high: int) -> tuple[Ints, Any]:
        """Physical offsets and tag codes of the entries with low <= physical offset < high."""
        parts = [entries[first:last] for _, entries, first, last in self._ranges(low, high)]
        joined = np.concatenate(parts) if parts else np.zeros(0, ENTRY_TYPE)
        joined = joined[joined["size"] != BLANK_ENTRY_SIZE]
        return joined["offset"].astype(np.int64), joined["code"].astype(np.int64)

    def _ranges(self, low: int, high: int) -> Iterable[tuple[int, Any, int, int]]:
        for base, path in self._files:
            entries = _entries(path)
            if not len(entries) or entries["offset"][-1] < low:
                continue
            first = _first_at_least(entries["offset"], low)
            yield base, entries, first, _first_at_least(entries["offset"], high)
            if entries["offset"][-1] >= high:
                return


def _entries(path: str) -> Any:
    """The file's used entries; unused ones, all zero, follow them."""
    whole = os.path.getsize(path) // ENTRY_SIZE
    entries = np.memmap(path, ENTRY_TYPE, "r", shape=(whole,))
    sizes = entries["size"]
    low, high = 0, whole
    while low < high:
        middle = (low + high) // 2
        if sizes[middle] > 0:
            low = middle + 1
        else:
            high = middle
    return entries[:low]


def _first_at_least(ascending: Any, wanted: int) -> int:
    low, high = 0, len(ascending)
    while low < high:
        middle = (low + high) // 2
        if ascending[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


def _count_sure(ascending: Any, is_sure: Callable[[int], bool]) -> int:
    count = len(ascending)
    if count and is_sure(int(ascending[-1])):  # most queues are idle
        return count
    return bisect_left(range(count), True, key=lambda number: not is_sure(int(ascending[number])))
