"""Whether every record, queue entry and index entry of a directory at rest agree.

The log is walked once, with checksums; what it says of queues and keys becomes columns of numbers,
and queues and index are held against the columns in bulk.

After a stop that was not clean the newest records may have no entries yet: the next start adds
them, so that alone is no problem. Everything else is one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aerobee.broker.store.consume_queue_ext import ADDRESS_MAX
from aerobee.broker.store.index_file import ENTRY_SIZE as INDEX_ENTRY_SIZE
from aerobee.broker.store.index_file import HEADER_SIZE, SLOT_SIZE
from aerobee.broker.store.inspect_columns import Columns
from aerobee.broker.store.inspect_files import (
    BLANK_ENTRY_SIZE,
    ENTRY_TYPE,
    Problem,
    QueueKey,
    RestFile,
    RestStore,
    Tell,
    queue_entries,
    queue_offsets,
    walk_log,
)
from aerobee.broker.store.inspect_index import (
    check_index_file,
    entries_of,
    header_of,
    slots_of,
)
from aerobee.broker.store.recovery_queue import LIGHT
from aerobee.broker.store.scan import NOTHING_HERE, check_record
from aerobee.broker.store.settings import SCHEDULE_TOPIC
from aerobee.protocol.record import CorruptRecord

_UNIT: Final = struct.Struct(">hq")


@dataclass(slots=True)
class Report:
    """What was looked at and what was wrong with it, in the order of the log, queues, index."""

    records: int = 0
    queue_entries: int = 0
    index_entries: int = 0
    log_begin: int = 0
    log_end: int = 0
    stopped_cleanly: bool = True
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def verify(store: RestStore, tell: Tell) -> Report:
    report = Report(stopped_cleanly=store.stopped_cleanly, problems=list(store.problems))
    report.notes += store.notes
    if not store.stopped_cleanly:
        report.notes.append("the last stop was not clean: the next start checks and mends the end")
    entries = {key: queue_entries(files) for key, files in store.queues.items()}
    columns = _walk(store, entries, report, tell)
    rows = columns.rows()
    report.records = len(rows)
    report.log_begin = store.log[0].start if store.log else 0
    report.log_end = int(rows[-1, 0] + rows[-1, 1]) if len(rows) else report.log_begin
    report.problems += _check_queues(store, entries, columns, rows, report)
    report.problems += _check_index(store, columns.keys(), rows, report)
    return report


# -- the log


def _walk(
    store: RestStore, entries: dict[QueueKey, NDArray[Any]], report: Report, tell: Tell
) -> Columns:
    known = [each["offset"][_is_entry(each)] for each in entries.values()]
    starts = np.unique(np.concatenate(known)) if known else np.empty(0, np.int64)
    columns = Columns()

    def on_damage(file: RestFile, error: CorruptRecord) -> int | None:
        after = starts[np.searchsorted(starts, error.position, side="right") :]
        goes_on = next(
            (int(offset) for offset in after.tolist() if _is_record(store, int(offset))), None
        )
        if goes_on is None:
            goes_on = _next_file(store, error.position)
        expected = error.position < store.checkpoint.dispatched_offset
        at_entry = bool(np.any(starts == error.position))
        if goes_on is not None or expected or at_entry:
            position = error.position - file.start
            report.problems.append(Problem(file.path, position, f"record: {error.reason}"))
        elif error.reason != NOTHING_HERE:
            report.notes.append(
                f"the log ends at {error.position}, before bytes that are no record "
                f"({error.reason}); nothing points to them"
            )
        return goes_on

    for file, record in walk_log(store, on_damage, tell):
        columns.add(file, record)
    return columns


def _is_entry(entries: NDArray[Any]) -> NDArray[Any]:
    found: NDArray[Any] = (entries["size"] > 0) & (entries["size"] != BLANK_ENTRY_SIZE)
    return found


def _is_record(store: RestStore, offset: int) -> bool:
    file = store.log_file(offset)
    if file is None:
        return False
    try:
        check_record(file.view, file.start, offset - file.start, file.end - offset, True)
    except CorruptRecord:
        return False
    return True


def _next_file(store: RestStore, offset: int) -> int | None:
    """The start of the next file that begins with a record."""
    starts = [file.start for file in store.log if file.start > offset]
    return next((start for start in starts if _is_record(store, start)), None)


# -- queues


def _check_queues(
    store: RestStore,
    entries: dict[QueueKey, NDArray[Any]],
    columns: Columns,
    rows: NDArray[Any],
    report: Report,
) -> Iterator[Problem]:
    order = np.argsort(rows[:, 2], kind="stable") if len(rows) else np.empty(0, np.int64)
    numbers = columns.queues()
    bounds = np.searchsorted(rows[order, 2], np.arange(len(numbers) + 1))
    nothing = rows[:0]
    for key, files in sorted(store.queues.items()):
        number = numbers.pop(key, None)
        if number is None and key[0].startswith(LIGHT):
            report.notes.append(f"{key[0]} is a light queue of RocketMQ: not checked")
            continue
        mine = rows[order[bounds[number] : bounds[number + 1]]] if number is not None else nothing
        yield from _check_queue(store, key, files, entries[key], _last_life(mine), report)
    without = sorted({topic for topic, _ in numbers} - {topic for topic, _ in store.queues})
    if without:
        text = "no queues for records of " + ", ".join(without)
        report.notes.append(f"{text}: their topics were deleted, or they were never dispatched")


def _last_life(rows: NDArray[Any]) -> NDArray[Any]:
    """The records that have queue offsets, since the queue last began anew (a deleted topic)."""
    rows = rows[rows[:, 3] >= 0]
    again = np.flatnonzero(rows[1:, 3] <= rows[:-1, 3])
    return rows[again[-1] + 1 :] if again.size else rows


def _check_queue(
    store: RestStore,
    key: QueueKey,
    files: list[RestFile],
    entries: NDArray[Any],
    rows: NDArray[Any],
    report: Report,
) -> Iterator[Problem]:
    places = queue_offsets(files)
    used = entries["size"] > 0
    end = int(np.flatnonzero(~used)[0]) if not used.all() else len(entries)
    report.queue_entries += int(np.count_nonzero(_is_entry(entries[:end])))

    first = files[0].start // ENTRY_TYPE.itemsize if files else 0
    after = int(places[end - 1]) + 1 if end else first

    def bad(number: int, text: str) -> Problem:
        place = int(places[number])
        file = next(f for f in files if f.start <= place * ENTRY_TYPE.itemsize < f.end)
        position = place * ENTRY_TYPE.itemsize - file.start
        return Problem(file.path, position, f"queue entry {place}: {text}")

    behind = np.flatnonzero(used[end:] | (entries["offset"][end:] != 0))
    if behind.size:
        yield bad(end + int(behind[0]), f"it stands behind the queue's end at {after}")
    lowest = store.log[0].start if store.log else 0
    live = _is_entry(entries[:end]) & (entries["offset"][:end] >= lowest)
    expected = np.full(end, -1, np.int64)
    inside = rows[np.isin(rows[:, 3], places[:end])]
    expected[np.searchsorted(places[:end], inside[:, 3])] = np.arange(len(inside))
    none = np.flatnonzero(live & (expected < 0))
    if none.size:
        number = int(none[0])
        offset = int(entries["offset"][number])
        yield bad(number, f"the log has no record with its number; it points to {offset}")
    check = live & (expected >= 0)
    right = inside[expected[check]]
    for name, column in (("offset", 0), ("size", 1)):
        wrong = np.flatnonzero(entries[name][:end][check] != right[:, column])
        if wrong.size:
            number = int(np.flatnonzero(check)[wrong[0]])
            found = int(entries[name][number])
            yield bad(number, f"{name} {found}, the record has {int(right[wrong[0], column])}")
    wrong_codes = _wrong_codes(store, key, entries["code"][:end][check], right)
    if wrong_codes.size:
        number = int(np.flatnonzero(check)[wrong_codes[0]])
        wanted = int(right[wrong_codes[0], 4])
        yield bad(number, f"tags code {int(entries['code'][number])}, the record's is {wanted}")
    yield from _missing(store, key, rows, places[:end][live], after)


def _wrong_codes(
    store: RestStore, key: QueueKey, codes: NDArray[Any], right: NDArray[Any]
) -> NDArray[Any]:
    if key[0] == SCHEDULE_TOPIC:  # a deliver time, by levels that only the broker's settings know
        return np.flatnonzero((codes != right[:, 4]) & (codes < right[:, 5]))
    codes = codes.astype(np.int64)
    for number in np.flatnonzero(codes <= ADDRESS_MAX).tolist():
        codes[number] = _code_of_unit(store, key, int(codes[number]) + (1 << 63))
    return np.flatnonzero(codes != right[:, 4])


def _code_of_unit(store: RestStore, key: QueueKey, address: int) -> int:
    """The tags code of a unit of consumequeue_ext; an impossible one when it is not there."""
    for file in store.units.get(key, []):
        if file.start <= address and address + _UNIT.size <= file.end:
            return int(_UNIT.unpack_from(file.view, address - file.start)[1])
    return ADDRESS_MAX


def _missing(
    store: RestStore, key: QueueKey, rows: NDArray[Any], live: NDArray[Any], end: int
) -> Iterator[Problem]:
    """Records that should have an entry and have none."""
    first = int(live[0]) if live.size else end
    wanted = rows[(rows[:, 3] >= first) & ~np.isin(rows[:, 3], live)]
    if not store.stopped_cleanly:
        wanted = wanted[wanted[:, 3] < end]
    if len(wanted):
        offset = int(wanted[0, 0])
        file = store.log_file(offset)
        assert file is not None
        text = f"the record has no entry {int(wanted[0, 3])} in queue {key[0]}/{key[1]}"
        yield Problem(file.path, offset - file.start, text)


# -- index


def _check_index(
    store: RestStore, keys: NDArray[Any], rows: NDArray[Any], report: Report
) -> Iterator[Problem]:
    slots_by_size = slots_of(store)
    lowest = store.log[0].start if store.log else 0
    wanted = _pairs(keys[:, 0], keys[:, 1], rows)
    allowed = np.concatenate((wanted, _pairs(rows[:, 0], rows[:, 6], rows)))
    found = [np.empty(0, np.int64)]
    begins = []
    for file in store.index:
        header = header_of(file)
        if header.next_number < 2:
            continue
        slots = slots_by_size[file.size]
        yield from check_index_file(file, slots, torn=not store.stopped_cleanly)
        if not slots:
            continue
        entries = entries_of(file, slots)
        report.index_entries += len(entries)
        pairs = _pairs(entries["offset"], entries["hash"], rows)
        strange = np.flatnonzero((entries["offset"] >= lowest) & ~np.isin(pairs, allowed))
        start = HEADER_SIZE + slots * SLOT_SIZE + INDEX_ENTRY_SIZE
        if strange.size:
            number = int(strange[0])
            offset, key_hash = int(entries["offset"][number]), int(entries["hash"][number])
            text = f"no record at {offset} has a key with hash {key_hash}"
            place = start + number * INDEX_ENTRY_SIZE
            yield Problem(file.path, place, f"index entry {number + 1}: {text}")
        yield from _check_times(file, header.begin_timestamp, entries, rows, start)
        begins.append(header.begin_offset)
        found.append(pairs)
    if begins and store.stopped_cleanly:
        have = np.concatenate(found)
        lost = np.flatnonzero((keys[:, 0] >= min(begins)) & ~np.isin(wanted, have))
        if lost.size:
            offset = int(keys[lost[0], 0])
            log_file = store.log_file(offset)
            assert log_file is not None
            text = f"a key of the record (hash {int(keys[lost[0], 1])}) is in no index file"
            yield Problem(log_file.path, offset - log_file.start, text)


def _check_times(
    file: RestFile, begin: int, entries: NDArray[Any], rows: NDArray[Any], start: int
) -> Iterator[Problem]:
    """The seconds of each entry; the first of a file may count from the file before it."""
    at = np.searchsorted(rows[:, 0], entries["offset"])
    at = np.minimum(at, max(len(rows) - 1, 0))
    known = rows[at, 0] == entries["offset"] if len(rows) else np.zeros(len(entries), bool)
    if begin <= 0 or not known.any():
        return
    right = np.clip((rows[at, 5] - begin) // 1000, 0, 0x7FFFFFFF)
    off = np.flatnonzero(known[1:] & (np.abs(right[1:] - entries["seconds"][1:]) > 1))
    if off.size:
        number = int(off[0]) + 1
        text = f"{int(entries['seconds'][number])} s, its record was stored at {int(right[number])}"
        place = start + number * INDEX_ENTRY_SIZE
        yield Problem(file.path, place, f"index entry {number + 1}: {text}")


def _pairs(offsets: NDArray[Any], hashes: NDArray[Any], rows: NDArray[Any]) -> NDArray[Any]:
    """Each offset and hash as one number, to be compared in bulk: the record's place in the log,
    counted in records, and the 31 bits of the hash. -1: no record stands there."""
    if not len(rows):
        return np.full(len(offsets), -1, np.int64)
    offsets = offsets.astype(np.int64)
    at = np.minimum(np.searchsorted(rows[:, 0], offsets), len(rows) - 1)
    return np.where(rows[at, 0] == offsets, at << 31 | hashes.astype(np.int64), -1)
