"""The index files of a store and the pending keys for the newest one.

A message is indexed under its UNIQ_KEY and under each word of KEYS. Keys are collected and hashed
together; a query writes pending keys first, so it never misses one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import structlog
from numpy.typing import NDArray

from aerobee.broker.store.errors import WrongFileSize
from aerobee.broker.store.files.disk import Disk, DiskFile
from aerobee.broker.store.files.layout import index_name
from aerobee.broker.store.files.mapped_file import MappedFile, MappingCounters
from aerobee.broker.store.index.index_file import IndexFile, entries_kept
from aerobee.broker.store.log.facts import Fact
from aerobee.broker.store.settings import StoreSettings
from aerobee.protocol.files import properties
from aerobee.protocol.files.index_layout import index_file_size
from aerobee.protocol.files.java_hash import index_hash
from aerobee.protocol.files.java_hash_columns import hash_keys
from aerobee.protocol.files.properties import KEYS, NAME_END, PAIR_END, UNIQ_KEY
from aerobee.protocol.files.record import TRANSACTION_MASK, TRANSACTION_ROLLBACK

log = structlog.get_logger("aerobee.store")

BATCH: Final = 512
UNIQUE: Final = UNIQ_KEY + NAME_END
WORDS: Final = KEYS + NAME_END
_EVERY_OFFSET: Final = 1 << 62


class IndexService:
    def __init__(
        self,
        settings: StoreSettings,
        disk: Disk,
        counters: MappingCounters,
        unsynced: set[str],
        now_ms: Callable[[], int],
    ) -> None:
        self._disk = disk
        self.folder = settings.layout.index
        self._slots = settings.max_hash_slot_num
        self._entries = settings.max_index_num
        self._counters = counters
        self._unsynced_folders = unsynced
        self._now_ms = now_ms
        self.files: list[IndexFile] = []
        self.keys: list[str] = []  # pending: key, hash of "topic#", physical offset, store time
        self._prefixes: list[int] = []
        self._offsets: list[int] = []
        self._times: list[int] = []
        # Entries that could not be written to a full disk: hashes, physical offsets, store times.
        self._left: tuple[NDArray[Any], NDArray[Any], NDArray[Any]] | None = None
        self.unsynced: list[IndexFile] = []  # full files whose last bytes are not yet on disk

    # -- files

    def load(self) -> None:
        """Open the folder's files. All are checked before the first is changed."""
        size = index_file_size(self._slots, self._entries)
        found: list[tuple[DiskFile, int | None]] = []
        for name in self._disk.listdir(self.folder):
            if not (name.isascii() and name.isdigit()):
                continue
            file = self._disk.open(os.path.join(self.folder, name))
            kept: int | None = None
            if 0 < file.size < size:
                kept = entries_kept(file, self._slots, self._entries)
            if file.size not in (0, size) and kept is None:
                raise WrongFileSize(file.path, file.size, size, "maxHashSlotNum/maxIndexNum")
            found.append((file, kept))
        for opened, kept in found:
            if opened.size == 0:
                log.warning("an empty index file was removed", path=opened.path)
                self._disk.unlink(opened.path)
            else:
                self._load_file(opened, size, kept)
        if self.files and self.files[-1].room > 0:
            self.files[-1].load_table()  # now, not with the first message

    def _load_file(self, opened: DiskFile, size: int, kept: int | None) -> None:
        opened.use_randomly()
        if kept is not None:
            log.warning(
                "an index file was short, probably because of a kill while it was cut: extended",
                path=opened.path,
                was=opened.size,
                size=size,
            )
            opened.extend(size)
        file = IndexFile(MappedFile(opened, 0, self._counters), self._slots, self._entries)
        file.load()
        if kept is not None:
            file.cut(file.count_below(_EVERY_OFFSET, min(kept, file.count)))
        self.files.append(file)

    def _file_with_room(self) -> IndexFile:
        last = self.files[-1] if self.files else None
        if last is not None and last.room > 0:
            return last
        self._unsynced_folders.update(self._disk.makedirs(self.folder))
        name = index_name(self._now_ms())
        if last is not None and name <= os.path.basename(last.path):
            name = str(last.number + 1)  # clock set back, or daylight saving ended
        path = os.path.join(self.folder, name)
        made = self._disk.create(path, index_file_size(self._slots, self._entries))
        made.use_randomly()
        file = IndexFile(MappedFile(made, 0, self._counters), self._slots, self._entries)
        try:
            if last is not None:
                file.begin(last.end_timestamp, last.end_offset)
            file.prepare()
        except OSError:
            file.file.close()
            self._disk.unlink(path)
            raise
        self._unsynced_folders.add(self.folder)
        self.files.append(file)
        if last is not None:
            self.unsynced.append(last)
        return file

    def drop(self, file: IndexFile) -> None:
        """Take out one file and delete it."""
        self.files.remove(file)
        if file in self.unsynced:
            self.unsynced.remove(file)
        self.remove(file)
        self._unsynced_folders.add(self.folder)  # synced before the next checkpoint

    def remove(self, file: IndexFile) -> None:
        """Delete one file that is no longer in the list."""
        with suppress(FileNotFoundError):  # already removed by an operator
            self._disk.unlink(file.path)
        file.file.close()

    def is_first_expired(self, low: int) -> bool:
        """Whether the first file points only to log before `low`, and needs no sync any more."""
        first = self.files[0]
        return first.end_offset < low and first not in self.unsynced

    @property
    def indexed_offset(self) -> int:
        """The newest record with entries in a file; -1 when there is none."""
        for file in reversed(self.files):
            if file.count > 1:
                return file.end_offset
        return -1

    @property
    def known_to(self) -> int:
        """The newest record whose entries are in a file, or pending because of a full disk."""
        return self.indexed_offset if self._left is None else int(self._left[1][-1])

    def to_sync(self) -> list[IndexFile]:
        """The files with bytes that may not be on disk."""
        last = self.files[-1:]
        return self.unsynced + [file for file in last if file.count != file.flushed_count]

    # -- adding

    def add(self, facts: Sequence[Fact]) -> None:
        """Collect the keys of messages, by searching the property strings."""
        add_key = self.keys.append
        add_prefix = self._prefixes.append
        add_offset = self._offsets.append
        add_time = self._times.append
        unique, words_of, pair_end = UNIQUE, WORDS, PAIR_END
        unique_size, words_size = len(unique), len(words_of)
        for queue, _, offset, _, time_ms, text, sys_flag in facts:
            if sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
                continue
            # `properties.keys_of`, inlined: this runs for every message.
            at = text.rfind(unique)
            while at > 0 and text[at - 1] != pair_end:
                at = text.rfind(unique, 0, at)
            if at >= 0:
                end = text.find(pair_end, at)
                key = text[at + unique_size : end] if end >= 0 else text[at + unique_size :]
                if key or (key := properties.get(text, UNIQ_KEY) or ""):
                    add_key(key)
                    add_prefix(queue.key_hash)
                    add_offset(offset)
                    add_time(time_ms)
            at = text.rfind(words_of)
            while at > 0 and text[at - 1] != pair_end:
                at = text.rfind(words_of, 0, at)
            if at >= 0:
                end = text.find(pair_end, at)
                words = text[at + words_size : end] if end >= 0 else text[at + words_size :]
                words = words or properties.get(text, KEYS) or ""
                for key in words.split(" ") if " " in words else (words,):
                    if key:
                        add_key(key)
                        add_prefix(queue.key_hash)
                        add_offset(offset)
                        add_time(time_ms)

    def write_pending(self) -> None:
        """Write the pending keys. OSError when the disk refuses; the rest stays pending."""
        if self._left is not None:
            self.add_hashed(*self._left)
        while self.keys:
            file = self._file_with_room()
            amount = min(len(self.keys), file.room)
            hashes = hash_keys(self.keys[:amount], self._prefixes[:amount])
            file.add(hashes, self._offsets[:amount], self._times[:amount])
            del self.keys[:amount], self._prefixes[:amount]
            del self._offsets[:amount], self._times[:amount]

    def add_hashed(self, hashes: NDArray[Any], offsets: NDArray[Any], times: NDArray[Any]) -> None:
        """Write entries with known hashes. OSError when the disk refuses; the rest stays pending:
        it may be the second key of a record whose first is written."""
        while hashes.size:
            self._left = hashes, offsets, times
            file = self._file_with_room()
            amount = min(hashes.size, file.room)
            file.add(hashes[:amount], offsets[:amount], times[:amount])
            hashes, offsets, times = hashes[amount:], offsets[amount:], times[amount:]
        self._left = None

    def forget_pending(self) -> None:
        """Drop the pending keys: their records are about to be scanned again."""
        for waiting in (self.keys, self._prefixes, self._offsets, self._times):
            waiting.clear()
        self._left = None

    # -- looking up

    def find(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        """Physical offsets of records that may have the key, newest first; yields None now and then
        while it searches. Files may be added and removed meanwhile."""
        key_hash = index_hash(topic, key)
        for file in self.files[::-1]:
            if file in self.files and file.count > 1 and file.begin_timestamp <= end_ms:
                if file.end_timestamp + 999 < begin_ms:
                    return
                try:
                    yield from file.find(key_hash, begin_ms, end_ms)
                except OSError:
                    if file in self.files:
                        raise  # else it was removed during the search, and its records before

    def close(self) -> None:
        for file in self.files:
            file.file.close()
        self.files.clear()
