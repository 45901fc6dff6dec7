"""A store directory at rest: its log files, its consume queues, and the splits to read them by.

A split is a byte range of one commitlog file. Which records to take from it is read from the
consume queues of the wanted topics (entries in log order), so other topics' records are
never touched and the log is read forward. What the queues do not know (no consume queue folder, or
the last records after a crash) is found by walking the log.
"""

import mmap
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from aerobee.pipeline.source.queue_files import QueueReader
from aerobee.protocol.files.checkpoint import decode_checkpoint
from aerobee.protocol.files.record import NOT_IN_QUEUE
from aerobee.protocol.files.record_layout import (
    BLANK_MAGIC,
    BLANK_SIZE,
    HEAD_V4_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    SIZE_AND_MAGIC,
    CorruptRecord,
    head_part,
    store_timestamp,
)
from aerobee.protocol.files.record_scan import scan_records

SPLIT_BYTES: Final = 128 * 1024 * 1024  # as Spark's own files: starting a Python task costs 30 ms
_HEAD: Final = head_part("size", "magic", "physical_offset")
_TIME_MIN, _TIME_MAX = -(2**63), 2**63 - 1


class StoreError(ValueError):
    """A folder that is not a store, or one that cannot be read as asked."""


def damaged(physical: int, reason: str) -> StoreError:
    text = f"the log is damaged at {physical}: {reason}"
    return StoreError(f"{text}; `aerobee pipeline audit` looks for more")


@dataclass(frozen=True, slots=True)
class Segment:
    """One commitlog file."""

    path: str
    start: int
    size: int

    @property
    def end(self) -> int:
        return self.start + self.size


@dataclass(frozen=True, slots=True)
class Queue:
    """One consume queue's folder."""

    topic: str
    queue_id: int
    folder: str


@dataclass(frozen=True, slots=True)
class Split:
    """The part of a log file that one task reads; with `queues` None it is walked."""

    segment: Segment
    start: int
    end: int
    queues: tuple[Queue, ...] | None
    last: bool = False  # of the newest file, which has no end mark yet


class StoreFiles:
    """The files of the store at `root` (its root folder, or the commitlog folder alone)."""

    def __init__(self, root: str) -> None:
        folder = Path(root)
        if not folder.is_dir():
            raise StoreError(f"{root} is not a folder; give the store's root (storePathRootDir)")
        log = folder / "commitlog" if (folder / "commitlog").is_dir() else folder
        self.root = str(folder)
        self._abort = str(folder / "abort")  # there from a broker's start to its clean stop
        self.segments = _segments(log)
        if not self.segments:
            raise StoreError(
                f"{root} holds no commitlog file (20 digits) in {log}; give the store's root "
                "(storePathRootDir), which has the folders commitlog and consumequeue"
            )
        self.queues = _queues(folder / "consumequeue") if log != folder else []

    @cached_property
    def dispatched_end(self) -> int:
        """The physical offset up to which the consume queues surely know the log.

        After a crash one queue may know more than another, as their files came to the disk. Then
        those entries are sure whose records were stored before the checkpoint's time.
        """
        crashed = os.path.exists(self._abort) and not _is_locked(os.path.join(self.root, "lock"))
        is_sure = self._before_checkpoint if crashed else None
        ends = [QueueReader(queue.folder).last_end(is_sure) for queue in self.queues]
        return max([self.segments[0].start, *ends])

    def _before_checkpoint(self, physical: int) -> bool:
        if physical < self.segments[0].start:
            return True
        held = (one for one in self.segments if one.start <= physical < one.end)
        time_ms = next((store_time(one, physical) for one in held), None)
        return time_ms is not None and time_ms < self._checkpoint_ms

    @cached_property
    def _checkpoint_ms(self) -> int:
        """The store time up to which all queues were on disk when that was last noted."""
        path = Path(self.root) / "checkpoint"
        page = path.read_bytes() if path.is_file() else b""
        return decode_checkpoint(page).logics_msg_timestamp

    def splits(
        self,
        *,
        wanted: Callable[[str], bool],
        start_ms: int | None = None,
        end_ms: int | None = None,
        split_bytes: int = SPLIT_BYTES,
        sealed_only: bool = False,
    ) -> list[Split]:
        """The splits that can hold a wanted message; a file outside the times is left out."""
        segments = [
            segment
            for segment, first_ms, next_ms in self._timed(sealed_only)
            if (end_ms is None or first_ms < end_ms) and (start_ms is None or next_ms >= start_ms)
        ]
        newest = self.newest()
        if not self.queues:
            return [
                Split(segment, segment.start, segment.end, None, segment is newest)
                for segment in segments
            ]
        queues = [queue for queue in self.queues if wanted(queue.topic)]
        known_end = self.dispatched_end
        splits = []
        for segment in segments:
            end = min(segment.end, max(known_end, segment.start))
            splits += _cut_segment(segment, end, queues, split_bytes)
            if end < segment.end and _written_at(segment, end, segment is newest):
                splits.append(Split(segment, end, segment.end, None, segment is newest))
        return splits

    def newest(self) -> Segment:
        """The newest file that was written to; the next one is made ahead of need."""
        return self._written[-1][0] if self._written else self.segments[-1]

    @cached_property
    def _written(self) -> list[tuple[Segment, int | None]]:
        """Each file that was written to, with its first record's time. None: there is no record.
        Before a file with one, or where the queues know of records, that is damage."""
        written = [(segment, first_store_time(segment)) for segment in self.segments]
        while written and written[-1][1] is None and written[-1][0].start >= self.dispatched_end:
            written.pop()
        return written

    def _timed(self, sealed_only: bool) -> list[tuple[Segment, int, int]]:
        """Each file that was written to, with the earliest and the latest time of its records."""
        timed: list[tuple[Segment, int, int]] = []
        latest = _TIME_MAX
        for segment, first in reversed(self._written):
            timed.append((segment, _TIME_MIN if first is None else first, latest))
            latest = latest if first is None else first
        timed.reverse()
        return timed[:-1] if sealed_only else timed


