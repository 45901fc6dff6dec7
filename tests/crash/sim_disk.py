"""A disk that can lose power: the store's `Disk` port over plain memory, all of it by a seed.

A file has three contents: `current`, what the process sees through its map; `clean`, what the page
cache takes to be on the device; `durable`, what is. A sync copies what differs from `clean` to
`durable`; a failed one marks it clean without copying, as Linux does. Changes of a file's length
become durable in their order, with the next sync at the latest. Names have a durable state of their
own, which `syncdir` brings up to date. `lose_power` gives the disk after the cut: the durable state
and, of all that was under way, a random part.

Every call that changes something passes `tick`, where the process can end: by a cut of the power,
or by a kill, after which the page cache lives on (`stop_process`).
"""

from __future__ import annotations

import copy
import errno
import os
import random
from dataclasses import dataclass, field

from crash.sim_inode import PAGE, SECTOR, Inode, after_cut

from aerobee.broker.store.files.disk import DiskSpace


class PowerLoss(BaseException):
    """The cut, raised in the middle of the code under test; no `except Exception` may stop it."""


class Violation(AssertionError):
    """The code under test broke a rule; on a real disk that would fail only later."""


_OTHER_BYTE = bytes(255 - byte for byte in range(256))


class SimFile:
    """An open file; the map is the inode's own memory."""

    def __init__(self, disk: SimDisk, path: str, inode: Inode) -> None:
        self._disk = disk
        self._inode = inode
        self.path = path
        self.size = inode.length
        self.prewritten = 0
        self.ready = 0
        self._view: memoryview | None = None

    def use_randomly(self) -> None:
        """Memory has no read-ahead."""

    def prewrite(self, start: int, length: int) -> None:
        """All blocks behave the same here."""
        self.prewritten = max(self.prewritten, start + length)

    def make_ready(self, start: int, length: int) -> None:
        for at in range(start, start + length, SECTOR):
            if not self._inode.is_allocated(at):
                raise Violation(f"{self.path}: made ready at {at}, where no block is")
        self.ready = start + length

    def view(self) -> memoryview:
        if self._view is None:
            if self._inode.length != self.size:
                raise Violation(
                    f"{self.path}: a map of {self.size} bytes, {self._inode.length} are"
                )
            self._view = memoryview(self._inode.current)
        return self._view

    def allocate(self, start: int, length: int) -> None:
        self._disk.tick("allocate", self.path)
        self._disk.take_space(length)
        if length > 0:
            self._inode.allocated.append((start, start + length))

    def sync(self) -> None:
        self._disk.tick("sync", self.path)
        self._check_allocated()
        inode = self._inode
        dirty = inode.dirty_sectors()
        failed = self._disk.sync_fails(self.path)
        if not failed:
            inode.settle_length()
        for at in dirty:
            if not failed:
                inode.durable[at : at + SECTOR] = inode.current[at : at + SECTOR]
            inode.clean[at : at + SECTOR] = inode.current[at : at + SECTOR]
        del inode.durable[inode.length if not failed else len(inode.durable) :]
        if failed:
            raise OSError(errno.EIO, "Input/output error", self.path)
        if dirty:
            inode.modified_ms = self._disk.now_ms()

    def _check_allocated(self) -> None:
        for at in self._inode.dirty_sectors():
            if not self._inode.is_allocated(at):
                raise Violation(f"{self.path}: stored at {at} through a map into no block (SIGBUS)")

    def truncate(self, length: int) -> None:
        self._disk.tick("truncate", self.path)
        self.ready = min(self.ready, length)
        self._inode.resize(length, self._disk.next_number())

    def extend(self, size: int) -> None:
        self._disk.tick("extend", self.path)
        self._inode.resize(size, self._disk.next_number())
        self.size = size

    def send_to(self, socket: int, position: int, length: int) -> int:
        return os.write(socket, self.read(position, length))

    def is_empty_from(self, position: int) -> bool:
        return not any(self._inode.current[position : self._inode.length])

    def _store(self, position: int, data: bytes | memoryview) -> None:
        """Through the map. A kill may interrupt it; a sync detects a store without a block."""
        half = len(data) // 2
        self._inode.current[position : position + half] = data[:half]
        self._disk.tick("store", self.path)
        self._inode.current[position : position + len(data)] = data

    def write(self, position: int, data: bytes | memoryview) -> None:
        if position + len(data) <= self.ready:
            self._store(position, data)
            return
        self._disk.tick("write", self.path)
        inode = self._inode
        if position + len(data) > inode.length:
            raise Violation(f"{self.path}: written at {position}, behind its end {inode.length}")
        inode.current[position : position + len(data)] = data
        for at in range(position - position % SECTOR, position + len(data), SECTOR):
            if not inode.is_allocated(max(at, position)):
                raise Violation(f"{self.path}: written at {at} into no block: a sync may refuse it")
            # Written pages are dirty, whatever they held before.
            inode.clean[at : at + SECTOR] = inode.current[at : at + SECTOR].translate(_OTHER_BYTE)

    def read(self, position: int, length: int) -> bytes:
        return bytes(self._inode.current[position : min(position + length, self._inode.length)])

    def is_cached(self, position: int, length: int) -> bool:
        return True

    def is_resident(self, position: int, length: int) -> bool:
        return True

    def forget(self, position: int, length: int) -> None:
        """What is on disk is read from there again."""

    def first_unreadable(self, start: int, end: int) -> int | None:
        return None

    def close(self) -> None:
        """The inode stays; a map that others hold stays valid."""


