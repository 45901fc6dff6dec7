"""Offline index files: number of slots, lookup, consistency.

An index file does not state its number of slots and entries; it follows from the positions of its
entries: entry 0 is empty, the last one ends the file's written part, and slots point to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aerobee.broker.store.inspect.columns import OFFSET, TAG_HASH, TIME, Columns
from aerobee.broker.store.inspect.files import Problem, RestFile, RestStore
from aerobee.protocol.files.index_columns import INDEX_ENTRY_TYPE, SLOT_TYPE
from aerobee.protocol.files.index_layout import (
    COUNT_AT,
    END_OFFSET_AT,
    HEADER,
    HEADER_SIZE,
    INDEX_ENTRY_SIZE,
    SECONDS_MAX,
    SLOT_SIZE,
    USED_SLOTS_AT,
    IndexHeader,
    index_file_size,
)
from aerobee.protocol.files.java_hash import index_hash

DEFAULT_SLOTS: Final = 5_000_000
_EVERYWHERE: Final = 1 << 62
_SAMPLE: Final = 256  # entries checked to find the number of slots
_SEARCH: Final = 4096  # entries that a crash may have left after the header's count


def header_of(file: RestFile) -> IndexHeader:
    if file.size < HEADER_SIZE:
        return IndexHeader(0, 0, 0, 0, 0, 1)
    header = IndexHeader(*HEADER.unpack_from(file.view, 0))
    return header._replace(next_number=max(header.next_number, 1))


def slots_of(store: RestStore) -> dict[int, int]:
    """The number of slots of the index files, by their length; 0 where it is unknown."""
    found: dict[int, int] = {}
    for file in sorted(store.index, key=lambda file: -file.size):  # a kill may leave one short
        if not found.get(file.size):
            found[file.size] = _slots(file, list(found.values()))
    return found


def _slots(file: RestFile, of_others: list[int]) -> int:
    header = header_of(file)
    if header.next_number < 2:
        return 0
    end = _written_end(file)
    words = (file.size - HEADER_SIZE) // SLOT_SIZE
    counted = header.next_number
    cut = range(min(counted - 1, (file.size - HEADER_SIZE) // INDEX_ENTRY_SIZE), 0, -1)

    def candidates() -> Iterator[int]:
        yield from (*of_others, DEFAULT_SLOTS)
        for count in chain(range(counted, counted + _SEARCH), cut[:_SEARCH]):
            # The last entry ends in [end, end + 20): one number of slots fits the file's length.
            least = (end - HEADER_SIZE - count * INDEX_ENTRY_SIZE + SLOT_SIZE - 1) // SLOT_SIZE
            yield least + (words - least) % (INDEX_ENTRY_SIZE // SLOT_SIZE)

    # After a kill the slots may lag behind the entries: use the chains then.
    for by_slots in (True, False):
        for slots in candidates():
            if _fits(file, header, slots, by_slots=by_slots):
                return slots
    return 0


def _fits(file: RestFile, header: IndexHeader, slots: int, *, by_slots: bool) -> bool:
    """Whether most of the first entries are consistent with this number of slots: chained
    accordingly and, `by_slots`, reached from their slots."""
    start = index_file_size(slots, 0)
    if slots <= 0 or (file.size - start) % INDEX_ENTRY_SIZE:
        return False
    count = min(header.next_number, (file.size - start) // INDEX_ENTRY_SIZE)
    if count < 2 or any(file.view[start : start + INDEX_ENTRY_SIZE]):
        return False
    entries = np.frombuffer(file.view, INDEX_ENTRY_TYPE, min(count, _SAMPLE), start)[1:]
    good = (entries["hash"] > 0) & (entries["offset"] >= header.begin_offset)
    if 2 * np.count_nonzero(good) <= len(entries):
        return False
    slot_numbers = np.abs(entries["hash"].astype(np.int64)) % slots
    _, previous = _chains(slot_numbers, slots)
    good &= entries["prev"] == previous
    if by_slots:
        slot_values = np.frombuffer(file.view, SLOT_TYPE, slots, HEADER_SIZE)
        good &= slot_values[slot_numbers] > np.arange(len(entries))
    return bool(2 * np.count_nonzero(good) > len(entries))


def _written_end(file: RestFile) -> int:
    """The end of the last byte that is not zero."""
    end = file.data_end()
    while end > 0:
        start = max(0, end - (1 << 20))
        used = np.flatnonzero(np.frombuffer(file.view, np.uint8, end - start, start))
        if used.size:
            return start + int(used[-1]) + 1
        end = start
    return 0


def entries_of(file: RestFile, slots: int) -> NDArray[Any]:
    """Entries 1.. up to the header's count."""
    start = index_file_size(slots, 1)
    count = min(header_of(file).next_number - 1, (file.size - start) // INDEX_ENTRY_SIZE)
    return np.frombuffer(file.view, INDEX_ENTRY_TYPE, max(count, 0), start)


def find_by_key(store: RestStore, topic: str, key: str) -> Iterator[int]:
    """Physical offsets of records that may have the key, newest first."""
    key_hash = index_hash(topic, key)
    slots_by_size = slots_of(store)
    for file in reversed(store.index):
        slots = slots_by_size[file.size]
        if slots:
            entries = entries_of(file, slots)
            yield from entries["offset"][entries["hash"] == key_hash][::-1].tolist()


def check_index_file(file: RestFile, slots: int, *, torn: bool) -> Iterator[Problem]:
    """Whether header, slots and chains of one file agree with its entries. `torn`: a killed
    broker may have set slots for entries that the header does not count yet, or not yet have set
    those of the last entries, or have cut the file and not its header."""
    header = header_of(file)
    if not slots:
        yield Problem(
            file.path, 0, "its number of slots cannot be determined: the header or first entry"
        )
        return
    entries = entries_of(file, slots)
    start = index_file_size(slots, 1)
    if len(entries) != header.next_number - 1 and not torn:
        yield Problem(
            file.path, COUNT_AT, f"the header counts {header.next_number}, more than there is room"
        )
        return
    slot_values = np.frombuffer(file.view, SLOT_TYPE, slots, HEADER_SIZE).astype(np.int64)
    hashes = entries["hash"].astype(np.int64)
    bad = np.flatnonzero(hashes < 0)
    if bad.size:
        yield _bad_entry(file, start, bad, "a negative hash")
        return
    newest, previous = _chains(hashes % slots, slots)
    bad = np.flatnonzero(entries["prev"] != previous)
    if bad.size:
        number = int(bad[0])
        found, right = int(entries["prev"][number]), int(previous[number])
        yield _bad_entry(file, start, bad, f"it links to {found}, the one before it is {right}")
    right = slot_values == newest
    if torn:
        right |= (slot_values > len(entries)) | _are_behind(slot_values, newest, hashes % slots)
    wrong = np.flatnonzero(~right)
    if wrong.size:
        slot = int(wrong[0])
        text = f"slot {slot} says {int(slot_values[slot])}, its newest entry is {int(newest[slot])}"
        yield Problem(file.path, HEADER_SIZE + slot * SLOT_SIZE, text)
    if torn:
        return
    used = int(np.count_nonzero(newest))
    if used != header.used_slots:
        yield Problem(
            file.path, USED_SLOTS_AT, f"the header says {header.used_slots} used slots of {used}"
        )
    if len(entries) and int(entries["offset"][-1]) != header.end_offset:
        text = f"the header ends at {header.end_offset}, the last entry's record is at "
        yield Problem(file.path, END_OFFSET_AT, text + str(int(entries["offset"][-1])))


def _are_behind(
    slot_values: NDArray[Any], newest: NDArray[Any], slot_numbers: NDArray[Any]
) -> NDArray[Any]:
    """Which slots are empty, or point to an older entry of their own chain."""
    older = (slot_values > 0) & (slot_values < newest)
    behind: NDArray[Any] = slot_values == 0
    behind[older] = slot_numbers[slot_values[older] - 1] == np.flatnonzero(older)
    return behind


def _chains(slot_numbers: NDArray[Any], slots: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """For entries 1..n by their slots: the newest entry of each slot, and each one's previous."""
    count = len(slot_numbers)
    newest = np.zeros(slots, np.int64)
    previous = np.zeros(count, np.int64)
    if count:
        order = np.argsort(slot_numbers, kind="stable")
        same = slot_numbers[order][1:] == slot_numbers[order][:-1]
        previous[order[1:][same]] = order[:-1][same] + 1
        newest[slot_numbers] = np.arange(1, count + 1)  # of equal slots the last wins
    return newest, previous


class KnownKeys:
    """The keys of records for bulk comparison: each offset and hash as one number, the record's
    index and the 31 bits of the hash."""

    def __init__(self, columns: Columns) -> None:
        self.rows, self.keys = columns.rows(), columns.keys()
        self.wanted = self.pairs(self.keys[:, 0], self.keys[:, 1])
        tagged = self.rows[self.rows[:, TAG_HASH] >= 0]
        tags = self.pairs(tagged[:, OFFSET], tagged[:, TAG_HASH])
        self.allowed = np.concatenate((self.wanted, tags))

    def pairs(self, offsets: NDArray[Any], hashes: NDArray[Any]) -> NDArray[Any]:
        """-1: no record at that offset."""
        at, known = self.find(offsets)
        return np.where(known, at << 31 | hashes.astype(np.int64), -1)

    def find(self, offsets: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """The rows of the records at these offsets, and which of them exist."""
        if not len(self.rows):
            return np.zeros(len(offsets), np.int64), np.zeros(len(offsets), bool)
        at = np.searchsorted(self.rows[:, OFFSET], offsets)
        at = np.minimum(at, len(self.rows) - 1)
        return at, self.rows[at, OFFSET] == offsets


def check_keys(
    file: RestFile, slots: int, numbers: range, known: KnownKeys, low: int, high: int
) -> Iterator[Problem]:
    """Whether the entries with these numbers have keys and times of records in this part of the
    log."""
    entries = entries_of(file, slots)[numbers.start - 1 : numbers.stop - 1]
    start = index_file_size(slots, numbers.start)
    inside = (entries["offset"] >= low) & (entries["offset"] < high)
    pairs = known.pairs(entries["offset"], entries["hash"])
    strange = np.flatnonzero(inside & ~np.isin(pairs, known.allowed))
    if strange.size:
        offset, key_hash = (int(entries[name][strange[0]]) for name in ("offset", "hash"))
        text = f"no record at {offset} has a key with hash {key_hash}"
        yield _bad_entry(file, start, strange, text, numbers.start)
    begin = header_of(file).begin_timestamp
    at, found = known.find(entries["offset"])
    if begin <= 0 or not found.any():
        return
    right = np.clip((known.rows[at, TIME] - begin) // 1000, 0, SECONDS_MAX)
    off = found & (np.abs(right - entries["seconds"]) > 1)
    off[: 2 - numbers.start] = False  # the first of a file may be relative to the file before
    wrong = np.flatnonzero(off)
    if wrong.size:
        seconds = int(entries["seconds"][wrong[0]])
        text = f"{seconds} s, its record was stored at {int(right[wrong[0]])}"
        yield _bad_entry(file, start, wrong, text, numbers.start)


def check_lost_keys(
    store: RestStore, slots_by_size: dict[int, int], known: KnownKeys, low: int, high: int
) -> Iterator[Problem]:
    """Whether the keys of the records in this part of the log are in the index."""
    headers = [(file, header_of(file)) for file in store.index if slots_by_size[file.size]]
    headers = [(file, header) for file, header in headers if header.next_number > 1]
    if not headers:
        return
    # After a kill entries that the checkpoint does not cover may be missing.
    until = _EVERYWHERE if store.stopped_cleanly else store.checkpoint.dispatched_offset
    have = [np.empty(0, np.int64)]
    for file, header in headers:
        if header.begin_offset < high and header.end_offset >= low:
            entries = entries_of(file, slots_by_size[file.size])
            have.append(known.pairs(entries["offset"], entries["hash"]))
    begin = min(header.begin_offset for _, header in headers)
    is_there = np.isin(known.wanted, np.concatenate(have))
    offsets = known.keys[:, 0]
    lost = np.flatnonzero((offsets >= begin) & (offsets < until) & ~is_there)
    if lost.size:
        offset, key_hash = known.keys[lost[0]].tolist()
        text = f"a key of the record (hash {key_hash}) is in no index file"
        yield store.problem_at(offset, text)


def _bad_entry(file: RestFile, start: int, bad: NDArray[Any], text: str, first: int = 1) -> Problem:
    """Of the entries that begin at `start` with number `first`."""
    number = int(bad[0])
    place = start + number * INDEX_ENTRY_SIZE
    return Problem(file.path, place, f"index entry {first + number}: {text}")
