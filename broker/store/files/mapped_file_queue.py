"""A stream of equal files in one folder, each named by the offset of its first byte."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise

import structlog

from aerobee.broker.store.errors import StoreError, WrongFileSize
from aerobee.broker.store.files.disk import Disk, DiskFile
from aerobee.broker.store.files.layout import offset_name, parse_offset_name
from aerobee.broker.store.files.mapped_file import MappedFile, MappingCounters

log = structlog.get_logger("aerobee.store")


class MappedFileQueue:
    """The files in order; the last one is written."""

    __slots__ = (
        "_folder_made",
        "_random",
        "_removing",
        "_retired",
        "_unsynced",
        "counters",
        "disk",
        "file_size",
        "files",
        "folder",
        "setting",
    )

    def __init__(
        self,
        disk: Disk,
        folder: str,
        file_size: int,
        setting: str,
        counters: MappingCounters,
        unsynced: set[str],
        *,
        random: bool = False,
    ) -> None:
        self.disk = disk
        self.folder = folder
        self.file_size = file_size
        self.setting = setting  # the setting named in the error about a wrong file length
        self.counters = counters
        self.files: list[MappedFile] = []
        # Folders with new entries not yet on disk: synced before the next checkpoint.
        self._unsynced = unsynced
        self._random = random  # random access
        self._folder_made = False
        self._removing = threading.Lock()
        self._retired = False

    @property
    def min_offset(self) -> int:
        return self.files[0].start if self.files else 0

    @property
    def last(self) -> MappedFile | None:
        return self.files[-1] if self.files else None

    @property
    def max_offset(self) -> int:
        """The end of what readers may see."""
        return self.files[-1].start + self.files[-1].readable if self.files else 0

    def load(self, known_end: int = 0) -> None:
        """Open the folder's files, all as full; recovery then finds the real end. `known_end`: up
        to where the stream is known to have been on disk."""
        names = self.disk.listdir(self.folder)
        self._folder_made = bool(names) or self.disk.exists(self.folder)
        found = [
            (start, os.path.join(self.folder, name))
            for name in names
            if (start := parse_offset_name(name)) is not None
        ]
        while found and self.disk.length(found[-1][1]) == 0:
            log.warning("an empty last file was removed", path=found[-1][1])
            self.disk.unlink(found.pop()[1])
        for number, (start, path) in enumerate(found):
            length = self.disk.length(path)
            if length != self.file_size:
                after = found[number + 1][0] if number + 1 < len(found) else None
                self._check_short(path, start, length, after, known_end)
            file = self._mapped(self.disk.open(path), start)
            file.set_positions(file.size)
            file.allocated = length
            self.files.append(file)
        self._check_contiguous()

    def _check_short(
        self, path: str, start: int, length: int, after: int | None, known_end: int
    ) -> None:
        """Accept a short last file, the result of a kill during a cut. WrongFileSize otherwise."""
        end = start + self.file_size
        is_short = length < self.file_size
        is_cut_off = is_short and start + length < known_end <= end
        if is_short and after is None and start % self.file_size == 0 and not is_cut_off:
            return
        lost = is_cut_off or (is_short and after == end)
        raise WrongFileSize(path, length, self.file_size, self.setting, lost=lost)

    def complete_last(self) -> None:
        """Extend the last file if it is short. After `load`, and only once the whole directory is
        known to be in order: a refused start changes nothing."""
        last = self.last
        if last is not None and last.file.size < self.file_size:
            log.warning(
                "the last file was short, probably because of a kill while it was cut: extended",
                path=last.path,
                was=last.file.size,
                size=self.file_size,
            )
            last.file.extend(self.file_size)

    def _check_contiguous(self) -> None:
        for before, after in pairwise(self.files):
            if after.start != before.end:
                missing = os.path.join(self.folder, offset_name(before.end))
                raise StoreError(
                    f"{self.folder} has a hole: {missing} is missing between {before.path} and "
                    f"{after.path}; put it back, or restore it from a copy of the store"
                )

    def create(self, start: int) -> MappedFile:
        """A new last file; it has no blocks yet. OSError when the disk refuses."""
        if not self._folder_made:
            self._unsynced.update(self.disk.makedirs(self.folder))
        return self.add(
            self.disk.create(os.path.join(self.folder, offset_name(start)), self.file_size), start
        )

    def add(self, made: DiskFile, start: int) -> MappedFile:
        """Append a file that was just created."""
        if not self._folder_made:
            # Its parents too: the thread that makes first files may have created them.
            parent = os.path.dirname(self.folder)
            self._unsynced.update((parent, os.path.dirname(parent)))
            self._folder_made = True
        self._unsynced.add(self.folder)
        file = self._mapped(made, start)
        self.files.append(file)
        return file

    def _mapped(self, file: DiskFile, start: int) -> MappedFile:
        if self._random:
            file.use_randomly()
        return MappedFile(file, start, self.counters, self.file_size)

    def find(self, offset: int) -> MappedFile | None:
        """The file that holds this byte of the stream."""
        files = self.files
        if not files:
            return None
        index = (offset - files[0].start) // self.file_size
        return files[index] if 0 <= index < len(files) else None

    def overlapping(self, start: int, end: int) -> Iterator[MappedFile]:
        """The files that hold a byte of [start, end)."""
        for file in tuple(self.files):  # a copy: one may be removed while the sync thread is here
            if file.start < end and start < file.end:
                yield file

    def remove_from(self, offset: int) -> None:
        """Delete the files that begin at or after `offset`, newest first: names stay contiguous."""
        if self.files and self.files[-1].start >= offset:
            self.remove_all(offset)
            self.disk.syncdir(self.folder)

    def remove_all(self, offset: int = 0) -> None:
        """The same, without a sync of the folder."""
        while self.files and self.files[-1].start >= offset:
            self.remove(self.files.pop())

    def remove(self, file: MappedFile) -> None:
        """Delete one file that is no longer in the list. From any thread."""
        with self._removing:
            if not self._retired:
                with suppress(FileNotFoundError):  # already removed by an operator
                    self.disk.unlink(file.path)
        file.close()

    def retire(self) -> None:
        """Remove nothing more: the folder is going to be deleted, and its paths may be another
        stream's then. Returns when no removal is under way."""
        with self._removing:
            self._retired = True

    def expired(
        self, is_expired: Callable[[MappedFile], bool], now_ms: int, force_after_ms: int
    ) -> MappedFile | None:
        """The oldest file if it may be removed now: never the last one, never one from the
        middle."""
        if len(self.files) < 2 or not is_expired(self.files[0]):
            return None
        return self.files[0] if self.files[0].shut(now_ms, force_after_ms) else None

    def close(self) -> None:
        for file in self.files:
            file.close()
        self.files.clear()
