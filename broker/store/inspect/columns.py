"""The records of a log as columns of numbers, so that queues and index can be checked in bulk."""

from __future__ import annotations

from array import array
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aerobee.broker.store.inspect.files import QueueKey, RestFile
from aerobee.protocol.files import properties
from aerobee.protocol.files.java_hash import index_hash, java_hash, tags_code
from aerobee.protocol.files.java_hash_columns import hash_keys
from aerobee.protocol.files.record import (
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from aerobee.protocol.files.record_scan import Scanned

KEY_BATCH: Final = 4096
OFFSET, SIZE, QUEUE, NUMBER, TAGS_CODE, TIME, TAG_HASH = range(7)
COLUMNS: Final = TAG_HASH + 1


class Columns:
    """The records of the log as columns, and the keys of each."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[bytes, int], int] = {}
        self._prefixes: dict[bytes, int] = {}
        self._tag_hashes: dict[tuple[bytes, str], int] = {}
        # physical offset, size, number of the queue (here), queue offset or -1, tags code, store
        # time, hash of the tag as a key or -1
        self._rows = array("q")
        self._keys: list[str] = []
        self._key_prefixes: list[int] = []
        self._key_offsets: list[int] = []
        self._hashes: list[NDArray[Any]] = []
        self._hashed_offsets: list[NDArray[Any]] = []

    def add(self, file: RestFile, record: Scanned) -> None:
        end = record.physical_offset - file.start + record.size
        text = str(file.view[record.properties_position : end], "utf-8", "replace")
        transaction = record.sys_flag & TRANSACTION_MASK
        queue = self._numbers.setdefault((record.topic, record.queue_id), len(self._numbers))
        in_queue = not transaction & TRANSACTION_PREPARED
        tag = properties.get(text, properties.TAGS)
        self._rows.extend(
            (
                record.physical_offset,
                record.size,
                queue,
                record.queue_offset if in_queue else -1,
                tags_code(tag),
                record.store_timestamp,
                self._tag_hash(record.topic, tag) if tag else -1,
            )
        )
        if transaction != TRANSACTION_ROLLBACK:
            self._add_keys(record.topic, record.physical_offset, text)

    def _tag_hash(self, topic: bytes, tag: str) -> int:
        """RocketMQ 5.5 also indexes tags, as keys `T#tag`."""
        found = self._tag_hashes.get((topic, tag))
        if found is None:
            found = index_hash(topic.decode("utf-8", "replace"), f"T#{tag}")
            self._tag_hashes[topic, tag] = found
        return found

    def _add_keys(self, topic: bytes, offset: int, text: str) -> None:
        prefix = self._prefixes.get(topic)
        if prefix is None:
            prefix = java_hash(topic.decode("utf-8", "replace") + "#") & 0xFFFFFFFF
            self._prefixes[topic] = prefix
        for key in properties.keys_of(text):
            self._keys.append(key)
            self._key_prefixes.append(prefix)
            self._key_offsets.append(offset)
        if len(self._keys) >= KEY_BATCH:
            self._hash_waiting()

    def _hash_waiting(self) -> None:
        if self._keys:
            self._hashes.append(np.asarray(hash_keys(self._keys, self._key_prefixes), np.int64))
            self._hashed_offsets.append(np.asarray(self._key_offsets, np.int64))
            self._keys, self._key_prefixes, self._key_offsets = [], [], []

    def rows(self) -> NDArray[Any]:
        return np.frombuffer(self._rows, np.int64).reshape(-1, COLUMNS)

    def by_queue(self) -> dict[QueueKey, NDArray[Any]]:
        """The rows of each queue, in the log's order."""
        rows = self.rows()
        order = np.argsort(rows[:, QUEUE], kind="stable")
        bounds = np.searchsorted(rows[order, QUEUE], np.arange(len(self._numbers) + 1))
        return {
            (topic.decode("utf-8", "replace"), queue_id): rows[order[bounds[n] : bounds[n + 1]]]
            for (topic, queue_id), n in self._numbers.items()
        }

    def keys(self) -> NDArray[Any]:
        """(offset, hash) of every key."""
        self._hash_waiting()
        if not self._hashes:
            return np.empty((0, 2), np.int64)
        return np.column_stack((np.concatenate(self._hashed_offsets), np.concatenate(self._hashes)))
