"""A disk that can lose power: the store's `Disk` port over plain memory, all of it by a seed.

A file has three contents: `current`, what the process sees through its map; `clean`, what the page
cache takes to be on the device; `durable`, what is. A sync copies what differs from `clean` to
`durable`; a failed one marks it clean without copying, as Linux does. Names have a durable state of
their own, which `syncdir` brings up to date. `lose_power` gives the disk after the cut: the durable
state and, of all that was under way, a random part.
"""

from __future__ import annotations

import errno
import os
import random
from dataclasses import dataclass, field

from aerobee.broker.store.disk import DiskSpace

SECTOR = 512
PAGE = 4096


class PowerLoss(BaseException):
    """The cut, raised in the middle of the code under test; no `except Exception` may stop it."""


class Violation(AssertionError):
    """The code under test broke a rule that a real disk would punish later."""


class Inode:
    """The content of one file."""

    __slots__ = ("allocated", "clean", "current", "durable", "modified_ms", "size_durable")

    def __init__(self, size: int, modified_ms: int) -> None:
        self.current = bytearray(size)
        self.clean = bytearray(size)
        self.durable = bytearray(size)
        self.allocated: list[tuple[int, int]] = []  # ranges that own blocks
        self.size_durable = False
        self.modified_ms = modified_ms

    def dirty_sectors(self) -> list[int]:
        current, clean = self.current, self.clean
        if current == clean:
            return []
        return [
            at
            for at in range(0, len(current), SECTOR)
            if current[at : at + SECTOR] != clean[at : at + SECTOR]
        ]

    def is_allocated(self, position: int) -> bool:
        return any(start <= position < end for start, end in self.allocated)


_OTHER_BYTE = bytes(255 - byte for byte in range(256))


