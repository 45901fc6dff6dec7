"""Messages of an offline store directory: by topic, queue, offset, time or key."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from aerobee.broker.store.inspect.files import (
    Problem,
    QueueKey,
    ReportProgress,
    RestFile,
    RestStore,
    record_at,
    sound_record,
    walk_log,
)
from aerobee.broker.store.inspect.index import find_by_key
from aerobee.broker.store.inspect.queue import RestQueue
from aerobee.protocol.files import properties
from aerobee.protocol.files.ids import decode_host
from aerobee.protocol.files.queue_entry import BLANK_ENTRY_SIZE
from aerobee.protocol.files.record import StoredMessage, decode_record
from aerobee.protocol.files.record_layout import CorruptRecord
from aerobee.protocol.files.record_scan import NOTHING_HERE, Scanned, check_record


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which messages; None: any. Offsets and times: from, to (exclusive)."""

    topic: str | None = None
    queue_id: int | None = None
    offset_from: int | None = None
    offset_to: int | None = None
    time_from: int | None = None
    time_to: int | None = None
    key: str | None = None

    def takes(self, record: Scanned) -> bool:
        return (
            (self.topic is None or record.topic == self.topic.encode())
            and (self.queue_id is None or record.queue_id == self.queue_id)
            and (self.offset_from is None or record.queue_offset >= self.offset_from)
            and (self.offset_to is None or record.queue_offset < self.offset_to)
            and (self.time_from is None or record.store_timestamp >= self.time_from)
            and (self.time_to is None or record.store_timestamp < self.time_to)
        )


def select(
    store: RestStore,
    wanted: Wanted,
    report_progress: ReportProgress,
    bad: Callable[[Problem], None],
) -> Iterator[StoredMessage]:
    """The messages wanted: through the index by key and topic, through the queues by queue, else
    in the log's order. What cannot be read because of damage goes to `bad`."""
    if wanted.topic is not None and wanted.key is not None and store.index:
        places = _by_key(store, wanted.topic, wanted.key, bad)
    elif wanted.topic is not None and wanted.queue_id is not None:
        places = _by_queue(store, (wanted.topic, wanted.queue_id), wanted, bad)
    else:
        places = walk_log(store, _skip_damage(store, bad), report_progress, check_crc=False)
    for file, record in places:
        position = record.physical_offset - file.start
        try:
            check_record(file.view, file.start, position, record.size, True)
            message = decode_record(file.view, position) if wanted.takes(record) else None
        except CorruptRecord as error:
            bad(Problem(file.path, position, f"record: {error.reason}; it is left out"))
            continue
        if message and (wanted.key is None or _has_key(message, wanted.key)):
            yield message


def work_of(store: RestStore, wanted: Wanted) -> int:
    """The bytes that `select` will read of the log; 0 when it goes straight to the messages."""
    straight = wanted.topic is not None and (
        (wanted.key is not None and bool(store.index)) or wanted.queue_id is not None
    )
    return 0 if straight else store.log_bytes


def _has_key(message: StoredMessage, key: str) -> bool:
    return key in properties.keys_of(message.properties)


def _by_key(
    store: RestStore, topic: str, key: str, bad: Callable[[Problem], None]
) -> Iterator[tuple[RestFile, Scanned]]:
    for offset in sorted(set(find_by_key(store, topic, key))):
        if found := _pointed_at(store, offset, bad):
            yield found


def _pointed_at(
    store: RestStore, offset: int, bad: Callable[[Problem], None]
) -> tuple[RestFile, Scanned] | None:
    """The record that an entry leads to; one that the log has no more is no damage."""
    try:
        return sound_record(store, offset)
    except CorruptRecord as error:
        file = store.log_file(offset)
        assert file is not None  # only a record in a file can be unsound
        bad(Problem(file.path, offset - file.start, f"record: {error.reason}; it is left out"))
        return None


def _by_queue(
    store: RestStore, key: QueueKey, wanted: Wanted, bad: Callable[[Problem], None]
) -> Iterator[tuple[RestFile, Scanned]]:
    queue = RestQueue(store, key)
    entries, places = queue.entries[: queue.end], queue.places[: queue.end]
    begin = int(np.searchsorted(places, wanted.offset_from or 0))
    end = len(entries) if wanted.offset_to is None else np.searchsorted(places, wanted.offset_to)
    for number in range(begin, int(end)):
        offset, size, _ = entries[number].tolist()
        if size != BLANK_ENTRY_SIZE and (found := _pointed_at(store, offset, bad)):
            yield found


def _skip_damage(store: RestStore, bad: Callable[[Problem], None]) -> Any:
    """After an unsound record continue with the next file; the rest of its file is lost."""

    def on_damage(file: RestFile, error: CorruptRecord) -> int | None:
        later = [each.start for each in store.log if each.start > error.position]
        goes_on = next((start for start in later if record_at(store, start)), None)
        if goes_on is not None or error.reason != NOTHING_HERE:  # that is how a log ends
            text = f"record: {error.reason}; it and what follows it in this file are left out"
            bad(Problem(file.path, error.position - file.start, text))
        return goes_on

    return on_damage


def as_json(message: StoredMessage) -> dict[str, Any]:
    """All fields of a message; the body as text, or base64 if it is not text."""
    pairs = message.property_map()
    pairs.pop(properties.CRC32, None)
    row: dict[str, Any] = {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "size": message.size,
        "message_id": message.message_id,
        "stored": message.store_timestamp,
        "born": message.born_timestamp,
        "born_host": "{}:{}".format(*decode_host(message.born_host)),
        "store_host": "{}:{}".format(*decode_host(message.store_host)),
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "reconsume_times": message.reconsume_times,
        "properties": pairs,
    }
    body = bytes(message.body)
    try:
        row["body"] = body.decode()
    except UnicodeDecodeError:
        row["body_base64"] = base64.b64encode(body).decode()
    return row
