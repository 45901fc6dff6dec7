"""A copy of a store directory for another broker, taken while the original is in use.

The copy is what a kill of the running broker would have left, so the next start recovers it. Its
parts are taken one after the other, in an order that recovery relies on:

    1. full log files      held by a link before retention can remove them
    2. config, timercheck  progress that is behind the log means work done twice, never lost
    3. checkpoint          queues and index hold at least what it says, as they come later
    4. queues, index, ...  what they hold beyond the checkpoint is rebuilt from the log
    5. the rest of the log up to the last record that is whole now: at least what any of them names
    6. topics and groups   again, for messages that arrived meanwhile
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_IMODE
from typing import Final

from aerobee.broker.store.errors import StoreError, StoreLocked
from aerobee.broker.store.files.layout import Layout
from aerobee.broker.store.inspect.files import (
    ReportProgress,
    RestFile,
    RestStore,
    kept_at_rest,
    log_end,
    open_directory,
)
from aerobee.protocol.files.checkpoint import decode_checkpoint
from aerobee.protocol.files.record_layout import CorruptRecord
from aerobee.protocol.files.record_scan import scan_records

FICLONE: Final = 0x40049409
STEP: Final = 1 << 20
PARTIAL: Final = ".partial"
TRIES_MAX: Final = 200  # to read a set of files unchanged
TRY_AGAIN_S: Final = 0.02
_NAMES: Final = ("topics.json", "subscriptionGroup.json")  # each with .journal and .bak


@dataclass(slots=True)
class Snapshot:
    """The result of a snapshot."""

    path: str
    running: bool  # whether a broker was running on the original
    log_end: int = 0
    linked: int = 0  # files that share their blocks with the original by a hard link
    cloned: int = 0  # ... by a copy-on-write clone
    copied: int = 0
    copied_bytes: int = 0


def snapshot(
    root: str, destination: str, commitlog: str, report_progress: ReportProgress
) -> Snapshot:
    """Take the copy; StoreError when there is no store or the destination exists."""
    opened = listed(root, commitlog)
    source = Layout(
        opened.root, os.path.abspath(commitlog or os.path.join(opened.root, "commitlog"))
    )
    final = os.path.abspath(destination)
    if os.path.exists(final):
        raise StoreError(f"{final} exists already: name a new folder")
    if os.path.commonpath((final, source.root)) == source.root:
        raise StoreError(f"{final} is inside the store: name a folder outside of it")
    target = Layout(final + PARTIAL, os.path.join(final + PARTIAL, "commitlog"))
    if os.path.exists(target.root):
        raise StoreError(f"{target.root} is left from an unfinished snapshot: remove it")
    os.makedirs(target.commitlog)
    with ExitStack() as held:
        try:
            held.enter_context(kept_at_rest(source.root))
            running = False
        except StoreLocked:
            running = True
        made = _Copying(source, target, Snapshot(final, running), report_progress).run()
    os.rename(target.root, final)
    _sync_folder(os.path.dirname(final))
    return made


def listed(root: str, commitlog: str) -> RestStore:
    """The content of the directory, even if files are added and removed meanwhile."""
    for _ in range(TRIES_MAX):
        with suppress(FileNotFoundError):
            return open_directory(root, commitlog)
        time.sleep(TRY_AGAIN_S)
    raise StoreError(f"files of {root} keep being removed: try again when the broker is less busy")


class _Copying:
    def __init__(
        self, source: Layout, target: Layout, made: Snapshot, report_progress: ReportProgress
    ) -> None:
        self._source = source
        self._target = target
        self._made = made
        self._report_progress = report_progress

    def run(self) -> Snapshot:
        source, target, made = self._source, self._target, self._made
        unclean = made.running or os.path.exists(source.abort)
        self._hold_full_files()
        self._copy_config(lambda _: True)
        if os.path.exists(source.checkpoint):
            Path(target.checkpoint).write_bytes(self._checkpoint())
        for path in self._derived():
            with suppress(FileNotFoundError):  # removed by retention, or with its topic
                self._copy(path, self._in_target(path))
        self._copy_log()
        self._copy_config(lambda name: name.startswith(_NAMES))
        if unclean:
            Path(target.abort).write_bytes(self._abort())
        for folder, _, names in os.walk(target.root):
            for name in names:
                _sync(os.path.join(folder, name))
            _sync_folder(folder)
        return made

    def _in_target(self, path: str) -> str:
        return os.path.join(self._target.root, os.path.relpath(path, self._source.root))

    def _abort(self) -> bytes:
        try:
            return Path(self._source.abort).read_bytes()  # it may record a failed sync
        except FileNotFoundError:  # the broker has stopped meanwhile
            return b""

    def _checkpoint(self) -> bytes:
        with open(self._source.checkpoint, "rb") as page:
            return page.read()

    # -- small files

    def _copy_config(self, wanted: Callable[[str], bool]) -> None:
        """JSON files and their journals as they were together at one moment."""
        folder = self._source.config
        for _ in range(TRIES_MAX):
            before = self._facts(folder)
            found = {}
            for name in before:
                path = Path(folder, name)
                with suppress(FileNotFoundError):
                    found[name] = path.read_bytes(), S_IMODE(path.stat().st_mode)
            if self._facts(folder) == before:
                break
            time.sleep(TRY_AGAIN_S)
        else:
            raise StoreError(f"{folder} keeps changing: try again when the broker is less busy")
        os.makedirs(self._target.config, exist_ok=True)
        for name, (content, mode) in found.items():
            if wanted(name):
                path = Path(self._target.config, name)
                path.touch(mode)  # permissions first: it may hold secrets
                path.write_bytes(content)
                self._made.copied += 1
                self._made.copied_bytes += len(content)

    def _facts(self, folder: str) -> dict[str, tuple[int, int, int]]:
        facts = {}
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            with suppress(FileNotFoundError):
                fact = os.stat(os.path.join(folder, name))
                facts[name] = (fact.st_ino, fact.st_size, fact.st_mtime_ns)
        return {name: fact for name, fact in facts.items() if not name.endswith(".tmp")}

    def _derived(self) -> Iterator[str]:
        """Every file that the other steps do not copy."""
        source = self._source
        apart = {source.lock, source.abort, source.checkpoint}
        for folder, folders, names in os.walk(source.root):
            folders[:] = [
                name
                for name in folders
                if os.path.join(folder, name) not in (source.commitlog, source.config)
            ]
            for name in names:
                if (path := os.path.join(folder, name)) not in apart:
                    yield path

    # -- the log

    def _log(self) -> RestStore:
        return listed(self._source.root, self._source.commitlog)

    def _hold_full_files(self) -> None:
        files = self._log().log
        for file, after in itertools.pairwise(files):
            if _has_data(after):
                with suppress(FileNotFoundError):
                    self._take_whole(file)

    def _take_whole(self, file: RestFile) -> None:
        target = os.path.join(self._target.commitlog, os.path.basename(file.path))
        if os.path.exists(target):
            return
        try:
            os.link(file.path, target)  # full files do not change
            self._made.linked += 1
            self._report_progress(file.size)
        except FileNotFoundError:
            raise
        except OSError:  # another file system, or one without links
            self._copy(file.path, target)

    def _copy_log(self) -> None:
        """Link full files; one that the next start may write to is always copied."""
        store = self._log()
        last = max((file.start for file in store.log if _has_data(file)), default=0)
        end = self._whole_end(store, last) if self._made.running else log_end(store)
        self._made.log_end = end
        for file in store.log:
            with suppress(FileNotFoundError):  # removed by retention, as the oldest
                if file.end <= (end if self._made.running else last):
                    self._take_whole(file)
                elif file.start < end or not self._made.running:
                    target = os.path.join(self._target.commitlog, os.path.basename(file.path))
                    self._copy(file.path, target, end - file.start if self._made.running else None)
        kept = {os.path.basename(file.path) for file in store.log}
        for name in set(os.listdir(self._target.commitlog)) - kept:
            os.unlink(os.path.join(self._target.commitlog, name))  # removed by retention meanwhile

    def _whole_end(self, store: RestStore, last: int) -> int:
        """The end of the last complete record, checked from the copied checkpoint on: an invalid
        record before it is damage, and copied as it is."""
        path = self._target.checkpoint
        point = decode_checkpoint(Path(path).read_bytes()) if os.path.exists(path) else None
        end = point.dispatched_offset if point else -1
        end = max(last if end < 0 else end, store.log[0].start if store.log else 0)
        for file in (file for file in store.log if file.end > end):
            try:
                for record in scan_records(
                    file.view, file.start, end - file.start, file.size, check_crc=True
                ):
                    end = record.physical_offset + record.size
            except CorruptRecord:
                break
            end = file.end
        return end

    # -- one file

    def _copy(self, path: str, target: str, length: int | None = None) -> None:
        """A clone if the file system supports it, else the bytes (not the holes); everything after
        `length` is left empty."""
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(path, "rb") as source, open(target, "xb") as copy:
            facts = os.fstat(source.fileno())
            try:
                fcntl.ioctl(copy.fileno(), FICLONE, source.fileno())
                self._made.cloned += 1
            except OSError:
                self._copy_bytes(source.fileno(), copy.fileno(), facts.st_size)
                self._made.copied += 1
            if length is not None:
                copy.truncate(length)  # what was appended meanwhile may be incomplete
            copy.truncate(facts.st_size)
        os.utime(target, ns=(facts.st_atime_ns, facts.st_mtime_ns))  # retention goes by it

    def _copy_bytes(self, source: int, copy: int, end: int) -> None:
        position = 0
        while position < end:
            try:
                position = os.lseek(source, position, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # only a hole is left
                    return
                raise
            hole = min(end, os.lseek(source, position, os.SEEK_HOLE))
            while position < hole:
                piece = os.pread(source, min(STEP, hole - position), position)
                if not piece:
                    return
                os.pwrite(copy, piece, position)
                position += len(piece)
                self._made.copied_bytes += len(piece)
                self._report_progress(len(piece))


def _has_data(file: RestFile) -> bool:
    with suppress(FileNotFoundError), open(file.path, "rb") as opened:
        return any(opened.read(8))
    return False


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_sync_folder = _sync
