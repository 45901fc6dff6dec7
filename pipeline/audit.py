"""Checks a store's files: every record, every queue entry, every index entry, and that they agree.

`audit_parts` cuts a store into parts that are checked on their own, so Spark (or any pool) can
check them side by side; `check_part` gives a part's counts and findings.
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from aerobee.pipeline.config_files import read_config
from aerobee.pipeline.queue_files import BLANK_ENTRY_SIZE, ENTRY
from aerobee.pipeline.store_files import Queue, Segment, StoreFiles, map_file
from aerobee.protocol import properties
from aerobee.protocol.java_hash import index_hash, tags_code
from aerobee.protocol.record import (
    BLANK_MAGIC,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NONE,
    CorruptRecord,
    StoredMessage,
    decode_record,
)

FINDINGS_MAX: Final = 1000  # per part: a lost file need not be told record by record
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
_INDEX_HEADER: Final = struct.Struct(">qqqqii")
_INDEX_ENTRY: Final = np.dtype([("hash", ">i4"), ("physical", ">i8"), ("s", ">i4"), ("p", ">i4")])
_SLOT_SIZE: Final = 4
DEFAULT_SLOTS: Final = 5_000_000


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong."""

    store: str
    file: str
    position: int
    problem: str


@dataclass(frozen=True, slots=True)
class Part:
    """What one task checks: a log file, a consume queue or an index file."""

    store: str
    kind: str  # "log", "queue" or "index"
    path: str
    segments: tuple[Segment, ...]
    queue: Queue | None = None
    segment: Segment | None = None
    newest: bool = False


@dataclass(slots=True)
class Report:
    """What a part held, and what was wrong with it."""

    store: str
    kind: str
    path: str
    checked: int = 0
    bytes: int = 0
    findings: list[Finding] = field(default_factory=list)

    def note(self, position: int, problem: str) -> None:
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(Finding(self.store, self.path, position, problem))


def audit_parts(store: str) -> list[Part]:
    """All parts of the store at rest."""
    files = StoreFiles(store)
    segments = tuple(files.segments)
    newest = files.newest()
    parts = [
        Part(store, "log", one.path, segments, segment=one, newest=one is newest)
        for one in segments
        if one.start <= newest.start  # the next file is made ahead of need
    ]
    parts += [Part(store, "queue", q.folder, segments, queue=q) for q in files.queues]
    index = os.path.join(store, "index")
    if os.path.isdir(index):
        parts += [Part(store, "index", entry.path, segments) for entry in os.scandir(index)]
    return parts


def check_part(part: Part) -> Report:
    report = Report(part.store, part.kind, part.path)
    {"log": _check_log, "queue": _check_queue, "index": _check_index}[part.kind](part, report)
    return report


# --- the log: sizes, magics, offsets, checksums; each visible record has its queue entry


def _check_log(part: Part, report: Report) -> None:
    segment = part.segment
    assert segment is not None
    queues = _QueueEntries(part.store)
    for message in _walk(segment, report, part.newest):
        report.checked += 1
        report.bytes += message.size
        if message.sys_flag & TRANSACTION_MASK in (TRANSACTION_NONE, TRANSACTION_COMMIT):
            problem = queues.disagreement(message)
            if problem:
                report.note(message.physical_offset, problem)


def _walk(segment: Segment, report: Report, newest: bool) -> Iterator[StoredMessage]:
    view = memoryview(map_file(segment))
    at = 0
    while at + 8 <= len(view):
        size, magic = struct.unpack_from(">ii", view, at)
        if magic == BLANK_MAGIC:
            if size != len(view) - at:
                report.note(segment.start + at, f"a blank record says {size} bytes are left")
            return
        if newest and size == 0 and magic == 0:
            return
        try:
            message = decode_record(view, at, check=True)
        except CorruptRecord as error:
            report.note(segment.start + at, error.reason)
            at = _next_record(view, at, segment)
            continue
        if message.physical_offset != segment.start + at:
            report.note(segment.start + at, f"it says it stands at {message.physical_offset}")
            if newest:
                return  # left over from an earlier life of the file
        yield message
        at += message.size


def _next_record(view: memoryview, at: int, segment: Segment) -> int:
    """After damage: by the damaged record's size if a record stands there, else by looking on."""
    size: int = struct.unpack_from(">i", view, at)[0]
    if 0 < size <= len(view) - at and _stands(view, at + size, segment):
        return at + size
    data = np.frombuffer(view, np.uint8)
    first = np.flatnonzero(data[at + 1 :] == 0xDA)  # the first byte of a record's magic
    for offset in first:
        start = at + 1 + int(offset) - 4
        if start > at and _stands(view, start, segment):
            return start
    return len(view)


