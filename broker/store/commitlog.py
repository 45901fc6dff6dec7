"""The commitlog: every message of every topic, one behind the other, in files of one size.

A file ends with a blank record (int room left, int magic) of at least 8 bytes, so a record that
would leave less goes to the next file. `append` is the hot path: it encodes a list of messages,
joins them and copies them into the map in one slice; what it knows of each message goes to reput
as a plain tuple, so that nobody has to read the log again.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from aerobee.broker.store.allocate import FileMaker
from aerobee.broker.store.consume_queue import ConsumeQueue
from aerobee.broker.store.crc import crc32, crc32_large
from aerobee.broker.store.disk import Disk
from aerobee.broker.store.limits import limits_of, record_size_max, with_properties
from aerobee.broker.store.mapped_file import MappedFile, MappingCounters
from aerobee.broker.store.mapped_file_queue import MappedFileQueue
from aerobee.broker.store.queue_table import QueueTable
from aerobee.broker.store.results import BatchPut, PutResult, PutStatus, RefusedPut
from aerobee.broker.store.settings import StoreSettings
from aerobee.broker.store.transient_store_pool import TransientStorePool
from aerobee.protocol import properties as message_properties
from aerobee.protocol.record import (
    BLANK_MAGIC,
    BLANK_SIZE,
    CRC_MASK,
    HEAD_V4,
    MAGIC_V1,
    Message,
    encode_record,
)

# queue, queue offset (-1: gets no queue entry), physical offset, size, store time, properties,
# sys flag
Fact = tuple[ConsumeQueue, int, int, int, int, str, int]

BLANK: Final = struct.Struct(">ii")
NOT_IN_QUEUE: Final = 0x4  # set in the sys flag of prepared and rolled-back messages alike
V6_HOSTS: Final = 0x30
JOIN_BODY_MAX: Final = 4096  # a larger body is not copied once more to save a call
_pack_head = HEAD_V4.pack
_pack_short = struct.Struct(">h").pack


class LogFull(Exception):
    """No further file could be made; the text says why."""


class CommitLog:
    __slots__ = (
        "_maker",
        "_pool",
        "_warm_at",
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
    ) -> None:
        size = settings.mapped_file_size_commit_log
        self.files = MappedFileQueue(
            disk, settings.layout.commitlog, size, "mappedFileSizeCommitLog", counters, set()
        )
        self.queues = queues
        self._maker = maker
        self._pool = pool
        self._warm_at = 0
        self.append_crc = settings.enabled_append_prop_crc
        self.limits = limits_of(settings)
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
        for file in self.files.files[-6:]:
            if file.buffer is not None and file.committed < file.wrote:
                return file.start + file.committed
        return self.max_offset

    # -- appending

    def append(
        self, messages: Sequence[Message], now_ms: int, facts: list[Fact]
    ) -> list[PutResult]:
        """Append each message that can be; one result for each."""
        now_ms = self.last_store_timestamp = max(now_ms, self.last_store_timestamp)
        results: list[PutResult] = []
        index = 0
        while index < len(messages):
            try:
                file = self._file_with_room(0)
                index = self._append_run(messages, index, file, now_ms, results, facts)
                if index < len(messages):
                    refused = self.limits.check_room(messages[index])
                    if refused is None:
                        self._end_file(file)
                    else:  # not even an empty file has room for it
                        results.append(refused)
                        index += 1
            except LogFull as error:
                status = PutStatus.CREATE_MAPEDFILE_FAILED
                results += [RefusedPut(status, str(error)) for _ in messages[index:]]
                break
        return results

    def append_batch(
        self, messages: Sequence[Message], now_ms: int, facts: list[Fact]
    ) -> PutResult:
        """Append all messages in one file, or none."""
        now_ms = self.last_store_timestamp = max(now_ms, self.last_store_timestamp)
        refused = [result for m in messages if (result := self.limits.check(m)) is not None]
        if refused:
            return refused[0]
        size = sum(map(record_size_max, messages))
        if size + BLANK_SIZE > self.files.file_size:
            return self.limits.too_big(f"the batch of {len(messages)} messages", size)
        try:
            file = self._file_with_room(size)
        except LogFull as error:
            return RefusedPut(PutStatus.CREATE_MAPEDFILE_FAILED, str(error))
        results: list[PutResult] = []
        before = file.wrote
        self._append_run(messages, 0, file, now_ms, results, facts)
        bad = next((result for result in results if not result.ok), None)
        if bad is not None:
            self._take_back(file, before, facts)
            return bad
        return BatchPut(results)

    def _take_back(self, file: MappedFile, before: int, facts: list[Fact]) -> None:
        """Undo an append that nobody has seen; its bytes must not look like records."""
        target = file.view if file.buffer is None else file.buffer
        target[before : file.wrote] = bytes(file.wrote - before)
        file.wrote = before
        while facts:
            queue, queue_offset, *_ = facts.pop()
            if queue_offset >= 0:
                queue.assigned = queue_offset

    def _append_run(
        self,
        messages: Sequence[Message],
        index: int,
        file: MappedFile,
        now_ms: int,
        results: list[PutResult],
        facts: list[Fact],
    ) -> int:
        """Append messages from `index` on while they fit the file; the index of the first that
        does not. One long loop without calls: this is where a put spends its time."""
        base = file.start
        start = position = file.wrote
        limit = file.size - BLANK_SIZE
        table = self.queues.table
        append_crc = self.append_crc
        limits = self.limits
        body_size_max = limits.body_size
        properties_size_max = limits.properties_size
        ok = PutStatus.PUT_OK
        parts: list[bytes | memoryview] = []
        add_part = parts.append
        join = b"".join
        for message in messages[index:] if index else messages:
            queue = table.get((message.topic, message.queue_id))
            text = message.properties
            body = message.body
            sys_flag = message.sys_flag
            born_host = message.born_host
            store_host = message.store_host
            try:
                props = text.encode()
                body_size = len(body)
                props_size = len(props)
                if (
                    queue is None
                    or body_size > body_size_max
                    or props_size > properties_size_max
                    or not queue.topic_field
                    or sys_flag & V6_HOSTS
                    or len(born_host) != 8
                    or len(store_host) != 8
                    or "__CRC32#" in text
                ):
                    refused = limits.check(message)
                    if refused is not None:
                        results.append(refused)
                        index += 1
                        continue
                    queue, text, record = self._encode_slowly(message, base + position, now_ms)
                    size = len(record)
                    if position + size > limit:
                        break
                    add_part(record)
                else:
                    if append_crc:
                        if props_size and props[-1] != 2:
                            props += b"\x02"
                            props_size += 1
                        props_size += 20
                    topic_field = queue.topic_field
                    size = 90 + body_size + len(topic_field) + props_size
                    if position + size > limit:
                        break
                    head = _pack_head(
                        size,
                        MAGIC_V1,
                        (crc32_large if body_size > 512 else crc32)(body) & CRC_MASK,
                        message.queue_id,
                        message.flag,
                        0 if sys_flag & NOT_IN_QUEUE else queue.assigned,
                        base + position,
                        sys_flag,
                        message.born_timestamp,
                        born_host,
                        now_ms,
                        store_host,
                        message.reconsume_times,
                        message.prepared_transaction_offset,
                        body_size,
                    )
                    tail = topic_field + _pack_short(props_size) + props
                    if body_size <= JOIN_BODY_MAX:
                        # One join, then one checksum of it: cheaper than one of each part.
                        record = join((head, body, tail))
                        add_part(record)
                        crc = (crc32_large if size > 600 else crc32)(record) if append_crc else 0
                    else:
                        crc = crc32(tail, crc32_large(body, crc32(head))) if append_crc else 0
                        add_part(head)
                        add_part(body)
                        add_part(tail)
                    if append_crc:
                        add_part((b"\x02%010d\x01#23CRC__" % (crc & CRC_MASK))[::-1])
            except (struct.error, UnicodeError, TypeError) as error:
                reason = f"the message to {message.topic!r} cannot be stored: {error}"
                results.append(RefusedPut(PutStatus.MESSAGE_ILLEGAL, reason))
                index += 1
                continue
            if sys_flag & NOT_IN_QUEUE:
                queue_offset = 0
                facts.append((queue, -1, base + position, size, now_ms, text, sys_flag))
            else:
                queue_offset = queue.assigned
                queue.assigned = queue_offset + 1
                facts.append((queue, queue_offset, base + position, size, now_ms, text, sys_flag))
            results.append(PutResult(ok, base + position, size, queue_offset, now_ms))
            position += size
            index += 1
        if parts:
            target = file.view if file.buffer is None else file.buffer
            target[start:position] = join(parts)
            file.wrote = position
        return index

    def _encode_slowly(
        self, message: Message, physical_offset: int, now_ms: int
    ) -> tuple[ConsumeQueue, str, bytes]:
        """The record of a message that is out of the ordinary: IPv6, V2, a first one, a copy."""
        queue = self.queues.get_or_create(message.topic, message.queue_id)
        text = message.properties
        if "__CRC32#" in text:
            text = message_properties.remove(text, message_properties.CRC32)
            message = with_properties(message, text)
        queue_offset = 0 if message.sys_flag & NOT_IN_QUEUE else queue.assigned
        record = encode_record(
            message, queue_offset, physical_offset, now_ms, append_crc=self.append_crc
        )
        return queue, text, record

    # -- files

    def _file_with_room(self, size: int) -> MappedFile:
        """The file to write: the last one, or a new one when it has no room for `size`."""
        file = self.files.last
        if file is not None and not file.is_full:
            if size and file.wrote + size + BLANK_SIZE > file.size:
                self._end_file(file)
            else:
                if file.wrote * 4 > file.size:
                    self._maker.prepare(file.end)
                if file.start + file.wrote >= self._warm_at:
                    self._warm_at = file.start + self._maker.warm(file.file, file.wrote)
                return file
        return self._new_file(file.end if file is not None else 0)

    def prepare_first_file(self) -> None:
        """Have the file for the first put made while nobody waits for it yet."""
        file = self.files.last
        if file is None or file.is_full:
            self._maker.prepare(file.end if file is not None else 0, first=True)

    def _new_file(self, start: int) -> MappedFile:
        try:
            made = self._maker.take(start)
        except OSError as error:
            raise LogFull(
                f"no new commitlog file of {self.files.file_size} bytes could be made in "
                f"{self.files.folder}: {error.strerror or error}; free space on that disk, or "
                f"check who may write there"
            ) from error
        file = MappedFile(made, start, self.files.counters)
        file.allocated = file.size
        if self._pool is not None:
            file.buffer = self._pool.borrow()
        self.files.files.append(file)
        self._warm_at = start + self._maker.populated
        return file

    def _end_file(self, file: MappedFile) -> None:
        """Mark the rest of the file as blank, so that a scan goes on in the next one."""
        room = file.size - file.wrote
        if room >= BLANK_SIZE:
            target = file.view if file.buffer is None else file.buffer
            target[file.wrote : file.wrote + BLANK_SIZE] = BLANK.pack(room, BLANK_MAGIC)
        file.wrote = file.size

    # -- reading

    def find_readable(self, physical_offset: int) -> MappedFile | None:
        """The file in which a reader finds this offset."""
        file = self.files.find(physical_offset)
        if file is None or physical_offset - file.start >= file.readable:
            return None
        return file