def _is_locked(path: str) -> bool:
    """Whether a broker runs on the store, as far as this machine can tell. The lock is not tried:
    closing the file would take it from a broker in this very process."""
    try:
        return f":{os.stat(path).st_ino} " in Path("/proc/locks").read_text()
    except OSError:
        return False


def _segments(folder: Path) -> list[Segment]:
    found = []
    for entry in os.scandir(folder):
        if len(entry.name) == 20 and entry.name.isdigit() and (size := entry.stat().st_size):
            found.append(Segment(entry.path, int(entry.name), size))
    return sorted(found, key=lambda segment: segment.start)


def _queues(folder: Path) -> list[Queue]:
    if not folder.is_dir():
        return []
    return [
        Queue(topic.name, int(queue.name), queue.path)
        for topic in sorted(os.scandir(folder), key=lambda entry: entry.name)
        if topic.is_dir()
        for queue in sorted(os.scandir(topic.path), key=lambda entry: entry.name)
        if queue.name.isdigit() and queue.is_dir()
    ]


def first_store_time(segment: Segment) -> int | None:
    """When the file's first record was stored; None when it holds none yet."""
    return store_time(segment, segment.start)


def store_time(segment: Segment, physical: int) -> int | None:
    """When the record there was stored; None when there is none."""
    with open(segment.path, "rb") as file:
        file.seek(physical - segment.start)
        head = file.read(HEAD_V4_SIZE)
    if len(head) < HEAD_V4_SIZE:
        return None
    size, magic, stated = _HEAD.unpack_from(head)
    if magic not in (MAGIC_V1, MAGIC_V2) or size <= HEAD_V4_SIZE or stated != physical:
        return None
    return store_timestamp(head)


def _written_at(segment: Segment, physical: int, newest: bool) -> bool:
    """Whether the file has a record there, not its end mark or unwritten space."""
    with open(segment.path, "rb") as file:
        file.seek(physical - segment.start)
        head = file.read(BLANK_SIZE)
    if len(head) < BLANK_SIZE or SIZE_AND_MAGIC.unpack(head)[1] == BLANK_MAGIC:
        return False
    return not newest or any(head)


def _cut_segment(
    segment: Segment, end: int, queues: Iterable[Queue], split_bytes: int
) -> list[Split]:
    """The file up to `end` in parts of up to `split_bytes`; parts without an entry are left out.

    Their number is a power of two, so that 2, 4 or 8 cores finish at the same time.
    """
    present = [
        (queue, reader)
        for queue in queues
        if (reader := QueueReader(queue.folder)).any_between(segment.start, end)
    ]
    if not present:
        return []
    parts = 1 << (max(1, -(-(end - segment.start) // split_bytes)) - 1).bit_length()
    bounds = [segment.start + (end - segment.start) * n // parts for n in range(parts + 1)]
    splits = []
    for low, high in pairwise(bounds):
        held = tuple(queue for queue, reader in present if reader.any_between(low, high))
        if held:
            splits.append(Split(segment, low, high, held))
    return splits


def map_file(segment: Segment) -> Any:
    """The file's bytes as a numpy array over a read-only map."""
    with open(segment.path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return np.frombuffer(mapped, np.uint8)


def walk(data: Any, start: int, base: int, *, last_file: bool) -> list[int]:
    """Positions of the visible records from `start` on; `base` is the log offset of data[0].

    The walk ends at a blank record or at the end of what was written. Where a file that others
    follow breaks off otherwise, that is an error: nothing is skipped in silence.
    """
    view = memoryview(data)
    positions: list[int] = []
    try:
        for record in scan_records(view, base, start, len(view), check_crc=True):
            if not record.sys_flag & NOT_IN_QUEUE:
                positions.append(record.physical_offset - base)
    except CorruptRecord as error:
        if not last_file:
            raise damaged(error.position, error.reason) from None
    return positions
