"""An offline store directory, for inspection only: every file is mapped read-only.

Sizes come from the files themselves, so a directory can be read without settings, of Aerobee and
RocketMQ alike.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from aerobee.broker.store.errors import StoreError, StoreLocked
from aerobee.broker.store.files import real_disk
from aerobee.broker.store.files.layout import Layout, parse_offset_name
from aerobee.protocol.files.checkpoint import PAGE_SIZE, StoreCheckpoint, decode_checkpoint
from aerobee.protocol.files.config_files import read_config
from aerobee.protocol.files.record_layout import CorruptRecord
from aerobee.protocol.files.record_scan import Scanned, check_record, scan_records

QueueKey = tuple[str, int]
ReportProgress = Callable[[int], None]  # bytes read
REPORT_BYTES: Final = 4 * 1024 * 1024


class Problem(NamedTuple):
    """An inconsistency of the directory."""

    path: str
    position: int  # in the file; -1: the file itself
    text: str

    def __str__(self) -> str:
        return (
            f"{self.path}{f' at byte {self.position}' if self.position >= 0 else ''}: {self.text}"
        )


class RestFile:
    """One file; mapped on first use."""

    __slots__ = ("_view", "allocated", "path", "size", "start")

    def __init__(self, path: str, start: int) -> None:
        facts = os.stat(path)
        self.path = path
        self.start = start
        self.size = facts.st_size
        self.allocated = facts.st_blocks * 512
        self._view: memoryview | None = None

    @property
    def end(self) -> int:
        return self.start + self.size

    @property
    def view(self) -> memoryview:
        if self._view is None:
            self._view = memoryview(b"")
            if self.size:
                with open(self.path, "rb") as file:
                    self._view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        return self._view

    def data_end(self) -> int:
        """The end of what was ever written, as far as the file system knows: holes are not read."""
        end = 0
        with open(self.path, "rb") as file:
            try:
                while end < self.size:
                    begin = os.lseek(file.fileno(), end, os.SEEK_DATA)
                    end = os.lseek(file.fileno(), begin, os.SEEK_HOLE)
            except OSError as error:
                if error.errno != errno.ENXIO:  # ENXIO: only holes from here on
                    return self.size
        return min(end, self.size)


@dataclass
class RestStore:
    """The content of a directory."""

    root: str
    log: list[RestFile] = field(default_factory=list)
    queues: dict[QueueKey, list[RestFile]] = field(default_factory=dict)
    units: dict[QueueKey, list[RestFile]] = field(default_factory=dict)  # consumequeue_ext
    index: list[RestFile] = field(default_factory=list)
    checkpoint: StoreCheckpoint = field(default_factory=StoreCheckpoint)
    stopped_cleanly: bool = True
    problems: list[Problem] = field(default_factory=list)  # in names and lengths
    notes: list[str] = field(default_factory=list)  # what the next start repairs

    @property
    def log_bytes(self) -> int:
        return sum(file.size for file in self.log)

    @property
    def log_begin(self) -> int:
        return self.log[0].start if self.log else 0

    @cached_property
    def topics(self) -> frozenset[str]:
        """The broker's topics; empty when its configuration is missing."""
        try:
            return frozenset(read_config(self.root, "topics.json")["topicConfigTable"])
        except (OSError, ValueError, LookupError, TypeError):
            return frozenset()

    def log_file(self, physical_offset: int) -> RestFile | None:
        for file in self.log:
            if file.start <= physical_offset < file.end:
                return file
        return None

    def problem_at(self, physical_offset: int, text: str) -> Problem:
        file = self.log_file(physical_offset)
        assert file is not None
        return Problem(file.path, physical_offset - file.start, text)


def open_directory(root: str, commitlog: str = "") -> RestStore:
    """List a store directory; StoreError when it is not one."""
    root = os.path.abspath(os.path.expanduser(root))
    layout = Layout(root, commitlog or os.path.join(root, "commitlog"))
    if not os.path.isdir(layout.commitlog):
        raise StoreError(
            f"{root} is not a store directory: it has no commitlog folder; give the folder that "
            f"storePathRootDir names, and --commitlog if storePathCommitLog is another"
        )
    store = RestStore(root)
    store.log = _stream(layout.commitlog, store)
    for folder, table in (
        (layout.consumequeue, store.queues),
        (layout.consumequeue_ext, store.units),
    ):
        for key, path in _queue_folders(folder):
            table[key] = _stream(path, store)
    names = _names(layout.index)
    store.index = [
        RestFile(os.path.join(layout.index, name), 0) for name in names if name.isdigit()
    ]
    if os.path.exists(layout.checkpoint):
        with open(layout.checkpoint, "rb") as page:
            store.checkpoint = decode_checkpoint(page.read(PAGE_SIZE))
    store.stopped_cleanly = not os.path.exists(layout.abort)
    return store


