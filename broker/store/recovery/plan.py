"""Decides what a start has to do, from facts alone: no file is accessed here.

    abort  commitlog   checkpoint              scan the log from            queues, index
    -----  ----------  ----------------------  ---------------------------  ---------------------
    any    no file     any                     -                            all removed
    no     files       ours, offset in a file  the file with that offset    kept; what the log has
    no     files       times only              the third-last file          beyond them is added
    yes    files       ours, offset in a file  the file with that offset    rebuilt from the offset
    yes    files       times only              the newest file that begins  rebuilt from that file
                                               at or before them (less 3 s)
    yes    files       no file begins before   the first file               rebuilt from it

"Ours": the page has our checksum, so RocketMQ has not written it since; its offset is the end of a
record below which log, queues and index are known to be on disk. If the log's first files were
removed since, its beginning is used instead. An invalid record below the offset is damage, not a
torn tail: it is reported, and what follows it is kept.

Index files later than the checkpoint are dropped, or cut where the checkpoint counts their
entries; when one is dropped the log is dispatched from where that file begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from aerobee.protocol.files.checkpoint import StoreCheckpoint

MARGIN_MS: Final = 3000
NORMAL_FILES: Final = 3


class Mode(Enum):
    EMPTY = auto()
    NORMAL = auto()
    ABNORMAL = auto()


@dataclass(frozen=True, slots=True)
class LogFileFacts:
    start: int
    # Store time of its first record; 0: there is no valid one, or `needs_times` says no.
    first_timestamp: int


@dataclass(frozen=True, slots=True)
class IndexFileFacts:
    number: int
    begin_offset: int
    end_timestamp: int
    count: int


@dataclass(frozen=True, slots=True)
class RecoveryFacts:
    clean: bool  # the last exit removed `abort`
    file_size: int
    files: tuple[LogFileFacts, ...]
    checkpoint: StoreCheckpoint
    index_files: tuple[IndexFileFacts, ...] = ()
    index_safe: bool = False  # use the checkpoint's index time for the log's start, too


@dataclass(frozen=True, slots=True)
class Plan:
    mode: Mode
    reason: str
    scan_from: int = 0  # the log is checked from here, a file's start
    durable_to: int = -1  # an invalid record below is damage; -1: the log ends there
    dispatch_from: int = -1  # dispatch records from here again; -1: from the queues' end
    rebuild_queues_from: int = -1  # drop entries of records from here first; -1: none
    drop_index: tuple[int, ...] = ()  # numbers of index files
    cut_index: tuple[int, int] | None = None  # number of an index file, entries to keep at most


def needs_times(clean: bool, checkpoint: StoreCheckpoint, log_end: int) -> bool:
    """Whether the plan depends on the files' first store times. To read them takes a page of every
    file, and of a long log few are in memory."""
    return not clean and not _is_ours(checkpoint, log_end)


def _is_ours(checkpoint: StoreCheckpoint, log_end: int) -> bool:
    return 0 <= checkpoint.dispatched_offset <= log_end


def plan_recovery(facts: RecoveryFacts) -> Plan:
    if not facts.files:
        return Plan(
            Mode.EMPTY,
            "the commitlog is empty",
            drop_index=tuple(file.number for file in facts.index_files),
        )
    offset = facts.checkpoint.dispatched_offset
    is_ours = _is_ours(facts.checkpoint, facts.files[-1].start + facts.file_size)
    offset = max(offset, facts.files[0].start)  # files may have been removed since the checkpoint
    if facts.clean:
        if is_ours:
            start, durable_to = _file_with(facts, offset), offset
        else:
            start, durable_to = facts.files[max(0, len(facts.files) - NORMAL_FILES)].start, -1
        return Plan(Mode.NORMAL, "the last stop was clean", scan_from=start, durable_to=durable_to)
    return _from_offset(facts, offset) if is_ours else _from_times(facts)


def _file_with(facts: RecoveryFacts, offset: int) -> int:
    return max(file.start for file in facts.files if file.start <= offset)


def _from_offset(facts: RecoveryFacts, offset: int) -> Plan:
    """Our own checkpoint: all below `offset` is on disk, in log, queues and index."""
    newest = facts.checkpoint.index_file
    return Plan(
        Mode.ABNORMAL,
        f"the last stop was not clean; the checkpoint covers the log below {offset}",
        scan_from=_file_with(facts, offset),
        durable_to=offset,
        dispatch_from=offset,
        rebuild_queues_from=offset,
        drop_index=tuple(file.number for file in facts.index_files if file.number > newest),
        cut_index=(newest, facts.checkpoint.index_count)
        if any(file.number == newest for file in facts.index_files)
        else None,
    )


def _from_times(facts: RecoveryFacts) -> Plan:
    """A checkpoint of times, as RocketMQ writes it."""
    point = facts.checkpoint
    times = [point.physic_msg_timestamp, point.logics_msg_timestamp]
    if facts.index_safe:
        times.append(point.index_msg_timestamp)
    limit = min(times) - MARGIN_MS
    before = [file.start for file in facts.files if 0 < file.first_timestamp <= limit]
    start = before[-1] if before else facts.files[0].start
    dropped = [file for file in facts.index_files if file.end_timestamp > point.index_msg_timestamp]
    index_from = min((file.begin_offset for file in dropped), default=start)
    scan_from = max(
        (file.start for file in facts.files if file.start <= min(start, index_from)),
        default=facts.files[0].start,
    )
    return Plan(
        Mode.ABNORMAL,
        f"the last stop was not clean; the checkpoint's time is {limit + MARGIN_MS}"
        + ("" if before else ", no file begins before it"),
        scan_from=scan_from,
        dispatch_from=scan_from,
        rebuild_queues_from=start,
        drop_index=tuple(file.number for file in dropped),
    )
