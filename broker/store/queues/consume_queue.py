"""A consume queue: entries that point into the commitlog, one stream per topic and queue.

`assigned` is the next queue offset that an append assigns; `max_offset` the end of what is
dispatched and thus readable. The last entries may still be only in memory (`kept`) and are read
from there; a thorough flush writes them first.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import structlog

from aerobee.broker.store.files.disk import Disk
from aerobee.broker.store.files.mapped_file import PAGE, MappedFile, MappingCounters
from aerobee.broker.store.files.mapped_file_queue import MappedFileQueue
from aerobee.broker.store.queues.consume_queue_ext import ConsumeQueueExt, is_address, last_address
from aerobee.broker.store.queues.first_files import FirstFiles
from aerobee.broker.store.settings import TIMED_TOPICS
from aerobee.protocol.files.java_hash import java_hash
from aerobee.protocol.files.queue_entry import (
    BLANK_ENTRY,
    BLANK_ENTRY_SIZE,
    ENTRY,
    ENTRY_OFFSET,
    ENTRY_SIZE,
)
from aerobee.protocol.files.record_layout import TOPIC_SIZE_MAX_V1

log = structlog.get_logger("aerobee.store")

DISPATCH_LAG_MS: Final = 200  # usual delay from storing a message to writing its entry
ALLOCATION_CHUNK: Final = 64 * 1024
KEPT_MAX: Final = 32 * ENTRY_SIZE  # bytes of entries in memory before they are written


class ConsumeQueue:
    __slots__ = (
        "assigned",
        "cuts",
        "ext",
        "ext_writable",
        "files",
        "first_files",
        "flushed_bytes",
        "is_schedule",
        "is_timed",
        "kept",
        "key_hash",
        "listened",
        "max_offset",
        "max_physical_offset",
        "min_offset",
        "plain_tags",
        "queue_id",
        "topic",
        "topic_bytes",
        "topic_field",
        "waiting",
        "write_end",
        "write_position",
        "writing",
    )

    def __init__(
        self,
        topic: str,
        queue_id: int,
        disk: Disk,
        folder: str,
        file_size: int,
        counters: MappingCounters,
        unsynced: set[str],
        first_files: FirstFiles,
        is_schedule: bool = False,
        ext: ConsumeQueueExt | None = None,
        ext_writable: bool = False,
        listened: bool = False,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.is_schedule = is_schedule
        self.is_timed = topic in TIMED_TOPICS
        self.listened = listened  # whether it has listeners: updated by the table
        self.ext = ext
        self.ext_writable = ext_writable
        self.plain_tags = not is_schedule and not ext_writable  # the tags code is the hash of TAGS
        self.topic_bytes = topic.encode()
        # The topic field of a V1 record; empty: the topic needs V2.
        length = len(self.topic_bytes)
        self.topic_field = (
            bytes([length]) + self.topic_bytes if length <= TOPIC_SIZE_MAX_V1 else b""
        )
        self.key_hash = java_hash(topic + "#") & 0xFFFFFFFF
        self.files = MappedFileQueue(
            disk, folder, file_size, "mappedFileSizeConsumeQueue", counters, unsynced, random=True
        )
        self.first_files = first_files
        self.assigned = 0
        self.max_offset = 0
        self.min_offset = 0
        self.max_physical_offset = -1  # end of the last record that has an entry here
        self.flushed_bytes = 0
        self.cuts = 0  # how often entries at its end were dropped: their offsets are used again
        self.waiting: list[bytes] = []  # new entries, for `write_waiting`
        self.kept = b""  # the last entries, if not written to the file yet
        # Position of the next entry in the file `writing`, which is allocated up to `write_end`.
        self.write_position = 0
        self.write_end = 0
        self.writing: MappedFile | None = None

    # -- writing

    def put(self, queue_offset: int, physical_offset: int, size: int, tags_code: int) -> bool:
        """Add an entry; False when it exists already. OSError when the disk refuses."""
        if queue_offset != self.max_offset or self.write_position >= self.write_end:
            if physical_offset + size <= self.max_physical_offset:
                return False
            self._seek(queue_offset)
        self._write(ENTRY.pack(physical_offset, size, tags_code))
        self.max_physical_offset = physical_offset + size
        return True

    def write_waiting(self, *, keep: bool = False) -> None:
        """Write the waiting entries with one call, or `keep` them. OSError when the disk refuses:
        some may be written, and none waits any more."""
        waiting, self.waiting = self.waiting, []
        if waiting:
            entries = b"".join(waiting)
            if keep:
                self.keep(entries)
            else:
                self.put_run(entries)

    def _write(self, entries: bytes | memoryview) -> None:
        """Write entries at the current position, which has room for them."""
        assert self.writing is not None
        if self.kept:
            self.write_kept()
        self.writing.write(self.write_position, entries)
        self.write_position += len(entries)
        self.max_offset += len(entries) // ENTRY_SIZE

    def keep(self, entries: bytes) -> None:
        """Add entries in memory, to be written together with later ones: for many queues with few
        messages each, where a write per entry would cost more than everything else. OSError when
        the disk refuses: they are added, but not written."""
        end = self.write_position + len(entries)
        if end > self.write_end:
            self.put_run(entries)
            return
        self.kept += entries
        self.write_position = end
        self.max_offset += len(entries) // ENTRY_SIZE
        physical_offset, size, _ = ENTRY.unpack_from(entries, len(entries) - ENTRY_SIZE)
        self.max_physical_offset = physical_offset + size
        if len(self.kept) >= KEPT_MAX or end == self.write_end:
            self.write_kept()

    def write_kept(self) -> None:
        """Write the entries kept in memory. OSError when the disk refuses: they are still kept."""
        if self.kept:
            assert self.writing is not None
            self.writing.write(self.write_position - len(self.kept), self.kept)
            self.kept = b""

    @property
    def written_bytes(self) -> int:
        """The end of the entries that are in the files."""
        return self.max_offset * ENTRY_SIZE - len(self.kept)

    def put_run(self, entries: bytes) -> None:
        """Append entries. OSError when the disk refuses: some may be written."""
        rest = memoryview(entries)
        while rest:
            if self.write_position >= self.write_end:
                self._open_slot(self.max_offset * ENTRY_SIZE)
            piece = rest[: self.write_end - self.write_position]
            self._write(piece)
            physical_offset, size, _ = ENTRY.unpack(piece[-ENTRY_SIZE:])
            self.max_physical_offset = physical_offset + size
            rest = rest[len(piece) :]

    def _seek(self, queue_offset: int) -> None:
        """Make the slot of `queue_offset` the next one to write."""
        if queue_offset < self.max_offset:
            # A newer record with a lower offset: the topic was deleted and created again.
            log.warning(
                "a queue starts again: its topic was deleted and recreated",
                topic=self.topic,
                queue_id=self.queue_id,
                was=self.max_offset,
                now=queue_offset,
            )
            self.cut(queue_offset)
        elif queue_offset > self.max_offset:
            self._skip_to(queue_offset)
        self._open_slot(queue_offset * ENTRY_SIZE)

    def _skip_to(self, queue_offset: int) -> None:
        """Fill the slots before `queue_offset` with blanks, at most as many as a file has; an empty
        queue just begins there."""
        file_size = self.files.file_size
        file_start = queue_offset * ENTRY_SIZE // file_size * file_size
        is_wide = (queue_offset - self.max_offset) * ENTRY_SIZE > file_size
        if not self.files.files or (is_wide and self.max_offset * ENTRY_SIZE < file_start):
            if self.files.files:
                log.error(
                    "a queue has a wide gap: its entries before the gap are dropped",
                    topic=self.topic,
                    queue_id=self.queue_id,
                    was=self.max_offset,
                    now=queue_offset,
                )
                self.files.remove_from(0)
            self.max_offset = file_start // ENTRY_SIZE
            self.min_offset = queue_offset
            self.flushed_bytes = file_start
            self.writing = None
            self.kept = b""
        elif self.max_offset != self.min_offset:
            log.error(
                "a queue has a gap: filled with blanks",
                topic=self.topic,
                queue_id=self.queue_id,
                was=self.max_offset,
                now=queue_offset,
            )
        else:
            self.min_offset = queue_offset
        while self.max_offset < queue_offset:
            self._open_slot(self.max_offset * ENTRY_SIZE)
            room = (self.write_end - self.write_position) // ENTRY_SIZE
            self._write(BLANK_ENTRY * min(queue_offset - self.max_offset, room))

    def _open_slot(self, byte: int) -> None:
        """Allocate the entry at this byte of the stream."""
        self.write_kept()
        file = self.writing
        if file is None or not file.start <= byte < file.end:
            if file is not None:
                file.wrote = file.size
                self._date_back(file)
            start = byte - byte % self.files.file_size
            file = self.files.find(byte) or self._new_file(start)
            self.writing = file
        # Allocate first: the sync of a page without a block could fail.
        self.write_position = self.write_end = byte - file.start
        file.allocate_to(self.write_position + ENTRY_SIZE, ALLOCATION_CHUNK)
        # The last entry that fits the chunk whole.
        self.write_end = file.allocated - file.allocated % ENTRY_SIZE
        file.wrote = self.write_position

    def _new_file(self, start: int) -> MappedFile:
        made = self.first_files.take(self.files.folder, start)
        if made is None:
            return self.files.create(start)
        file = self.files.add(made, start)
        file.allocated = self.first_files.allocated
        return file

    def _date_back(self, file: MappedFile) -> None:
        """A full file must not look younger than its last message, whose entry was written some
        time after it was stored (see `queue_dates`). The next flush sets the exact time, but a kill
        may come first."""
        disk = self.files.disk
        with suppress(OSError):
            disk.set_modified_ms(file.path, disk.modified_ms(file.path) - DISPATCH_LAG_MS)

    # -- reading

    def entries(self, queue_offset: int, count: int) -> bytes:
        """Up to `count` entries as bytes, from one file; empty when the offset is out of range."""
        byte = queue_offset * ENTRY_SIZE
        file = self.files.find(byte)
        left = self.max_offset - queue_offset
        if file is None or left <= 0:
            return b""
        position = byte - file.start
        length = (count if count < left else left) * ENTRY_SIZE
        if length > file.size - position:
            length = file.size - position
        if self.kept and byte + length > self.written_bytes:
            return self._with_kept(file, byte, length)
        return file.file.read(position, length)

    def _with_kept(self, file: MappedFile, byte: int, length: int) -> bytes:
        """Entries of which the last are in memory. They are not written for a read: a disk that
        refuses writes can still be read."""
        written = self.written_bytes
        read = file.file.read(byte - file.start, written - byte) if byte < written else b""
        return read + self.kept[max(0, byte - written) : byte + length - written]

    def kept_place(self, queue_offset: int) -> int | None:
        """Physical offset of an entry kept in memory; None: it is in the file."""
        at = queue_offset * ENTRY_SIZE - self.written_bytes
        if not 0 <= at < len(self.kept):
            return None
        return int(ENTRY_OFFSET.unpack_from(self.kept, at)[0])

    def written_place(self, queue_offset: int) -> int | None:
        """Physical offset of an entry in the file. From any thread."""
        byte = queue_offset * ENTRY_SIZE
        file = self.files.find(byte)
        found = file.file.read(byte - file.start, ENTRY_SIZE) if file is not None else b""
        if len(found) < ENTRY_SIZE:
            return None
        physical_offset, size, _ = ENTRY.unpack(found)
        return physical_offset if size not in (0, BLANK_ENTRY_SIZE) else None

    def entry(self, queue_offset: int) -> tuple[int, int, int] | None:
        """(physical offset, size, tags code); None outside the queue or for a blank slot."""
        if not self.min_offset <= queue_offset < self.max_offset:
            return None
        found = self.entries(queue_offset, 1)
        if not found:
            return None
        physical_offset, size, tags_code = ENTRY.unpack(found)
        if size == BLANK_ENTRY_SIZE:
            return None
        return physical_offset, size, self.real_tags_code(tags_code)

    def real_tags_code(self, tags_code: int) -> int:
        """An entry's tags code: its own, or that of the unit it points to."""
        if self.ext is None or not is_address(tags_code):
            return tags_code
        unit = self.ext.get(tags_code)
        return unit.tags_code if unit is not None else 0

    def next_file_offset(self, queue_offset: int) -> int:
        """The first queue offset of the file after the one that holds this offset."""
        per_file = self.files.file_size // ENTRY_SIZE
        return (queue_offset // per_file + 1) * per_file

    # -- keeping

    def cut(self, queue_offset: int) -> None:
        """Drop the entries from `queue_offset` on."""
        self.cuts += 1
        self.write_kept()
        byte = queue_offset * ENTRY_SIZE
        self.files.remove_from(byte + 1 if byte % self.files.file_size else byte)
        file = self.files.find(byte)
        if file is not None:
            file.cut(byte - file.start)
        self._forget_writes()
        self.max_offset = queue_offset
        self.min_offset = min(self.min_offset, queue_offset)
        self.flushed_bytes = min(self.flushed_bytes, byte)
        self.max_physical_offset = self.last_physical_end()
        self.cut_ext()

    def cut_ext(self) -> None:
        """Drop the units that no entry points to."""
        if self.ext is not None:
            files = reversed(self.files.files)
            runs = (self.entries(file.start // ENTRY_SIZE, self.max_offset) for file in files)
            addresses = (last_address(entries) for entries in runs)
            self.ext.cut_after(next((at for at in addresses if at is not None), None))

    def last_physical_end(self) -> int:
        last = self.entry(self.max_offset - 1) if self.max_offset else None
        return last[0] + last[1] if last else -1

    @property
    def has_unflushed(self) -> bool:
        """Whether entries, written or kept, are not on disk."""
        return self.max_offset * ENTRY_SIZE > self.flushed_bytes

    def unflushed(self, least_pages: int) -> list[MappedFile]:
        """The files to sync, if at least this many pages are dirty (0: any byte)."""
        end = self.written_bytes
        waiting = end - self.flushed_bytes
        if waiting <= 0 or waiting < least_pages * PAGE:
            return []
        ext = self.ext.unflushed(0) if self.ext is not None else []
        return ext + list(self.files.overlapping(self.flushed_bytes, end))

    def note_flushed(self, end: int) -> None:
        """The entries below this byte of the stream are on disk."""
        self.flushed_bytes = max(self.flushed_bytes, min(end, self.max_offset * ENTRY_SIZE))

    def destroy(self) -> None:
        """Remove the files; the caller syncs the folders."""
        self.cuts += 1
        self.first_files.discard(self.files.folder)
        self.files.remove_all()
        if self.ext is not None:
            self.ext.files.remove_all()
            self.ext.end = self.ext.flushed = 0
        self._forget_writes()
        self.max_offset = self.min_offset = self.assigned = self.flushed_bytes = 0
        self.max_physical_offset = -1

    def _forget_writes(self) -> None:
        self.waiting = []
        self.kept = b""
        self.writing = None
        self.write_position = self.write_end = 0

    def close(self) -> None:
        self.cuts += 1
        self._forget_writes()
        self.files.close()
        if self.ext is not None:
            self.ext.close()