def _names(folder: str) -> list[str]:
    return real_disk.RealDisk().listdir(folder) if os.path.isdir(folder) else []


def _queue_folders(folder: str) -> Iterator[tuple[QueueKey, str]]:
    for topic in _names(folder):
        for name in _names(os.path.join(folder, topic)):
            if name.isascii() and name.isdigit():
                yield (topic, int(name)), os.path.join(folder, topic, name)


def _stream(folder: str, store: RestStore) -> list[RestFile]:
    """The files of a stream: of equal length, each beginning where the one before ends. A kill
    during a recovery may leave the last one short."""
    files: list[RestFile] = []
    problems = store.problems
    names = _names(folder)
    for name in names:
        path = os.path.join(folder, name)
        start = parse_offset_name(name)
        if start is None:
            problems.append(Problem(path, -1, "a foreign file among those of the store"))
            continue
        file = RestFile(path, start)
        if files and not file.size and name == names[-1]:
            break  # killed while it was created: the next start removes it
        if files and name == names[-1] and file.size < files[-1].size:
            text = f"{path} has {file.size} of {files[-1].size} bytes"
            store.notes.append(f"{text}, because of a kill: the next start extends it")
        elif files and file.size != files[0].size:
            text = f"{file.size} bytes long, {files[0].path} has {files[0].size}"
            problems.append(Problem(path, -1, text))
        if files and file.start != files[-1].end:
            text = f"a hole in the stream: {files[-1].path} ends at {files[-1].end}"
            problems.append(Problem(path, -1, text))
        files.append(file)
    return files


@contextmanager
def kept_at_rest(root: str) -> Iterator[None]:
    """Lock the directory for the block; StoreLocked when a broker has it."""
    path = os.path.realpath(os.path.join(os.path.expanduser(root), "lock"))
    if path in real_disk.locked_here:
        raise _locked(root)
    if not os.path.exists(path):
        yield
        return
    with open(path, "rb") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            if error.errno in real_disk.HELD_BY_ANOTHER:
                raise _locked(root) from error
            raise StoreError(f"{path} cannot be locked ({error}): inspect a copy") from error
        yield


def _locked(root: str) -> StoreLocked:
    return StoreLocked(
        f"{root} is in use by a broker: stop it first, or inspect a copy of the directory"
    )


def walk_log(
    store: RestStore,
    on_damage: Callable[[RestFile, CorruptRecord], int | None],
    report_progress: ReportProgress,
    *,
    files: list[RestFile] | None = None,
    check_crc: bool = True,
) -> Iterator[tuple[RestFile, Scanned]]:
    """Every valid record of these files, or of all, in order. At an invalid one `on_damage` returns
    the offset to continue at; None: the log ends there."""
    files = store.log if files is None else files
    offset, end = (files[0].start, files[-1].end) if files else (0, 0)
    while offset < end:
        file = store.log_file(offset)
        if file is None:  # a file is missing
            offset = min(each.start for each in files if each.start > offset)
            continue
        reported = position = offset - file.start
        try:
            records = scan_records(file.view, file.start, position, file.size, check_crc=check_crc)
            for record in records:
                yield file, record
                position = record.physical_offset + record.size - file.start
                if position - reported >= REPORT_BYTES:
                    report_progress(position - reported)
                    reported = position
            report_progress(file.size - reported)
            offset = file.end
        except CorruptRecord as error:
            goes_on = on_damage(file, error)
            if goes_on is None:
                return
            report_progress(goes_on - file.start - reported)
            offset = goes_on


def record_at(store: RestStore, physical_offset: int) -> tuple[RestFile, Scanned] | None:
    """The record at an offset; None when there is none."""
    try:
        return sound_record(store, physical_offset)
    except CorruptRecord:
        return None


def sound_record(store: RestStore, physical_offset: int) -> tuple[RestFile, Scanned] | None:
    """The same; CorruptRecord when the log has that offset and the record is invalid."""
    file = store.log_file(physical_offset)
    if file is None:
        return None
    position = physical_offset - file.start
    return file, check_record(file.view, file.start, position, file.size - position, False)


def log_end(store: RestStore) -> int:
    """The end of the valid records, found in the last file that has any."""
    for file in reversed(store.log):
        end = file.start
        try:
            for record in scan_records(file.view, file.start, 0, file.size, check_crc=False):
                end = record.physical_offset + record.size
        except CorruptRecord:
            if end == file.start:
                continue  # created ahead, or without a valid record
        return end
    return store.log[0].start if store.log else 0
