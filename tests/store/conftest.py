"""Stores in temporary folders, with small files so that every roll happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.base.clock import Clock
from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.store.settings import StoreSettings
from aerobee.protocol.files.record import Message, StoredMessage, decode_records
from store.inspected import COUNT, TOPICS

SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": 64 * 1024,
    "mapped_file_size_consume_queue": 20 * 50,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
    "disk_guard_enable": False,
    "delete_when": "",  # no hour: files go when a test says so, whatever the zone it runs in
}

OpenStore = Callable[..., MessageStore]


class ManualClock(Clock):
    """A clock that only a test advances."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.time_ms = now_ms

    def now_ms(self) -> int:
        return self.time_ms

    def monotonic(self) -> float:
        return self.time_ms / 1000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def open_store(tmp_path: Path, clock: ManualClock) -> Iterator[OpenStore]:
    """Opens the store in the test's folder (again); what is left open is closed."""
    opened: list[MessageStore] = []

    def open_one(**changes: Any) -> MessageStore:
        root = changes.pop("root", tmp_path / "store")
        used = changes.pop("clock", clock)
        disk = changes.pop("disk", None)
        ahead = changes.pop("ahead", False)
        settings = StoreSettings(store_path_root_dir=str(root), **(SMALL | changes))
        store = MessageStore(settings, clock=used, disk=disk, ahead=ahead)
        store.load()
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        abandon(store)


def abandon(store: MessageStore) -> None:
    """Abandon a store as a killed process does."""
    store.abandon()


def message(topic: str = "T", queue_id: int = 0, body: bytes = b"hello", **fields: Any) -> Message:
    return Message(topic, queue_id, body, **fields)


def dispatch(store: MessageStore) -> None:
    while store.reput.step():
        pass


def read_all(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[StoredMessage]:
    """Every message of a queue, read in order."""
    found: list[StoredMessage] = []
    offset = store.min_offset(topic, queue_id)
    while offset < store.max_offset(topic, queue_id):
        result = store.read_queue(topic, queue_id, offset, 32, max_bytes=1 << 20)
        for view in result.views:
            found += decode_records(view)
        result.release()
        assert result.next_offset > offset
        offset = result.next_offset
    return found


@pytest.fixture
def folder(tmp_path: Path, open_store: OpenStore, clock: ManualClock) -> Path:
    """A cleanly stopped store with several files of each kind."""
    store = open_store()
    for number in range(COUNT):
        clock.time_ms += 250
        text = f"KEYS\x01k{number} all\x02UNIQ_KEY\x01U{number:08d}\x02TAGS\x01t{number % 3}\x02"
        body = b"\xff\x00" if number == 7 else b"body %d " % number + b"x" * 200
        topic = TOPICS[number % 2]
        store.put([message(topic, number // 2 % 2, body, properties=text, born_timestamp=number)])
    dispatch(store)
    store.close()
    return tmp_path / "store"