class SimFile:
    """An open file; the map is the inode's own memory."""

    def __init__(self, disk: SimDisk, path: str, inode: Inode) -> None:
        self._disk = disk
        self._inode = inode
        self.path = path
        self.size = len(inode.current)
        self._view = memoryview(inode.current)

    def use_randomly(self) -> None:
        """Memory has no read-ahead."""

    def view(self) -> memoryview:
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
        for at in dirty:
            if not failed:
                inode.durable[at : at + SECTOR] = inode.current[at : at + SECTOR]
            inode.clean[at : at + SECTOR] = inode.current[at : at + SECTOR]
        if failed:
            raise OSError(errno.EIO, "Input/output error", self.path)
        inode.size_durable = True
        if dirty:
            inode.modified_ms = self._disk.now_ms()

    def _check_allocated(self) -> None:
        for at in self._inode.dirty_sectors():
            if not self._inode.is_allocated(at):
                raise Violation(f"{self.path}: stored at {at} through a map into no block (SIGBUS)")

    def cut(self, length: int) -> None:
        self._disk.tick("cut", self.path)
        inode = self._inode
        for content in (inode.current, inode.clean, inode.durable):
            content[length:] = bytes(len(content) - length)
        page = -(-length // PAGE) * PAGE
        inode.allocated = [
            (start, min(end, page)) for start, end in inode.allocated if start < page
        ]
        inode.size_durable = True

    def write(self, position: int, data: bytes | memoryview) -> None:
        """No place for the power to fail of its own: what is written is in memory, like what is
        stored through a map, and is lost or kept with it at the next one."""
        inode = self._inode
        inode.current[position : position + len(data)] = data
        for at in range(position - position % SECTOR, position + len(data), SECTOR):
            # Written pages are dirty, whatever they held before.
            inode.clean[at : at + SECTOR] = inode.current[at : at + SECTOR].translate(_OTHER_BYTE)
        if not (inode.is_allocated(position) and inode.is_allocated(position + len(data) - 1)):
            inode.allocated.append((position - position % PAGE, position + len(data)))

    def read(self, position: int, length: int) -> bytes:
        return bytes(self._inode.current[position : position + length])

    def is_cached(self, position: int, length: int) -> bool:
        return True

    def close(self) -> None:
        """The inode stays; a map that others hold stays valid."""


@dataclass
class NameChange:
    """One change of a folder that is not durable before the folder is synced."""

    folder: str
    path: str
    inode: Inode | None  # None: the name goes away


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
        for folder in sorted({change.folder for change in self.pending}):
            changes = [change for change in self.pending if change.folder == folder]
            applied = changes[: rng.randint(0, len(changes))]
            for change in applied:
                _apply(names, folders, change)
            # A journal keeps its order: only the newest of the new files can lack its length.
            sized |= {id(change.inode) for change in applied[:-1]}
        folders = {folder for folder in folders if _reachable(folder, folders)}
        names = {path: inode for path, inode in names.items() if os.path.dirname(path) in folders}
        share = rng.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        step = rng.choice((SECTOR, PAGE, PAGE, 4 * PAGE))
        copies: dict[int, Inode] = {}
        after = SimDisk(folders=folders, durable_folders=set(folders), time_ms=self.time_ms)
        for path in sorted(names):
            inode = names[path]
            if id(inode) not in copies:
                has_size = inode.size_durable or id(inode) in sized
                copies[id(inode)] = _after_cut(inode, rng, share, step, has_size)
            after.names[path] = copies[id(inode)]
        after.durable_names = dict(after.names)
        return after

    def stop_process(self) -> SimDisk:
        """The disk after SIGKILL: the page cache lives on, locks and maps do not."""
        self.locks.clear()
        self.power_left = None
        self.failing_syncs.clear()
        return self

    # -- the port

    def create(self, path: str, size: int) -> SimFile:
        self.tick("create", path)
        self._need_folder(path)
        if path in self.names:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        inode = Inode(size, self.time_ms)
        self._link(path, inode)
        return SimFile(self, path, inode)

    def open(self, path: str) -> SimFile:
        return SimFile(self, path, self._inode(path))

    def exists(self, path: str) -> bool:
        return path in self.names or path in self.folders

    def is_folder(self, path: str) -> bool:
        return path in self.folders

    def length(self, path: str) -> int:
        return len(self._inode(path).current)

    def modified_ms(self, path: str) -> int:
        return self._inode(path).modified_ms

    def set_modified_ms(self, path: str, time_ms: int) -> None:
        self._inode(path).modified_ms = time_ms

    def listdir(self, path: str) -> list[str]:
        inside = path.rstrip("/") + "/"
        found = [name for name in (*self.names, *self.folders) if name.startswith(inside)]
        return sorted({name[len(inside) :].partition("/")[0] for name in found})

    def makedirs(self, path: str) -> list[str]:
        changed = []
        while path not in ("", "/") and path not in self.folders:
            self.folders.add(path)
            self.pending.append(_NewFolder(os.path.dirname(path), path, None))
            path = os.path.dirname(path)
            changed.append(path)
        return changed[::-1]

    def syncdir(self, path: str) -> None:
        self.tick("syncdir", path)
        folder = path.rstrip("/") or "/"
        kept = []
        for change in self.pending:
            if change.folder == folder:
                _apply(self.durable_names, self.durable_folders, change)
                if change.inode is not None:
                    change.inode.size_durable = True
            else:
                kept.append(change)
        self.pending = kept

    def rename(self, old: str, new: str) -> None:
        self.tick("rename", new)
        inode = self._inode(old)
        # One change of the journal: both names move together, so they stand as one entry each
        # of the same folder and a prefix never splits them (the old name goes first in time).
        assert os.path.dirname(old) == os.path.dirname(new), "the store renames within a folder"
        self.names.pop(old)
        self.names[new] = inode
        self.pending.append(_Rename(os.path.dirname(new), new, inode, old))

    def unlink(self, path: str) -> None:
        self.tick("unlink", path)
        self._inode(path)
        self.names.pop(path)
        self.pending.append(NameChange(os.path.dirname(path), path, None))

    def rmtree(self, path: str) -> None:
        inside = path.rstrip("/") + "/"
        for name in sorted(name for name in self.names if name.startswith(inside)):
            self.unlink(name)
        gone = {folder for folder in self.folders if (folder + "/").startswith(inside)}
        self.folders -= gone
        self.durable_folders -= gone

    def read_small(self, path: str) -> bytes:
        return bytes(self._inode(path).current)

    def write_small(self, path: str, data: bytes) -> None:
        self._need_folder(path)
        inode = self.names.get(path)
        fresh = inode is None
        if inode is None:
            inode = Inode(0, self.time_ms)
            self._link(path, inode)
        # Opening truncates: from here to the sync the old content is gone and the new is not there.
        inode.current = bytearray(data)
        inode.clean = bytearray(len(data))
        if fresh or len(inode.durable) != len(data):
            inode.durable = bytearray()
        self.tick("write_small", path)
        inode.durable = bytearray(data)
        inode.clean = bytearray(data)
        inode.size_durable = True
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
        self.pending.append(NameChange(os.path.dirname(path), path, inode))


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


def _after_cut(inode: Inode, rng: random.Random, share: float, step: int, has_size: bool) -> Inode:
    """What is left of a file: its durable bytes and, of the dirty ones, a random part."""
    if not has_size and rng.random() < 0.3:
        return Inode(0, inode.modified_ms)
    content = bytearray(inode.durable)
    if len(content) != len(inode.current):
        # a small file caught between its truncation and its sync: any prefix of the new content
        content = inode.current[: rng.randint(0, len(inode.current))]
    elif share:
        groups = sorted({at - at % step for at in inode.dirty_sectors()})
        for at in groups:
            if rng.random() < share:
                content[at : at + step] = inode.current[at : at + step]
    after = Inode(len(content), inode.modified_ms)
    after.current[:] = after.clean[:] = after.durable[:] = content
    after.allocated = list(inode.allocated)
    after.size_durable = True
    return after