@dataclass
class NameChange:
    """One change of a folder that is not durable before the folder is synced."""

    folder: str
    path: str
    inode: Inode | None  # None: the name goes away
    number: int  # as that of a `Resize`


class SimLock:
    def __init__(self, disk: SimDisk, path: str) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        self._disk.locks.discard(self._path)


@dataclass
class SimDisk:
    """The whole disk. `power_left` operations from now the power fails; None: it does not."""

    names: dict[str, Inode] = field(default_factory=dict)
    durable_names: dict[str, Inode] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    durable_folders: set[str] = field(default_factory=set)
    pending: list[NameChange] = field(default_factory=list)
    locks: set[str] = field(default_factory=set)
    power_left: int | None = None
    failing_syncs: set[int] = field(default_factory=set)  # by number, counted from now
    syncs: int = 0
    operations: int = 0
    changes: int = 0  # of names and lengths
    time_ms: int = 1_700_000_000_000
    total_space: int = 1 << 30
    free_space: int = 1 << 30

    # -- faults

    def tick(self, what: str, path: str) -> None:
        """Every change passes here: the place where the power can fail."""
        self.operations += 1
        if self.power_left is not None:
            self.power_left -= 1
            if self.power_left < 0:
                raise PowerLoss(f"at {what} {path}")

    def sync_fails(self, path: str) -> bool:
        self.syncs += 1
        return self.syncs in self.failing_syncs

    def take_space(self, length: int) -> None:
        if length > self.free_space:
            raise OSError(errno.ENOSPC, "No space left on device")

    def now_ms(self) -> int:
        return self.time_ms

    def lose_power(self, rng: random.Random) -> SimDisk:
        """The disk that the next life finds; this one is not changed."""
        names, folders = dict(self.durable_names), set(self.durable_folders)
        sized: set[int] = set()
        newest = 0
        missing: dict[str, int] = {}
        for folder in sorted({change.folder for change in self.pending}):
            changes = [change for change in self.pending if change.folder == folder]
            applied = changes[: rng.randint(0, len(changes))]
            for change in applied:
                _apply(names, folders, change)
            # The journal is ordered: only the newest of the new files can lack its length.
            sized |= {id(change.inode) for change in applied[:-1]}
            newest = max([newest, *(change.number for change in applied)])
            if len(applied) < len(changes):
                missing[folder] = changes[len(applied)].number
        folders = {folder for folder in folders if _reachable(folder, folders)}
        names = {path: inode for path, inode in names.items() if os.path.dirname(path) in folders}
        share = rng.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        step = rng.choice((SECTOR, PAGE, PAGE, 4 * PAGE))
        copies: dict[int, Inode] = {}
        after = SimDisk(folders=folders, durable_folders=set(folders), time_ms=self.time_ms)
        after.changes = self.changes
        for path in sorted(names):
            inode = names[path]
            if id(inode) not in copies:
                has_size = inode.size_durable or id(inode) in sized
                copies[id(inode)] = after_cut(
                    inode,
                    rng,
                    share,
                    step,
                    has_size,
                    newest,
                    missing.get(os.path.dirname(path), self.changes + 1),
                )
            after.names[path] = copies[id(inode)]
        after.durable_names = dict(after.names)
        return after

    def copy(self) -> SimDisk:
        """A copy of the disk, page cache included."""
        return copy.deepcopy(self)

    def stop_process(self) -> SimDisk:
        """The disk after SIGKILL: the page cache lives on, locks and maps do not."""
        self.locks.clear()
        self.power_left = None
        self.failing_syncs.clear()
        return self

    def next_number(self) -> int:
        self.changes += 1
        return self.changes

    # -- the port

    def create(self, path: str, size: int) -> SimFile:
        self.tick("create", path)
        self._need_folder(path)
        if path in self.names:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        inode = Inode(b"", self.time_ms)
        self._link(path, inode)
        self.tick("give a length to", path)
        inode.resize(size, self.next_number())
        return SimFile(self, path, inode)

    def open(self, path: str) -> SimFile:
        return SimFile(self, path, self._inode(path))

    def exists(self, path: str) -> bool:
        return path in self.names or path in self.folders

    def is_folder(self, path: str) -> bool:
        return path in self.folders

    def length(self, path: str) -> int:
        return self._inode(path).length

    def modified_ms(self, path: str) -> int:
        return self._inode(path).modified_ms

    def set_modified_ms(self, path: str, time_ms: int) -> None:
        self._inode(path).modified_ms = time_ms

    def listdir(self, path: str) -> list[str]:
        inside = path.rstrip("/") + "/"
        found = [name for name in (*self.names, *self.folders) if name.startswith(inside)]
        return sorted({name[len(inside) :].partition("/")[0] for name in found})

    def makedirs(self, path: str) -> list[str]:
        missing = []
        while path not in ("", "/") and path not in self.folders:
            missing.append(path)
            path = os.path.dirname(path)
        for path in reversed(missing):  # a kill in between leaves no folder without its parent
            self.tick("makedirs", path)
            self.folders.add(path)
            self.pending.append(_NewFolder(os.path.dirname(path), path, None, self.next_number()))
        return [os.path.dirname(path) for path in reversed(missing)]

    def syncdir(self, path: str) -> None:
        self.tick("syncdir", path)
        folder = path.rstrip("/") or "/"
        kept = []
        newest = 0
        for change in self.pending:
            if change.folder == folder:
                _apply(self.durable_names, self.durable_folders, change)
                if change.inode is not None and not change.inode.size_durable:
                    change.inode.settle_length()
                newest = change.number
            else:
                kept.append(change)
        self.pending = kept
        for inode in self.names.values():
            inode.settle_length(newest)

    def rename(self, old: str, new: str) -> None:
        self.tick("rename", new)
        inode = self._inode(old)
        # One change of the journal: both names move together, so they stand as one entry each
        # of the same folder and a prefix never splits them (the old name goes first in time).
        assert os.path.dirname(old) == os.path.dirname(new), "the store renames within a folder"
        self.names.pop(old)
        self.names[new] = inode
        self.pending.append(_Rename(os.path.dirname(new), new, inode, self.next_number(), old))

    def unlink(self, path: str) -> None:
        self.tick("unlink", path)
        self._inode(path)
        self.names.pop(path)
        self.pending.append(NameChange(os.path.dirname(path), path, None, self.next_number()))

    def rmtree(self, path: str) -> None:
        inside = path.rstrip("/") + "/"
        for name in sorted(name for name in self.names if name.startswith(inside)):
            self.unlink(name)
        gone = {folder for folder in self.folders if (folder + "/").startswith(inside)}
        self.folders -= gone
        self.durable_folders -= gone

    def read_small(self, path: str) -> bytes:
        inode = self._inode(path)
        return bytes(inode.current[: inode.length])

    def write_small(self, path: str, data: bytes, mode: int = 0o644) -> None:
        self._need_folder(path)
        self.tick("open", path)
        inode = self.names.get(path)
        if inode is None:
            inode = Inode(b"", self.time_ms)
            self._link(path, inode)
        # Written over, then cut to its length, then synced: not emptied first.
        inode.torn = True
        for content in (data + inode.current[len(data) : inode.length], data):
            self.tick("write_small", path)
            inode.length, inode.current, inode.clean = (
                len(content),
                bytearray(content),
                bytearray(content),
            )
        self.tick("sync_small", path)
        inode.durable, inode.resizes = bytearray(data), []
        inode.torn, inode.size_durable = False, True
        inode.modified_ms = self.time_ms

    def space(self, path: str) -> DiskSpace:
        return DiskSpace(self.total_space, self.free_space)

    def lock(self, path: str) -> SimLock:
        if path in self.locks:
            raise BlockingIOError(errno.EAGAIN, "locked", path)
        self.locks.add(path)
        if path not in self.names:
            self.write_small(path, b"lock")
        return SimLock(self, path)

    # -- inside

    def _inode(self, path: str) -> Inode:
        try:
            return self.names[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path) from None

    def _need_folder(self, path: str) -> None:
        if os.path.dirname(path) not in self.folders:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)

    def _link(self, path: str, inode: Inode) -> None:
        self.names[path] = inode
        self.pending.append(NameChange(os.path.dirname(path), path, inode, self.next_number()))


@dataclass
class _Rename(NameChange):
    old: str = ""


@dataclass
class _NewFolder(NameChange):
    pass


def _reachable(folder: str, folders: set[str]) -> bool:
    while folder != "/":
        if folder not in folders:
            return False
        folder = os.path.dirname(folder)
    return True


def _apply(names: dict[str, Inode], folders: set[str], change: NameChange) -> None:
    if isinstance(change, _NewFolder):
        folders.add(change.path)
        return
    if isinstance(change, _Rename):
        names.pop(change.old, None)
    if change.inode is None:
        names.pop(change.path, None)
    else:
        names[change.path] = change.inode
