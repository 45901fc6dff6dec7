"""What was sent to the store and what it promised, compared with what a recovery finds."""

from __future__ import annotations

from dataclasses import dataclass, field

from crash.sim_disk import SimDisk
from waiting import finish

from aerobee.broker.services.config_files.json_file import load_json
from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.store.results import ReadStatus
from aerobee.protocol.files.record import Message, StoredMessage, decode_records

ROOT = "/store"
OFFSETS = f"{ROOT}/config/consumerOffset.json"


class Broken(AssertionError):
    """A guarantee of the store that an image violates."""


@dataclass
class Sent:
    """A message the store took, and where it said it put it."""

    key: str
    topic: str
    queue_id: int
    body: bytes
    queue_offset: int
    physical_offset: int
    end: int


@dataclass
class Ledger:
    """What was sent over all lives, and what of it the store has promised to keep."""

    sent: dict[str, Sent] = field(default_factory=dict)
    attempted: dict[str, Message] = field(default_factory=dict)  # may be stored without an answer
    promised: set[str] = field(default_factory=set)
    offset_saved: int = 0  # the consumer offset whose save returned
    offset_asked: int = 0  # the newest that was ever tried

    def check(self, store: MessageStore, disk: SimDisk) -> None:
        """Everything that must hold after a recovery."""
        found = self._check_queues(store)
        lowest = store.min_physical_offset
        for key in sorted(self.promised):
            sent = self.sent[key]
            if sent.physical_offset >= lowest and key not in found:
                raise Broken(f"promised {key} at {sent.physical_offset} is gone")
        self._check_index(store, found)
        self._check_offsets(disk)

    def _check_queues(self, store: MessageStore) -> dict[str, StoredMessage]:
        found: dict[str, StoredMessage] = {}
        for topic, queue_ids in store.queues().items():
            for queue_id in queue_ids:
                for message in read_all(store, topic, queue_id):
                    self._check_message(message)
                    found[bytes(message.body[:16]).decode()] = message
        if store.dispatched_offset != store.max_physical_offset:
            raise Broken(
                f"the queues end at {store.dispatched_offset}, the log at "
                f"{store.max_physical_offset}"
            )
        return found

    def _check_message(self, message: StoredMessage) -> None:
        key = bytes(message.body[:16]).decode(errors="replace")
        attempt, sent = self.attempted.get(key), self.sent.get(key)
        if attempt is None:
            raise Broken(f"{message.topic}/{message.queue_id}: {key!r} was never sent")
        if message.body != attempt.body or message.topic != attempt.topic:
            raise Broken(f"{key}: its content differs from what was sent")
        if message.properties.partition("__CRC32#")[0] != attempt.properties:
            raise Broken(f"{key}: its properties differ from what was sent")
        if sent is None:  # the power went before the answer came
            return
        place = (message.queue_id, message.queue_offset, message.physical_offset)
        if place != (sent.queue_id, sent.queue_offset, sent.physical_offset):
            raise Broken(f"{key}: it was stored elsewhere than the store said: {place}, {sent}")

    def _check_index(self, store: MessageStore, found: dict[str, StoredMessage]) -> None:
        for key, message in found.items():
            hits = finish(store.search(message.topic, key, 32, 0, 2**62))
            offsets = [hit.physical_offset for view in hits.views for hit in decode_records(view)]
            if offsets != [message.physical_offset]:
                raise Broken(f"{key}: the index finds {offsets}, not {message.physical_offset}")

    def _check_offsets(self, disk: SimDisk) -> None:
        table = load_json(OFFSETS, disk=disk)
        value = table["offset"] if table else 0
        if not self.offset_saved <= value <= self.offset_asked:
            raise Broken(f"consumer offset {value}; saved was {self.offset_saved}")

    def settle(self, store: MessageStore, disk: SimDisk) -> None:
        """After a recovery all that is there is promised, and what is not there is not."""
        end = store.max_physical_offset
        self.sent = {key: sent for key, sent in self.sent.items() if sent.end <= end}
        self.promised = set(self.sent)
        table = load_json(OFFSETS, disk=disk)
        self.offset_saved = self.offset_asked = table["offset"] if table else 0


def read_all(store: MessageStore, topic: str, queue_id: int) -> list[StoredMessage]:
    """Every message of a queue; its offsets must be gapless."""
    offset, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
    messages: list[StoredMessage] = []
    while offset < end:
        result = store.read_queue(topic, queue_id, offset, 32, max_bytes=1 << 20)
        where = f"{topic}/{queue_id} at {offset} of {end}"
        if result.status is not ReadStatus.FOUND:
            raise Broken(f"{where}: {result.status.name}")
        batch = [message for view in result.views for message in decode_records(bytes(view))]
        result.release()
        for message in batch:
            if (message.topic, message.queue_id, message.queue_offset) != (topic, queue_id, offset):
                raise Broken(f"{where}: finds {message.topic}/{message.queue_id} {message!r}")
            offset += 1
        messages += batch
    return messages
