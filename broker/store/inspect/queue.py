"""An offline consume queue: its entries, and whether they match the records."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerobee.broker.store.inspect.columns import NUMBER, OFFSET, SIZE, TAGS_CODE, TIME
from aerobee.broker.store.inspect.files import Problem, QueueKey, RestFile, RestStore
from aerobee.broker.store.queues.consume_queue_ext import ADDRESS_MAX, UNIT
from aerobee.protocol.files.queue_entry import ENTRY_SIZE
from aerobee.protocol.files.queue_entry_columns import ENTRY_TYPE, is_entry
from aerobee.protocol.names import SCHEDULE_TOPIC


class RestQueue:
    """The entries of a queue and their queue offsets (`places`)."""

    def __init__(
        self, store: RestStore, key: QueueKey, files: list[RestFile] | None = None
    ) -> None:
        self.key = key
        self.files = store.queues.get(key, []) if files is None else files
        self.entries, self.places = _read(self.files)
        unused = np.flatnonzero(self.entries["size"] <= 0)
        self.end = int(unused[0]) if unused.size else len(self.entries)
        first = self.files[0].start // ENTRY_SIZE if self.files else 0
        self.max_offset = int(self.places[self.end - 1]) + 1 if self.end else first
        # Those before the end whose records the log still has.
        self.live = is_entry(self.entries) & (self.entries["offset"] >= store.log_begin)
        self.live[self.end :] = False

    @property
    def live_begin(self) -> int:
        """The first record that a live entry points to; 0 when there is none."""
        return int(self.entries["offset"][self.live].min()) if self.live.any() else 0

    def problem(self, number: int, text: str) -> Problem:
        place = int(self.places[number])
        file = next(f for f in self.files if f.start <= place * ENTRY_SIZE < f.end)
        return Problem(file.path, place * ENTRY_SIZE - file.start, f"queue entry {place}: {text}")


def _read(files: list[RestFile]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The entries, from the first file's start to the last byte ever written, and the queue offset
    of each: by the files' names, so that a missing or short file does not shift the entries after
    it."""
    entries, places = [np.empty(0, ENTRY_TYPE)], [np.empty(0, np.int64)]
    for number, file in enumerate(files):
        if number + 1 < len(files):  # bytes beyond the next file's start do not belong to the queue
            size = min(file.size, files[number + 1].start - file.start)
        else:
            size = file.data_end()
        count = min(-(-size // ENTRY_SIZE), file.size // ENTRY_SIZE)
        # Read, not mapped: there may be thousands of queues, and a map keeps a file open.
        entries.append(np.fromfile(file.path, ENTRY_TYPE, count))
        places.append(np.arange(count) + file.start // ENTRY_SIZE)
    return np.concatenate(entries), np.concatenate(places)


def files_between(files: list[RestFile], low: int, high: int) -> list[RestFile]:
    """The first and the last file with entries that point into this part of the log."""
    firsts = [int(np.fromfile(file.path, ENTRY_TYPE, 1)["offset"].sum()) for file in files]
    wanted = range(bisect_right(firsts, low) - 1, bisect_left(firsts, high))
    return [file for n, file in enumerate(files) if n in (0, len(files) - 1) or n in wanted]


def check_end(queue: RestQueue) -> Iterator[Problem]:
    """Check that nothing follows the queue's end."""
    rest = queue.entries[queue.end :]
    behind = np.flatnonzero((rest["size"] > 0) | (rest["offset"] != 0))
    if behind.size:
        text = f"it stands behind the queue's end at {queue.max_offset}"
        yield queue.problem(queue.end + int(behind[0]), text)


def check_entries(
    store: RestStore, queue: RestQueue, which: NDArray[Any], rows: NDArray[Any]
) -> Iterator[Problem]:
    """Check these live entries against the queue's records with the same queue offsets."""
    entries, places = queue.entries[which], queue.places[which]
    rows = _of_last_life(queue, rows)
    expected = np.full(len(which), -1, np.int64)
    at = np.minimum(np.searchsorted(places, rows[:, NUMBER]), max(len(which) - 1, 0))
    known = places[at] == rows[:, NUMBER] if len(which) else np.zeros(len(rows), bool)
    expected[at[known]] = np.flatnonzero(known)
    none = np.flatnonzero(expected < 0)
    if none.size:
        text = "the log has no record with its number; it points to "
        yield queue.problem(int(which[none[0]]), text + str(int(entries["offset"][none[0]])))
    found = expected >= 0
    which, entries, right = which[found], entries[found], rows[expected[found]]
    for name, column in (("offset", OFFSET), ("size", SIZE)):
        wrong = np.flatnonzero(entries[name] != right[:, column])
        if wrong.size:
            number = int(wrong[0])
            text = f"{name} {int(entries[name][number])}, the record has {right[number, column]}"
            yield queue.problem(int(which[number]), text)
    wrong = _wrong_codes(store, queue.key, entries["code"], right)
    if wrong.size:
        number = int(wrong[0])
        code, wanted = int(entries["code"][number]), right[number, TAGS_CODE]
        yield queue.problem(int(which[number]), f"tags code {code}, the record's is {wanted}")


def _of_last_life(queue: RestQueue, rows: NDArray[Any]) -> NDArray[Any]:
    """The records with queue offsets, since the queue last started over (after its topic was
    deleted)."""
    return rows[(rows[:, NUMBER] >= 0) & (rows[:, OFFSET] >= queue.live_begin)]


def _wrong_codes(
    store: RestStore, key: QueueKey, codes: NDArray[Any], right: NDArray[Any]
) -> NDArray[Any]:
    if key[0] == SCHEDULE_TOPIC:  # a deliver time, which depends on the broker's settings
        return np.flatnonzero((codes != right[:, TAGS_CODE]) & (codes < right[:, TIME]))
    codes = codes.astype(np.int64)
    for number in np.flatnonzero(codes <= ADDRESS_MAX).tolist():
        codes[number] = _code_of_unit(store, key, int(codes[number]) + (1 << 63))
    return np.flatnonzero(codes != right[:, TAGS_CODE])


def _code_of_unit(store: RestStore, key: QueueKey, address: int) -> int:
    """The tags code of a unit of consumequeue_ext; an impossible one when it is missing."""
    for file in store.units.get(key, []):
        if file.start <= address and address + UNIT.size <= file.end:
            return int(UNIT.unpack_from(file.view, address - file.start)[1])
    return ADDRESS_MAX


def check_missing(store: RestStore, queue: RestQueue, rows: NDArray[Any]) -> Iterator[Problem]:
    """Check that the records that should have an entry have one."""
    dead = is_entry(queue.entries) & ~queue.live
    dead[queue.end :] = False
    there = rows[np.isin(rows[:, NUMBER], queue.places[dead])]
    if len(there):  # an entry that has expired has no record in the log
        number = int(np.flatnonzero(dead & (queue.places == there[0, NUMBER]))[0])
        points_to = int(queue.entries["offset"][number])
        yield queue.problem(
            number, f"it points to {points_to}, its record is at {int(there[0, OFFSET])}"
        )
    first = queue.places[queue.live][0] if queue.live.any() else queue.max_offset
    wanted = _of_last_life(queue, rows)
    wanted = wanted[wanted[:, NUMBER] >= first]
    wanted = wanted[~np.isin(wanted[:, NUMBER], queue.places[queue.live])]
    if not store.stopped_cleanly:
        wanted = wanted[wanted[:, NUMBER] < queue.max_offset]
    if len(wanted):
        text = f"the record has no entry {wanted[0, NUMBER]} in queue {queue.key[0]}/{queue.key[1]}"
        yield store.problem_at(int(wanted[0, OFFSET]), text)
