"""Writes a small store without the product's code: log files, blank records, consume queues."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from aerobee.protocol.files import properties
from aerobee.protocol.files.java_hash import tags_code
from aerobee.protocol.files.record import Message, encode_record
from aerobee.protocol.files.record_layout import BLANK_MAGIC

ENTRY = struct.Struct(">qiq")


class StoreWriter:
    """`add` stores messages one after the other; `close` pads the files to their full sizes."""

    def __init__(
        self, root: Path, *, file_size: int = 64 * 1024, queue_entries: int = 100, crc: bool = True
    ) -> None:
        self.root = root
        self.file_size = file_size
        self.queue_bytes = queue_entries * ENTRY.size
        self.crc = crc
        self.log = bytearray()
        self.queues: dict[tuple[str, int], bytearray] = defaultdict(bytearray)

    def add(self, message: Message, store_timestamp: int, *, dispatch: bool = True) -> int:
        """The record's physical offset."""
        queue = self.queues[message.topic, message.queue_id]
        queue_offset = len(queue) // ENTRY.size
        record = encode_record(
            message, queue_offset, len(self.log), store_timestamp, append_crc=self.crc
        )
        room = self.file_size - len(self.log) % self.file_size
        if len(record) + 8 > room:
            self.log += struct.pack(">ii", room, BLANK_MAGIC) + bytes(room - 8)
            record = encode_record(
                message, queue_offset, len(self.log), store_timestamp, append_crc=self.crc
            )
        physical = len(self.log)
        self.log += record
        if dispatch:
            tag = properties.get(message.properties, "TAGS")
            queue += ENTRY.pack(physical, len(record), tags_code(tag))
        return physical

    def close(self) -> Path:
        self._write(self.root / "commitlog", self.log, self.file_size)
        for (topic, queue_id), entries in self.queues.items():
            folder = self.root / "consumequeue" / topic / str(queue_id)
            self._write(folder, entries, self.queue_bytes)
        return self.root

    def _write(self, folder: Path, stream: bytearray, size: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for start in range(0, max(len(stream), 1), size):
            part = bytes(stream[start : start + size])
            (folder / f"{start:020d}").write_bytes(part + bytes(size - len(part)))


def write_store(root: Path, messages: Iterable[tuple[Message, int]], **sizes: Any) -> Path:
    writer = StoreWriter(root, **sizes)
    for message, store_timestamp in messages:
        writer.add(message, store_timestamp)
    return writer.close()
