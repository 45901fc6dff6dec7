"""<name>.json.journal on disk: a file of fixed length, restarted after each JSON file.

It need not be emptied: the first line after a new JSON file names that file, and lines left from an
earlier use do not continue its chain of checksums (`protocol.config_journal`).
Blocks are allocated once, so a full disk does not keep a change from being saved.
"""

from __future__ import annotations

import os
from typing import Any, Final

import structlog

from aerobee.broker.services.config_files.json_file import put_in_place, read_json, write_fresh
from aerobee.broker.store.files.disk import Disk, DiskFile
from aerobee.protocol.files.config_journal import (
    END,
    SUFFIX,
    Base,
    Journal,
    base_of,
    encode_line,
    encode_start,
    is_cut_off,
    next_base,
    read_journal,
    with_journal,
)
from aerobee.protocol.files.config_seal import seal
from aerobee.protocol.json import fastjson

log = structlog.get_logger("aerobee.store")

SIZE_MIN: Final = 256 << 10
SIZE_MAX: Final = 64 << 20
UNUSED: Final = ".unused"  # a journal that extends another JSON file than the one that is there


class JournalFile:
    """The journal of one JSON file. Nothing here is safe to call from two threads at once."""

    def __init__(self, json_path: str, disk: Disk) -> None:
        self.path = json_path + SUFFIX
        self._disk = disk
        self._file: DiskFile | None = None
        self._start = b""  # the first line, until it is written; with the first changes
        self._chain = 0
        self._end = 0
        self._size = SIZE_MIN  # that the file should have
        self.is_open = False  # whether the JSON file that it extends is on disk
        self._has_lines = True  # of any use, also by an earlier process
        self._names_next = False  # the last line names the next JSON file

    @property
    def is_used(self) -> bool:
        """Whether it holds changes that the JSON file does not."""
        return self.is_open and not self._start

    def end(self, base: Base) -> None:
        """This JSON file, which includes all changes in the journal, is about to replace the old
        one: nothing may be added before the next `begin`."""
        if self.is_used and self._file is not None:
            line, _ = encode_line(next_base(base), self._chain)
            if self._end + len(line) <= self._file.size:
                self._file.write(self._end, (line + END)[: self._file.size - self._end])
                self._file.sync()
                self._names_next = True
        elif self.is_open:
            self._forget()
        self.is_open = False

    def _forget(self) -> None:
        """Invalidate the lines: the JSON file on disk includes them. It would look as if another
        broker had written it, because they do not name it."""
        if not self._has_lines:
            return
        if self._file is not None:
            self._file.write(0, b"\0")
            self._file.sync()
        elif self._disk.exists(self.path):
            self._disk.unlink(self.path)
        self._has_lines = False

    def begin(self, base: Base) -> None:
        """This JSON file is on disk: what is added from now on extends it."""
        if not self._names_next:
            self._forget()
        self._names_next = False
        self._start, self._chain = encode_start(base)
        self._end = 0
        self._size = SIZE_MIN
        while self._size < min(base.size, SIZE_MAX):
            self._size *= 2
        self.is_open = True

    def _make(self) -> DiskFile:
        """Allocate a file at least as long as the JSON file: then that is rewritten because of a
        full journal only after as many bytes of changes."""
        self._close()
        if self._disk.exists(self.path):
            self._disk.unlink(self.path)
        file = self._disk.create(self.path, self._size)
        file.allocate(0, self._size)
        self._disk.syncdir(os.path.dirname(self.path))
        return file

    def append(self, texts: list[bytes]) -> bool:
        """Add a line for each text and return when they are on disk. False when they do not fit.
        After that, and after an OSError, nothing can be added before the next `begin`."""
        assert self.is_open
        lines = [self._start]
        chain = self._chain
        for text in texts:
            line, chain = encode_line(text, chain)
            lines.append(line)
        data = b"".join(lines)
        self.is_open = False
        if self._end + len(data) > self._size:
            return False
        if self._file is None or self._file.size < self._size:
            self._file = self._make()
        self._has_lines = True
        # Followed by a zero if there is room, so that a start can tell the end from damage.
        self._file.write(self._end, (data + END)[: self._size - self._end])
        self._file.sync()
        self.is_open = True
        self._start, self._chain = b"", chain
        self._end += len(data)
        return True

    def remove(self) -> None:
        """The JSON file is on disk and no further changes come."""
        self.is_open = False
        self._close()
        if self._disk.exists(self.path):
            self._disk.unlink(self.path)

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def load_with_journal(path: str, disk: Disk) -> tuple[dict[Any, Any] | None, bool]:
    """The content of a JSON file with the changes of its journal, and whether the JSON file still
    lacks those. OSError when the system does not let us read what may be whole.

    What a killed process left may be in the page cache alone, and after a failed sync for ever. So
    the folder is synced, and the changes are written again."""
    content, data = read_json(path, disk)
    if content is not None:
        disk.syncdir(os.path.dirname(path))
    name = path + SUFFIX
    if not disk.exists(name):
        return content, False
    lines = disk.read_small(name)
    journal = read_journal(lines)
    if is_cut_off(lines, journal):
        log.warning(
            "a journal ends in a line that is not whole: it was being written when the power "
            "went, or is damaged; the changes before it are used",
            path=name,
            position=0 if journal is None else journal.end,
        )
    whole = content if content is not None else {}
    count = with_journal(data, whole, journal)
    if count is None:
        log.warning(
            "the changes in a journal are not used: the file beside it was written by another "
            "broker since; compare them",
            path=path,
            journal=name + UNUSED,
        )
        disk.rename(name, name + UNUSED)
    if not count or journal is None:
        return content, False
    log.info("changes were taken from a journal", path=path, changes=count)
    try:
        _fold(path, whole, journal, disk)
    except OSError as error:
        log.warning("the file of a journal's changes cannot be written yet", error=str(error))
        return whole, True
    return whole, False


def _fold(path: str, whole: dict[Any, Any], journal: Journal, disk: Disk) -> None:
    """Replace the JSON file by one that holds the journal's changes."""
    data = seal(fastjson.dumps(whole, indent=1))
    write_fresh(path, data, disk)
    line, _ = encode_line(next_base(base_of(data)), journal.chain)
    file = disk.open(path + SUFFIX)
    try:
        if journal.end + len(line) <= file.size:
            file.write(journal.end, line)
            file.sync()
    finally:
        file.close()
    put_in_place(path, disk)
    disk.unlink(path + SUFFIX)
