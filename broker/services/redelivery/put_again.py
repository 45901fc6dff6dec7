"""Stored messages put again: read by their offset in the log, put to another queue."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import structlog

from aerobee.broker.base import resource_names
from aerobee.broker.base.reports import Reports
from aerobee.broker.services.redelivery.origins import origin_field
from aerobee.broker.store.queues.queue_start import first_real
from aerobee.broker.store.results import PutResult, PutStatus
from aerobee.protocol import names
from aerobee.protocol.files import properties as props
from aerobee.protocol.files.record import Message, StoredMessage, decode_record
from aerobee.protocol.files.record_layout import CorruptRecord

if TYPE_CHECKING:
    from aerobee.broker.store.message_store import MessageStore

log = structlog.get_logger("aerobee.services")

QUEUE_ID_MAX: Final = 1 << 20
BATCH_BYTES_MAX: Final = 4 << 20  # put at once, before the event loop runs again
CountPut = Callable[[str, int, int], None]  # topic, messages, bytes: for the broker's figures
# Refusals that a later try would get again.
HOPELESS: Final = frozenset({PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED})


def not_counted(_topic: str, _messages: int, _size: int) -> None:
    """The default for a service that runs without a broker."""


def message_at(
    store: "MessageStore", physical_offset: int, size: int | None = None
) -> StoredMessage | None:
    """The message stored there; None when there is none (any more)."""
    record = store.record_at(physical_offset, size)
    if record is None:
        return None
    try:
        message = decode_record(record)
    except CorruptRecord:
        return None
    return message if message.physical_offset == physical_offset else None


def sound_messages(
    store: "MessageStore", topic: str, queue_id: int, queue_offsets: range
) -> Iterator[StoredMessage]:
    """Each message by its own queue entry, if a read as a whole cannot be decoded; a damaged one is
    left out, which is logged."""
    for queue_offset in queue_offsets:
        entry = store.queue_entry(topic, queue_id, queue_offset)
        message = message_at(store, entry[0], entry[1]) if entry else None
        if message is None:
            log_damaged(topic, queue_id, queue_offset)
        else:
            yield message


def first_at_or_after(
    store: "MessageStore", topic: str, queue_id: int, physical_offset: int
) -> int:
    """The queue offset of the first message that is stored there or later; the queue's end when
    there is none."""
    low, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
    queue, high = store.queue_table.get(topic, queue_id), end
    if queue is None:
        return end
    while low < high:
        middle = first_real(queue, (low + high) // 2, high)
        entry = store.queue_entry(topic, queue_id, middle) if middle < high else None
        if entry is None or entry[0] >= physical_offset:
            high = (low + high) // 2
        else:
            low = middle + 1
    return first_real(queue, low, end)


def log_damaged(topic: str, queue_id: int, queue_offset: int) -> None:
    log.error(
        "a message cannot be read from the log: left out",
        topic=topic,
        queue_id=queue_id,
        queue_offset=queue_offset,
    )


def own_properties(stored: StoredMessage) -> str:
    """The properties without the record's checksum, which is of that record alone."""
    text = stored.properties
    return props.remove(text, props.CRC32) if props.CRC32 in text else text


def copy_for(stored: StoredMessage, topic: str, queue_id: int, properties: str) -> Message:
    """A stored message for another topic and queue, with its birth time, host and retries."""
    return Message(
        topic,
        queue_id,
        stored.body,
        properties,
        stored.flag,
        stored.sys_flag,
        stored.born_timestamp,
        stored.born_host,
        stored.store_host,
        stored.reconsume_times,
    )


def real_place(stored: StoredMessage) -> tuple[str, int] | None:
    """Topic and queue that the message is meant for; None when its properties are not valid."""
    topic = stored.property(props.REAL_TOPIC)
    queue_id = stored.property(props.REAL_QID)
    if not topic or not queue_id or resource_names.topic_problem(topic):
        return None
    if not (queue_id.isascii() and queue_id.isdigit() and len(queue_id) < 8):
        return None
    return (topic, int(queue_id)) if int(queue_id) < QUEUE_ID_MAX else None


def delivered(stored: StoredMessage) -> Message | None:
    """The message for its real destination; None, which is logged, if it is unusable."""
    place = real_place(stored)
    if place is None or place[0] in names.NO_SENDING_TOPICS:
        log.error(
            "a delayed message does not say where it goes: left out",
            topic=stored.topic,
            queue_offset=stored.queue_offset,
            physical_offset=stored.physical_offset,
            real_topic=stored.property(props.REAL_TOPIC),
        )
        return None
    message = copy_for(stored, *place, own_properties(stored))
    message.prepared_transaction_offset = origin_field(stored.physical_offset)
    return message


def log_failure(reports: Reports, event: str, error: Exception) -> None:
    """A round of deliveries failed and is retried: a disk error, or a bug."""
    reports.failed(event, error, then="retried every second")


def is_done(result: PutResult, stored: StoredMessage, reports: Reports) -> bool:
    """Whether a put needs no retry: it is stored, or never will be, which is logged."""
    if result.ok:
        return True
    if result.status in HOPELESS:
        log.error(
            "a delayed message cannot be stored: left out",
            topic=stored.topic,
            physical_offset=stored.physical_offset,
            reason=result.reason,
        )
        return True
    event = "delayed messages are not stored yet; trying again"
    reports.log(event, level="warning", reason=result.reason)
    return False
