"""The operating system's files: the real implementation of the port in `disk`.

Two rules are kept only here:
- data is made durable with `fdatasync`, never with `mmap.flush` (which keeps the GIL);
- blocks are allocated before they are written (a hole on a full disk is a SIGBUS through a map).
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from aerobee.broker.store.files import page_cache
from aerobee.broker.store.files.disk import DiskSpace
from aerobee.broker.store.files.open_files import QUEUE_FILES
from aerobee.broker.store.files.system_calls import (
    allocate_blocks,
    bring_in,
    data_sync,
    first_unreadable,
    is_empty_from,
    map_file,
    rewrite_blocks,
    store,
)

HELD_BY_ANOTHER: Final = (errno.EAGAIN, errno.EACCES)  # errors of a lock that is held
LOST_AND_FOUND: Final = "lost+found"  # created by mkfs, readable by root only


def _keep_owner(folder: str, new: str | int) -> None:
    """Root's commands leave what they create in a store to the store's owner: a broker that runs as
    that user could not open it otherwise."""
    if os.geteuid() == 0:
        with suppress(OSError):  # some mounts refuse
            owner = os.stat(folder or ".")
            if owner.st_uid != 0:
                os.chown(new, owner.st_uid, owner.st_gid)


class RealFile:
    """A file that is opened on first use: most files of a store are never read.

    The descriptor of a `_random` file may be closed at any time, and its number reused for another
    file. So users hold the lock; a read checks afterwards whether that happened.
    """

    __slots__ = (
        "_closed",
        "_closings",
        "_cuts",
        "_descriptor",
        "_lock",
        "_random",
        "_users",
        "_view",
        "path",
        "prewritten",
        "ready",
        "size",
    )

    def __init__(self, path: str, size: int, descriptor: int = -1) -> None:
        self.path = path
        self.size = size
        self.prewritten = 0
        self.ready = 0
        self._cuts = 0
        self._descriptor = descriptor
        self._closed = False
        self._random = False
        # Threads hold this to open, map and close the file, never while they wait for the disk.
        self._lock = threading.RLock()
        self._closings = 0  # by `try_close`
        self._users = 0  # long calls in progress; after `close` the last closes the descriptor
        self._view: memoryview | None = None

    def _open(self) -> int:
        if self._descriptor < 0:
            with self._lock:
                if self._closed:
                    raise OSError(errno.EBADF, "the file was closed", self.path)
                if self._descriptor < 0:
                    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
                    self._descriptor = os.open(self.path, flags)
                    if self._random:
                        QUEUE_FILES.add(self)
        return self._descriptor

    def use_randomly(self) -> None:
        self._random = True
        if self._descriptor >= 0:
            QUEUE_FILES.add(self)

    def try_close(self) -> bool:
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._users:
                return False
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor >= 0:
                self._closings += 1
                os.close(descriptor)
            return True
        finally:
            self._lock.release()

    def view(self) -> memoryview:
        view = self._view
        if view is None:
            with self._lock:  # a reading thread may race for it
                if self._view is None:
                    self._view = map_file(self._open(), self.size, random=self._random)
                view = self._view
        return view

    def allocate(self, start: int, length: int) -> None:
        if length > 0:
            with self._lock:
                allocate_blocks(self._open(), start, length)

    def prewrite(self, start: int, length: int) -> None:
        with self._in_use() as descriptor:
            if descriptor is not None:
                rewrite_blocks(descriptor, start, length)
                self.prewritten = max(self.prewritten, start + length)

    def make_ready(self, start: int, length: int) -> None:
        with self._in_use() as descriptor:
            if descriptor is None:
                return
            with self._lock:
                cuts, view = self._cuts, self.view()
            bring_in(view, start, length, dirty=start + length > self.prewritten)
            with self._lock:
                if self._cuts == cuts:  # else the range may have lost its blocks
                    self.ready = start + length

    def sync(self) -> None:
        with self._in_use() as descriptor:
            if descriptor is not None:
                data_sync(descriptor)

    @contextmanager
    def _in_use(self) -> Iterator[int | None]:
        try:
            yield self.use()
        finally:
            self.end_use()

    def use(self) -> int | None:
        """The descriptor, which stays open until `end_use` even if the file is closed; None when
        the file was removed."""
        with self._lock:
            self._users += 1
            try:
                return None if self._closed else self._open()
            except FileNotFoundError:
                return None  # it is about to be closed

    def end_use(self) -> None:
        with self._lock:
            self._users -= 1
            self._close_unused()

    def truncate(self, length: int) -> None:
        self.prewritten = min(self.prewritten, length)
        with self._lock:
            self._cuts += 1
            self.ready = min(self.ready, length)
            os.ftruncate(self._open(), length)

    def extend(self, size: int) -> None:
        assert self._view is None or size == self.size, "the map is shorter than that"
        with self._lock:
            os.ftruncate(self._open(), size)
        self.size = size

    def is_empty_from(self, position: int) -> bool:
        with self._lock:
            return is_empty_from(self._open(), position)

    def write(self, position: int, data: bytes | memoryview) -> None:
        if position + len(data) <= self.ready:
            store(self.view(), position, data)
            return
        is_shared = self._random
        if is_shared:
            self._lock.acquire()
        try:
            descriptor = self._descriptor
            written = os.pwrite(self._open() if descriptor < 0 else descriptor, data, position)
            while written < len(data):
                written += os.pwrite(self._open(), data[written:], position + written)
        finally:
            if is_shared:
                self._lock.release()

    def read(self, position: int, length: int) -> bytes:
        closings, descriptor = self._closings, self._descriptor
        try:
            data = os.pread(self._open() if descriptor < 0 else descriptor, length, position)
            is_whole = len(data) == length or position + len(data) >= self.size
            if self._closings == closings and is_whole:
                return data
        except OSError as error:
            if self._closings == closings:
                raise self._named(error) from None
        with self._lock:
            return self._read_whole(position, length)

    def _read_whole(self, position: int, length: int) -> bytes:
        """A read that meets a bad sector returns what is before it; only the next read fails."""
        pieces: list[bytes] = []
        try:
            while length > 0 and (piece := os.pread(self._open(), length, position)):
                pieces.append(piece)
                position, length = position + len(piece), length - len(piece)
        except OSError as error:
            raise self._named(error) from None
        return b"".join(pieces)

    def _named(self, error: OSError) -> OSError:
        return OSError(error.errno, error.strerror, self.path)

    def send_to(self, socket: int, position: int, length: int) -> int:
        return os.sendfile(socket, self._open(), position, length)  # log files stay open

    def is_cached(self, position: int, length: int) -> bool:
        if not self._random:
            return page_cache.is_cached(self._open(), position, length)
        with self._lock:
            return page_cache.is_cached(self._open(), position, length)

    def is_resident(self, position: int, length: int) -> bool:
        if self._random:  # read without a map
            return True
        return page_cache.is_resident(self.view(), position, length)

    def forget(self, position: int, length: int) -> None:
        with self._lock:
            page_cache.forget(self._open(), position, length)

    def first_unreadable(self, start: int, end: int) -> int | None:
        return first_unreadable(self._open(), self.view(), start, min(end, self.size))

    def close(self) -> None:
        # Views in use keep the memory mapped; the last of them unmaps it.
        self._view = None
        with self._lock:
            self._closed = True
            self._close_unused()

    def _close_unused(self) -> None:
        if self._closed and not self._users and self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


locked_here: set[str] = set()  # fcntl locks do not exclude two stores of one process


class RealLock:
    __slots__ = ("_descriptor", "_path")

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            locked_here.discard(self._path)


class RealDisk:
    """The operating system's files."""

    def create(self, path: str, size: int) -> RealFile:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(descriptor, size)
        except OSError:
            os.close(descriptor)
            os.unlink(path)
            raise
        return RealFile(path, size, descriptor)

    def open(self, path: str) -> RealFile:
        return RealFile(path, os.stat(path, follow_symlinks=False).st_size)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(path)

    def length(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: str, time_ms: int) -> None:
        os.utime(path, ns=(time_ms * 1_000_000, time_ms * 1_000_000))

    def listdir(self, path: str) -> list[str]:
        try:
            return sorted(name for name in os.listdir(path) if name != LOST_AND_FOUND)
        except FileNotFoundError:
            return []

    def makedirs(self, path: str) -> list[str]:
        changed: list[str] = []
        folder = path
        while not os.path.isdir(folder):
            folder = os.path.dirname(folder) or "."
            changed.append(folder)
        if changed:
            os.makedirs(path, exist_ok=True)
            made = os.path.abspath(path)
            while made != os.path.abspath(folder):
                _keep_owner(folder, made)
                made = os.path.dirname(made)
        return changed

    def syncdir(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def rmtree(self, path: str) -> None:
        shutil.rmtree(path)

    def read_small(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def write_small(self, path: str, data: bytes, mode: int = 0o644) -> None:
        # Not truncated first: a full disk may not give the freed blocks back.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "r+b") as file:
            _keep_owner(os.path.dirname(path), descriptor)
            file.write(data)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())

    def space(self, path: str) -> DiskSpace:
        facts = os.statvfs(path)
        used = facts.f_blocks - facts.f_bfree  # without root's reserve, as df counts
        unit = facts.f_frsize
        return DiskSpace((used + facts.f_bavail) * unit, facts.f_bavail * unit)

    def lock(self, path: str) -> RealLock:
        path = os.path.realpath(path)
        if path in locked_here:
            raise BlockingIOError(errno.EAGAIN, "locked by this process", path)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        _keep_owner(os.path.dirname(path), descriptor)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            os.close(descriptor)
            if error.errno not in HELD_BY_ANOTHER:  # a file system without locks
                raise
            raise BlockingIOError(errno.EAGAIN, "locked by another process", path) from error
        with suppress(OSError):  # the content means nothing, and a full disk may refuse it
            os.pwrite(descriptor, b"lock", 0)
        locked_here.add(path)
        return RealLock(path, descriptor)
