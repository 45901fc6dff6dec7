"""The commitlog: every message of every topic, one after the other, in files of equal size.

A file ends with a blank record (int room left, int magic) of at least 8 bytes, so a record that
would leave less goes to the next file. `append_rows` is the hot path: plain messages are encoded,
joined and written with one call; a tuple of facts about each goes to reput, so that the log need
not be read again. `append` takes messages of every kind.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial

import msgspec

from aerobee.broker.base.reports import Reports
from aerobee.broker.store.errors import remedy_for
from aerobee.broker.store.files.disk import Disk
from aerobee.broker.store.files.mapped_file import MappedFile, MappingCounters
from aerobee.broker.store.files.mapped_file_queue import MappedFileQueue
from aerobee.broker.store.log.allocate import FileMaker
from aerobee.broker.store.log.facts import Fact, Facts
from aerobee.broker.store.log.limits import (
    MessageLimits,
    limits_of,
    record_size_bound,
    record_size_max,
)
from aerobee.broker.store.log.rows import Encode, EncodedRows, Row, encode_rows
from aerobee.broker.store.log.transient_store_pool import TransientStorePool
from aerobee.broker.store.queues.queue_table import QueueTable
from aerobee.broker.store.results import BatchPut, PutResult, PutStatus, RefusedPut
from aerobee.broker.store.settings import StoreSettings
from aerobee.protocol.files import properties
from aerobee.protocol.files.properties import CRC32, NUL
from aerobee.protocol.files.record import NOT_IN_QUEUE, Message, encode_record
from aerobee.protocol.files.record_layout import BLANK_SIZE, V6_HOSTS, encode_blank


class LogFull(Exception):
    """No new file could be created, or the last one could not be written; the text says why."""


class CommitLog:
    __slots__ = (
        "_maker",
        "_pool",
        "_prepared_behind",
        "_reports",
        "_unblanked",
        "accepted_limits",
        "append_crc",
        "files",
        "flushed_offset",
        "last_store_timestamp",
        "limits",
        "queues",
    )

    def __init__(
        self,
        settings: StoreSettings,
        disk: Disk,
        counters: MappingCounters,
        queues: QueueTable,
        maker: FileMaker,
        pool: TransientStorePool | None,
        reports: Reports,
    ) -> None:
        self._reports = reports
        size = settings.mapped_file_size_commit_log
        self.files = MappedFileQueue(
            disk, settings.layout.commitlog, size, "mappedFileSizeCommitLog", counters, set()
        )
        self.queues = queues
        self._maker = maker
        self._pool = pool
        self._prepared_behind = -1  # start of the last file, once the next is being created
        self._unblanked: tuple[MappedFile, int, int] | None = None
        self.append_crc = settings.enabled_append_prop_crc
        self.limits = limits_of(settings)
        self.accepted_limits = self.limits.for_accepted()
        self.flushed_offset = 0
        self.last_store_timestamp = 0

    @property
    def max_offset(self) -> int:
        """The end of what is appended."""
        last = self.files.last
        return last.start + last.wrote if last is not None else 0

    @property
    def committed_offset(self) -> int:
        """The end of what is in the files, and so readable."""
        if self._pool is not None:
            for file in self.files.files:
                if file.buffer is not None and file.committed < file.wrote:
                    return file.start + file.committed
        return self.max_offset

    # -- appending

    def append_whole(self, rows: EncodedRows, topic: str, now_ms: int) -> Facts:
        """Append plain messages to one topic, all in the current file, or none: then use
        `append_batch`."""
        file = self.files.last
        if file is None or now_ms < self.last_store_timestamp:
            return []
        bound = rows.size_bound(record_size_bound(Message(topic, 0, b"")))
        if file.wrote + bound + BLANK_SIZE > file.size:
            return []
        return self.append_rows(rows, now_ms, whole=True)

    def append_rows(
        self, rows: list[Row] | EncodedRows, now_ms: int, *, whole: bool = False
    ) -> Facts:
        """Append plain messages while they fit the file; returns a fact for each that was appended.
        The rest begins with a message for `append`. LogFull when there is no file. `whole`: all or
        none."""
        if now_ms < self.last_store_timestamp:  # the clock was set back
            rows = _up_to_first_timed(rows[:])
            now_ms = self.last_store_timestamp
        self.last_store_timestamp = now_ms
        file = self._file_with_room(0)
        start = file.wrote
        encode: Encode = partial(encode_rows, rows) if isinstance(rows, list) else rows.encode
        facts, records = encode(
            file.start,
            start,
            file.size - BLANK_SIZE,
            now_ms,
            self.append_crc,
            self.limits.body_size,
            self.limits.properties_size,
        )
        if whole and len(facts) < len(rows):
            _take_numbers_back(facts)
            return []
        if facts:
            try:
                self._write(file, start, records)
            except LogFull:
                _take_numbers_back(facts)
                raise
        return facts

    def append_copy(self, offset: int, data: memoryview) -> None:
        """Append whole records, or the end of a file, as another broker wrote them; all in one
        file. An empty log begins where they begin."""
        if self.max_offset == self.files.min_offset != offset:
            self.files.remove_all()
        file = self._file_with_room(0) if self.files.files else self._new_file(offset)
        assert file.start + file.wrote == offset, f"{offset} does not follow {self.max_offset}"
        self._write(file, file.wrote, data)

    def append(
        self, messages: Sequence[Message], now_ms: int, facts: list[Fact], limits: MessageLimits
    ) -> list[PutResult]:
        """Append each message if possible; one result for each."""
        results: list[PutResult] = []
        ok = PutStatus.PUT_OK
        while len(results) < len(messages):
            try:
                appended = self.append_rows(self._rows(messages[len(results) :]), now_ms)
                facts += appended
                for _, queue_offset, offset, size, time_ms, _, _ in appended:
                    results.append(PutResult(ok, offset, size, queue_offset, time_ms))
                if len(results) < len(messages):
                    message = messages[len(results)]
                    results.append(self._append_slowly(message, now_ms, facts, limits))
            except LogFull as error:
                status = PutStatus.CREATE_MAPEDFILE_FAILED
                results += [RefusedPut(status, str(error)) for _ in messages[len(results) :]]
        return results

    def append_batch(
        self, messages: Sequence[Message], now_ms: int, facts: list[Fact], limits: MessageLimits
    ) -> PutResult:
        """Append all messages in one file, or none."""
        size = sum([record_size_bound(message) for message in messages])
        if size + BLANK_SIZE > self.files.file_size:
            return limits.too_big(f"the batch of {len(messages)} messages", size)
        try:
            file = self._file_with_room(size)
        except LogFull as error:
            return RefusedPut(PutStatus.CREATE_MAPEDFILE_FAILED, str(error))
        before = file.wrote
        results = self.append(messages, now_ms, facts, limits)
        bad = next((result for result in results if not result.ok), None)
        if bad is not None:
            self._take_back(file, before, facts)
            return bad
        offsets = [fact[2] for fact in facts]
        _, queue_offset, _, _, stored_ms, _, _ = facts[0]
        return BatchPut(offsets, file.wrote - before, queue_offset, stored_ms)

    def _take_back(self, file: MappedFile, before: int, facts: list[Fact]) -> None:
        """Undo an append that is not visible yet; its bytes must not look like records."""
        end, file.wrote = file.wrote, before
        self._blank_out(file, before, end)
        _take_numbers_back(facts)
        facts.clear()

    def _rows(self, messages: Sequence[Message]) -> list[Row]:
        """The plain messages up to the first that is not plain."""
        rows: list[Row] = []
        for message in messages:
            queue = self.queues.table.get((message.topic, message.queue_id))
            if (
                queue is None
                or not queue.topic_field
                or message.sys_flag & (V6_HOSTS | NOT_IN_QUEUE)
                or len(message.born_host) != 8
                or len(message.store_host) != 8
            ):
                break
            rows.append(
                (
                    queue,
                    message.body,
                    message.properties,
                    message.flag,
                    message.sys_flag,
                    message.born_timestamp,
                    message.born_host,
                    message.store_host,
                    message.reconsume_times,
                    message.prepared_transaction_offset,
                )
            )
        return rows

    def _append_slowly(
        self, message: Message, now_ms: int, facts: list[Fact], limits: MessageLimits
    ) -> PutResult:
        """Append one message of any kind: the first of a queue, IPv6, V2, a half, a copy with its
        old checksum, one that needs the next file, one that cannot be stored."""
        try:
            refused = limits.check(message) or limits.check_room(message)
            if refused is not None:
                return refused
            text = message.properties
            if CRC32 in text:
                text = properties.remove(text, CRC32)
                message = msgspec.structs.replace(message, properties=text)
            queue = self.queues.get_or_create(message.topic, message.queue_id)
            file = self._file_with_room(record_size_max(message))
            in_queue = not message.sys_flag & NOT_IN_QUEUE
            queue_offset = queue.assigned if in_queue else 0
            offset = file.start + file.wrote
            if not queue.is_timed:
                now_ms = self.last_store_timestamp
            # Without a checksum, zeros in a text cannot be distinguished from a torn write.
            append_crc = self.append_crc or NUL in text
            record = encode_record(message, queue_offset, offset, now_ms, append_crc=append_crc)
        except (struct.error, UnicodeError, TypeError) as error:
            reason = f"the message to {message.topic!r} cannot be stored: {error}"
            return RefusedPut(PutStatus.MESSAGE_ILLEGAL, reason)
        size = len(record)
        self._write(file, file.wrote, record)
        queue.assigned += in_queue
        numbered = queue_offset if in_queue else -1
        facts.append((queue, numbered, offset, size, now_ms, text, message.sys_flag))
        return PutResult(PutStatus.PUT_OK, offset, size, queue_offset, now_ms)

    # -- files

    def _file_with_room(self, size: int) -> MappedFile:
        """The file to write: the last one, or a new one when it has no room for `size`."""
        files = self.files.files
        file = files[-1] if files else None
        if file is not None and file.wrote < file.size:
            if size and file.wrote + size + BLANK_SIZE > file.size:
                self._end_file(file)
            else:
                if file.wrote * 4 > file.size and self._prepared_behind != file.start:
                    self._prepared_behind = file.start  # once: this runs before each write
                    self._maker.prepare(file.start + file.size)
                return file
        return self._new_file(file.end if file is not None else 0)

    def prepare_first_file(self) -> None:
        """Create the file for the first put in advance."""
        file = self.files.last
        if file is None or file.is_full:
            self._maker.prepare(file.end if file is not None else 0)
        elif file.allocated == file.size:
            self._maker.make_ready(file.file, file.wrote)

    def _new_file(self, start: int) -> MappedFile:
        try:
            made = self._maker.take(start)
        except OSError as error:
            self._reports.disk_error(
                "no new commitlog file could be made: sends are refused",
                error,
                call="create",
                path=self.files.folder,
                then="retried with every send; " + remedy_for(error, "repair the disk"),
            )
            raise LogFull(
                f"no new commitlog file of {self.files.file_size} bytes could be made in "
                f"{self.files.folder}: {error.strerror or error}; free space on that disk, or "
                f"check the permissions there"
            ) from error
        file = MappedFile(made, start, self.files.counters)
        file.allocated = file.size
        if self._pool is not None:
            file.buffer = self._pool.borrow()
        self.files.files.append(file)
        return file

    def _end_file(self, file: MappedFile) -> None:
        """Mark the rest of the file as blank, so that a scan continues in the next one."""
        room = file.size - file.wrote
        if room >= BLANK_SIZE:
            self._write(file, file.wrote, encode_blank(room))
        file.wrote = file.size

    def _write(self, file: MappedFile, position: int, data: bytes | memoryview) -> None:
        try:
            if self._unblanked is not None:
                self._unblanked[0].blank_out(*self._unblanked[1:])
                self._unblanked = None
            file.write(position, data)
        except OSError as error:
            if self._unblanked is None:
                self._blank_out(file, position, position + len(data))
            self._reports.disk_error(
                "the commitlog could not be written: sends are refused",
                error,
                call="write",
                path=file.path,
                then="retried with every send; " + remedy_for(error, "repair the disk"),
            )
            raise LogFull(
                f"{len(data)} bytes could not be written to {file.path} at {position}: "
                f"{error.strerror or error}; check the disk"
            ) from error
        file.wrote = position + len(data)

    def _blank_out(self, file: MappedFile, start: int, end: int) -> None:
        """Rolled-back bytes must not look like records. If the disk refuses that too, nothing is
        appended until it succeeds."""
        try:
            file.blank_out(start, end)
        except OSError:
            if self._unblanked is not None and self._unblanked[0] is file:  # of the same batch
                start, end = min(start, self._unblanked[1]), max(end, self._unblanked[2])
            self._unblanked = file, start, end

    # -- reading

    def find_readable(self, physical_offset: int) -> MappedFile | None:
        """The file that has this offset, if it is readable there."""
        file = self.files.find(physical_offset)
        if file is None or physical_offset - file.start >= file.readable:
            return None
        return file

    def read(self, physical_offset: int, size: int) -> bytes:
        """Bytes of one file, as far as it has them."""
        file = self.find_readable(physical_offset)
        return b"" if file is None else file.read(physical_offset - file.start, size)


def _up_to_first_timed(rows: list[Row]) -> list[Row]:
    """Store times never decrease, so that they can be searched. Those of delayed messages follow
    the clock all the same, in `_append_slowly`: their due time counts from it, also in a rebuilt
    queue and for a Java broker."""
    for number, row in enumerate(rows):
        if row[0].is_timed:
            return rows[:number]
    return rows


def _take_numbers_back(facts: Facts) -> None:
    """Free the queue offsets that these records were given."""
    for queue, queue_offset, *_ in reversed(facts):
        if queue_offset >= 0:
            queue.assigned = queue_offset
