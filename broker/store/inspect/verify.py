"""Checks every record, queue entry and index entry of an offline directory against each other.

The queue offsets and keys of records become columns of numbers, and queues and index are compared
with these columns in bulk. `verify` scans the log once, with checksums, for everything.
`verify_part` checks one log file, queue or index file and reads the records that it needs for that,
so that many processes can share a directory.

After an unclean stop the newest records may have no entries yet: the next start adds them, so that
is not reported as a problem. Everything else is.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aerobee.broker.store.inspect.columns import OFFSET, Columns
from aerobee.broker.store.inspect.files import (
    Problem,
    QueueKey,
    ReportProgress,
    RestFile,
    RestStore,
    log_end,
    record_at,
    walk_log,
)
from aerobee.broker.store.inspect.index import (
    KnownKeys,
    check_index_file,
    check_keys,
    check_lost_keys,
    entries_of,
    header_of,
    slots_of,
)
from aerobee.broker.store.inspect.queue import (
    RestQueue,
    check_end,
    check_entries,
    check_missing,
    files_between,
)
from aerobee.broker.store.recovery.queue_end import LIGHT
from aerobee.protocol.files.index_layout import BEGIN_TIME_AT, END_TIME_AT
from aerobee.protocol.files.queue_entry_columns import is_entry
from aerobee.protocol.files.record_layout import CorruptRecord
from aerobee.protocol.files.record_scan import NOTHING_HERE, check_record

PIECE: Final = 500_000  # entries checked together
_EVERYWHERE: Final = 1 << 62


@dataclass(slots=True)
class Report:
    """What was checked and the problems found: log, queues, index."""

    records: int = 0
    queue_entries: int = 0
    index_entries: int = 0
    log_begin: int = 0
    log_end: int = 0
    stopped_cleanly: bool = True
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Part(NamedTuple):
    """A unit that can be verified on its own."""

    kind: str  # "folder": names and lengths of all files; "log", "queue", "index"
    path: str
    number: int = 0  # of the log or index file
    queue: QueueKey = ("", 0)


def verify(store: RestStore, report_progress: ReportProgress) -> Report:
    """Verify the whole directory."""
    report = Report(stopped_cleanly=store.stopped_cleanly, problems=list(store.problems))
    report.notes += store.notes
    if not store.stopped_cleanly:
        report.notes.append("the last stop was not clean: the next start repairs the end")
    columns = _walk(store, store.log, report, report_progress)
    rows = columns.rows()
    report.log_begin = store.log_begin
    report.log_end = int(rows[-1, 0] + rows[-1, 1]) if len(rows) else report.log_begin
    records = columns.by_queue()
    for key in sorted(store.queues):
        queue, mine = RestQueue(store, key), records.pop(key, rows[:0])
        report.problems += _check_queue(store, queue, [(np.flatnonzero(queue.live), mine)], report)
        report.problems += check_missing(store, queue, mine)
    report.problems += _check_queueless(store, records, report)
    keys = KnownKeys(columns)
    slots_by_size = slots_of(store)
    for file in store.index:
        slots = slots_by_size[file.size]
        everything = range(1, len(entries_of(file, slots)) + 1) if slots else range(0)
        report.problems += _check_index(store, file, slots, [(everything, keys)], report)
    report.problems += check_lost_keys(store, slots_by_size, keys, 0, report.log_end)
    return report


def parts_of(store: RestStore) -> list[Part]:
    """All parts of a directory for `verify_part`."""
    parts = [Part("folder", store.root)]
    parts += [Part("log", file.path, number) for number, file in enumerate(store.log)]
    parts += [
        Part("queue", os.path.dirname(files[0].path), queue=key)
        for key, files in sorted(store.queues.items())
        if files
    ]
    return parts + [Part("index", file.path, number) for number, file in enumerate(store.index)]


def verify_part(store: RestStore, part: Part) -> Report:
    """The same, for one part."""
    report = Report(stopped_cleanly=store.stopped_cleanly)
    if part.kind == "folder":
        report.problems += store.problems
    elif part.kind == "log":
        _verify_log_file(store, store.log[part.number], report)
    elif part.kind == "queue":
        queue = RestQueue(store, part.queue)
        pieces = _pieces(np.flatnonzero(queue.live))
        records = (_read_records(store, queue.entries["offset"][which]) for which in pieces)
        nothing = Columns().rows()
        rows = (columns.by_queue().get(part.queue, nothing) for columns in records)
        report.problems += _check_queue(store, queue, zip(pieces, rows, strict=True), report)
    else:
        file = store.index[part.number]
        slots = slots_of(store)[file.size]
        if not store.stopped_cleanly:
            report.log_end = log_end(store)
        report.problems += _check_index(store, file, slots, _known_keys(store, file, slots), report)
    return report


def _verify_log_file(store: RestStore, file: RestFile, report: Report) -> None:
    columns = _walk(store, [file], report, lambda _: None)
    records = columns.by_queue()
    for key in records.keys() & store.queues.keys():
        files = files_between(store.queues[key], file.start, file.end)
        report.problems += check_missing(store, RestQueue(store, key, files), records.pop(key))
    report.problems += _check_queueless(store, records, report)
    keys = KnownKeys(columns)
    report.problems += check_lost_keys(store, slots_of(store), keys, file.start, file.end)


def _read_records(store: RestStore, offsets: NDArray[Any]) -> Columns:
    """The records at these offsets, where there is one."""
    columns = Columns()
    for offset in np.unique(offsets).tolist():
        if found := record_at(store, offset):
            columns.add(*found)
    return columns


def _pieces(numbers: NDArray[Any]) -> list[NDArray[Any]]:
    return [numbers[start : start + PIECE] for start in range(0, len(numbers), PIECE)]


# -- the log


def _walk(
    store: RestStore, files: list[RestFile], report: Report, report_progress: ReportProgress
) -> Columns:
    columns = Columns()
    known: list[NDArray[Any]] = []  # offsets that queues point to; loaded when there is damage

    def on_damage(file: RestFile, error: CorruptRecord) -> int | None:
        if not known:
            known.append(_pointed_at(store))
        starts = known[0]
        after = starts[np.searchsorted(starts, error.position, side="right") :]
        goes_on = next((offset for offset in after.tolist() if _is_record(store, offset)), None)
        if goes_on is None:
            goes_on = _next_file(store, error.position)
        expected = error.position < store.checkpoint.dispatched_offset
        if goes_on is not None or expected or bool(np.any(starts == error.position)):
            position = error.position - file.start
            report.problems.append(Problem(file.path, position, f"record: {error.reason}"))
        elif error.reason != NOTHING_HERE:
            report.notes.append(
                f"the log ends at {error.position}, before bytes that are not a record "
                f"({error.reason}); nothing points to them"
            )
        return goes_on

    for file, record in walk_log(store, on_damage, report_progress, files=files):
        columns.add(file, record)
    report.records = len(columns.rows())
    return columns


def _pointed_at(store: RestStore) -> NDArray[Any]:
    found = [np.empty(0, np.int64)]
    for key in store.queues:
        entries = RestQueue(store, key).entries
        found.append(entries["offset"][is_entry(entries)].astype(np.int64))
    return np.unique(np.concatenate(found))


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


def _check_queue(
    store: RestStore,
    queue: RestQueue,
    pieces: Iterable[tuple[NDArray[Any], NDArray[Any]]],
    report: Report,
) -> Iterator[Problem]:
    """`pieces`: numbers of entries, and the records of the queue to compare them with."""
    topic = queue.key[0]
    if topic.startswith(LIGHT):
        report.notes.append(f"{topic} is a light queue of RocketMQ: not checked")
        return
    report.queue_entries += int(np.count_nonzero(is_entry(queue.entries[: queue.end])))
    yield from check_end(queue)
    for which, rows in pieces:
        yield from check_entries(store, queue, which, rows)


def _check_queueless(
    store: RestStore, records: dict[QueueKey, NDArray[Any]], report: Report
) -> Iterator[Problem]:
    """Records without a queue: removed with its topic, or lost."""
    with_queues = {topic for topic, _ in store.queues}
    without = sorted({topic for topic, _ in records} - with_queues - store.topics)
    if without:
        text = "no queues for records of " + ", ".join(without)
        report.notes.append(f"{text}: their topics were deleted, or they were never dispatched")
    for (topic, queue_id), rows in sorted(records.items(), key=lambda item: item[0]):
        if topic in store.topics:
            others = (RestQueue(store, key) for key in store.queues if key[0] == topic)
            made_anew = min((queue.live_begin for queue in others), default=0)
            rows = rows[rows[:, OFFSET] >= made_anew]
            yield from check_missing(store, RestQueue(store, (topic, queue_id)), rows)


# -- index


def _check_index(
    store: RestStore,
    file: RestFile,
    slots: int,
    pieces: Iterable[tuple[range, KnownKeys]],
    report: Report,
) -> Iterator[Problem]:
    """`pieces`: numbers of entries, and the keys of the records to compare them with."""
    if header_of(file).next_number < 2:
        return
    yield from check_index_file(
        file, slots, torn=not store.stopped_cleanly and not _vouched(store, file)
    )
    yield from _check_times(store, file)
    # After a kill the index may have entries of records that the log has lost.
    end = _EVERYWHERE if store.stopped_cleanly else report.log_end
    for numbers, keys in pieces if slots else ():
        report.index_entries += len(numbers)
        yield from check_keys(file, slots, numbers, keys, store.log_begin, end)


def _check_times(store: RestStore, file: RestFile) -> Iterator[Problem]:
    """A query skips a file by the times in its header."""
    header = header_of(file)
    first, last = (record_at(store, offset) for offset in (header.begin_offset, header.end_offset))
    if first is not None and first[1].store_timestamp != header.begin_timestamp:
        text = f"begins at {header.begin_timestamp} ms, its record at {first[1].store_timestamp}"
        yield Problem(file.path, BEGIN_TIME_AT, f"the header {text}")
    # A cut file has its end to the second; after the clock was set back it may be later.
    if last is not None and last[1].store_timestamp > header.end_timestamp + 999:
        text = f"ends at {header.end_timestamp} ms, its record at {last[1].store_timestamp}"
        yield Problem(file.path, END_TIME_AT, f"the header {text}")


def _vouched(store: RestStore, file: RestFile) -> bool:
    """Whether the last checkpoint covers all of an index file. A start drops the entries from the
    dispatched offset on and writes them again: those are not covered."""
    number, checkpoint = int(os.path.basename(file.path)), store.checkpoint
    header = header_of(file)
    if number > checkpoint.index_file or header.end_offset >= checkpoint.dispatched_offset:
        return False
    return number < checkpoint.index_file or header.next_number <= checkpoint.index_count


def _known_keys(store: RestStore, file: RestFile, slots: int) -> Iterator[tuple[range, KnownKeys]]:
    offsets = entries_of(file, slots)["offset"]
    for which in _pieces(np.arange(len(offsets))):
        numbers = range(int(which[0]) + 1, int(which[-1]) + 2)
        yield numbers, KnownKeys(_read_records(store, offsets[which]))