def _stands(view: memoryview, at: int, segment: Segment) -> bool:
    if at + 36 > len(view):
        return at == len(view)
    size, magic = struct.unpack_from(">ii", view, at)
    if magic == BLANK_MAGIC:
        return bool(size == len(view) - at)
    (physical,) = struct.unpack_from(">q", view, at + 28)
    return bool(physical == segment.start + at)


class _QueueEntries:
    """The entries of all queues of a store, by topic, queue and queue offset."""

    def __init__(self, store: str) -> None:
        self._root = os.path.join(store, "consumequeue")
        self._present = os.path.isdir(self._root)
        self._files: dict[tuple[str, int], list[tuple[int, Any]]] = {}
        self._topics = _known_topics(store)

    def disagreement(self, message: StoredMessage) -> str | None:
        if not self._present:
            return None
        place = f"offset {message.queue_offset} of {message.topic} queue {message.queue_id}"
        files = self._queue(message.topic, message.queue_id)
        if self._is_of_before(message, files):
            return None
        entry = _entry(files, message.queue_offset)
        if entry is None:
            return f"no queue entry for {place}"
        if (int(entry["physical"]), int(entry["size"])) != (message.physical_offset, message.size):
            return (
                f"the queue entry for {place} points at {entry['physical']}, size {entry['size']}"
            )
        tag = properties.get(message.properties, properties.TAGS)
        code = int(entry["tags_code"])
        is_tag = message.topic != SCHEDULE_TOPIC and -(2**31) <= code < 2**31  # else a time
        if is_tag and code != tags_code(tag):
            return f"the queue entry for {place} has tag code {code}, not that of {tag}"
        return None

    def _is_of_before(self, message: StoredMessage, files: list[tuple[int, Any]]) -> bool:
        """Whether the record's topic was deleted, or made anew, since it was stored."""
        if not files:
            return self._topics is not None and message.topic not in self._topics
        base, entries = files[0]
        first = int(entries["physical"][0])
        return message.queue_offset >= base and message.physical_offset < first

    def _queue(self, topic: str, queue_id: int) -> list[tuple[int, Any]]:
        key = topic, queue_id
        if key not in self._files:
            self._files[key] = _queue_files(os.path.join(self._root, topic, str(queue_id)))
        return self._files[key]


def _entry(files: list[tuple[int, Any]], queue_offset: int) -> Any:
    for base, entries in reversed(files):
        if base <= queue_offset < base + len(entries):
            entry = entries[queue_offset - base]
            return entry if entry["size"] > 0 else None
    return None


def _known_topics(store: str) -> set[str] | None:
    """The topics that the broker had; None when its configuration does not tell."""
    try:
        return set(read_config(store, "topics.json")["topicConfigTable"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _queue_files(folder: str) -> list[tuple[int, Any]]:
    if not os.path.isdir(folder):
        return []
    return [
        (int(name) // ENTRY.itemsize, np.memmap(path, ENTRY, "r", shape=(count,)))
        for name in sorted(os.listdir(folder))
        if len(name) == 20 and name.isdigit()
        if (count := os.path.getsize(path := os.path.join(folder, name)) // ENTRY.itemsize)
    ]


def _cut_off(folder: str) -> Iterator[tuple[int, str]]:
    """The entry that a file ends inside of, and what to say of it."""
    for name in sorted(os.listdir(folder)):
        if len(name) == 20 and name.isdigit():
            size = os.path.getsize(os.path.join(folder, name))
            number = (int(name) + size) // ENTRY.itemsize
            if size % ENTRY.itemsize:
                yield number, f"{name} has {size} bytes and ends inside of entry {number}"


# --- a consume queue: each entry points at the record it stands for


def _check_queue(part: Part, report: Report) -> None:
    assert part.queue is not None
    log = _Log(part.segments)
    for number, problem in _cut_off(part.queue.folder):
        report.note(number, problem)
    before = -1
    for base, entries in _queue_files(part.queue.folder):
        for number in range(len(entries)):
            entry = entries[number]
            physical, size = int(entry["physical"]), int(entry["size"])
            if size == BLANK_ENTRY_SIZE or (size == 0 and physical == 0):
                continue
            report.checked += 1
            report.bytes += ENTRY.itemsize
            if physical <= before:
                report.note(base + number, f"entry {base + number} points back to {physical}")
            before = physical
            wrong = log.disagreement(part.queue, base + number, physical, size)
            if wrong:
                report.note(base + number, wrong)


class _Log:
    """Records by physical offset."""

    def __init__(self, segments: tuple[Segment, ...]) -> None:
        self._segments = segments
        self._views: dict[int, memoryview] = {}

    def record(self, physical: int) -> StoredMessage | None:
        """The record there; None when the log does not reach there (any more)."""
        for segment in self._segments:
            if segment.start <= physical < segment.end:
                if segment.start not in self._views:
                    self._views[segment.start] = memoryview(map_file(segment))
                return decode_record(self._views[segment.start], physical - segment.start)
        return None

    @property
    def start(self) -> int:
        return self._segments[0].start

    def disagreement(self, queue: Queue, offset: int, physical: int, size: int) -> str | None:
        if physical < self.start:
            return None  # the log was trimmed, its entries go later
        try:
            message = self.record(physical)
        except CorruptRecord as error:
            return f"entry {offset} points at {physical}, where {error.reason}"
        if message is None:
            return f"entry {offset} points at {physical}, behind the log's end"
        found = (message.topic, message.queue_id, message.queue_offset, message.size)
        if found != (queue.topic, queue.queue_id, offset, size):
            return (
                f"entry {offset} (size {size}) points at {physical}, where {message.topic} queue "
                f"{message.queue_id} offset {message.queue_offset} (size {message.size}) stands"
            )
        return None


# --- an index file: each entry's hash is that of a key of its record


def _check_index(part: Part, report: Report) -> None:
    with open(part.path, "rb") as file:
        head = file.read(_INDEX_HEADER.size)
    if len(head) < _INDEX_HEADER.size:
        report.note(0, "the file is shorter than its header")
        return
    count = _INDEX_HEADER.unpack(head)[5]
    size = os.path.getsize(part.path)
    slots = _slot_count(size, count, part.path)
    if slots is None:
        report.note(0, f"its size {size} is not that of an index file")
        return
    start = _INDEX_HEADER.size + slots * _SLOT_SIZE
    count = min(count, (size - start) // _INDEX_ENTRY.itemsize)
    entries = np.memmap(part.path, _INDEX_ENTRY, "r", offset=start, shape=(max(count, 1),))
    log = _Log(part.segments)
    for number in range(1, count):
        report.checked += 1
        physical, stored = int(entries["physical"][number]), int(entries["hash"][number])
        if physical < log.start:
            continue
        try:
            message = log.record(physical)
        except CorruptRecord as error:
            report.note(number, f"entry {number} points at {physical}, where {error.reason}")
            continue
        if message is None or stored not in _hashes(message):
            report.note(number, f"entry {number} points at {physical}, which has no such key")


def _slot_count(size: int, count: int, path: str) -> int | None:
    """How many slots the file has: RocketMQ writes four entries for each slot by default, and a
    setting may say otherwise, so the place where the entries begin is looked for. A kill during a
    recovery may leave a file short, without its last entries: it has the slots of the others."""
    others = {entry.stat().st_size for entry in os.scandir(os.path.dirname(path))}
    for whole in sorted((other for other in others if other > size), reverse=True):
        slots = _slots_of_size(whole, 0)
        rest = size - _INDEX_HEADER.size - (slots or 0) * _SLOT_SIZE
        if slots and rest > 0 and rest % _INDEX_ENTRY.itemsize == 0:
            return slots
    slots = _slots_of_size(size, count)
    if slots is None and size > (start := _INDEX_HEADER.size + DEFAULT_SLOTS * _SLOT_SIZE):
        slots = DEFAULT_SLOTS if (size - start) % _INDEX_ENTRY.itemsize == 0 else None
    return slots


def _slots_of_size(size: int, count: int) -> int | None:
    body = size - _INDEX_HEADER.size
    for ratio in (4, 1, 2, 3, 5, 8, 10, 16):
        slots, rest = divmod(body, _SLOT_SIZE + ratio * _INDEX_ENTRY.itemsize)
        if rest == 0 and slots > 0 and count <= slots * ratio:
            return slots
    return None


def _hashes(message: StoredMessage) -> set[int]:
    keys = [properties.get(message.properties, properties.UNIQ_KEY) or ""]
    keys += (properties.get(message.properties, properties.KEYS) or "").split(" ")
    if tag := properties.get(message.properties, properties.TAGS):
        keys.append(f"T#{tag}")  # RocketMQ 5.5 keeps tags in the index too
    return {index_hash(message.topic, key) for key in keys if key}
