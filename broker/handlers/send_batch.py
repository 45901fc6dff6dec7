"""Batches: several messages in one send, put together or not at all.

A batch of plain messages is cut and encoded in C if possible (`plain_batch`). All others are
checked and decoded here.
"""

import random

from aerobee.broker.base import resource_names
from aerobee.broker.base.refused import Refused
from aerobee.broker.handlers.context import Broker
from aerobee.broker.handlers.plain_batch import plain_batch
from aerobee.broker.net.requests import Request
from aerobee.broker.services.topics.config import TopicConfig
from aerobee.broker.store.queues.consume_queue import ConsumeQueue
from aerobee.broker.store.results import BatchPut
from aerobee.protocol.files import properties
from aerobee.protocol.files.batch import decode_batch
from aerobee.protocol.files.ids import encode_host
from aerobee.protocol.files.record import TRANSACTION_MASK, Message
from aerobee.protocol.files.record_layout import CorruptRecord
from aerobee.protocol.wire.codes import ResponseCode
from aerobee.protocol.wire.headers import SendRequest


def messages_of_batch(
    broker: Broker, request: Request, fields: SendRequest, config: TopicConfig
) -> list[Message]:
    """The messages inside a batch; each carries only its own properties."""
    body = request.command.body
    if len(body) > broker.settings.max_message_size:
        raise _illegal(
            f"the batch takes {len(body)} bytes; maxMessageSize is "
            f"{broker.settings.max_message_size}"
        )
    if resource_names.is_retry_topic(fields.topic):
        raise _illegal(f"a batch cannot go to a retry topic, {fields.topic}")
    if fields.sys_flag & TRANSACTION_MASK or properties.TRAN_MSG in fields.properties:
        raise _illegal("a batch cannot be part of a transaction")
    try:
        parts = decode_batch(body)
    except CorruptRecord as error:
        raise _illegal(f"the batch's body is not sound: {error}") from None
    if not parts:
        raise _illegal("the batch holds no message")
    for text in (fields.properties, *(part[2] for part in parts)):
        if _is_delayed(text):
            raise _illegal("a message of a batch cannot be delayed; send it alone")
    queue_id = fields.queue_id
    if queue_id < 0:
        queue_id = random.randrange(max(1, config.write_queue_nums))
    connection = request.connection
    born_host = encode_host(*connection.peer)
    store_host = broker.addresses.store_host(connection.peer, connection.local)
    return [
        Message(
            fields.topic,
            queue_id,
            part_body,
            text,
            flag,
            fields.sys_flag,
            fields.born_timestamp,
            born_host,
            store_host,
            fields.reconsume_times,
        )
        for flag, part_body, text in parts
    ]


def put_plain_batch(
    broker: Broker, request: Request, fields: SendRequest, queue: ConsumeQueue
) -> tuple[BatchPut, str] | None:
    """Put a batch of plain messages; the result and their ids. None: `messages_of_batch` has to
    check it."""
    body = request.command.body
    if (
        not isinstance(body, bytes)
        or len(body) > broker.settings.max_message_size
        or is_unusual_batch(fields.properties)
    ):
        return None
    connection = request.connection
    store_host = broker.addresses.store_host(connection.peer, connection.local)
    rows = plain_batch(
        body,
        queue,
        (fields.sys_flag, fields.born_timestamp, fields.reconsume_times),
        (encode_host(*connection.peer), store_host),
    )
    if rows is None:
        return None
    result: BatchPut | None = broker.store.put_plain_batch(rows, fields.topic)
    if result is None:
        return None
    broker.stats.add_put(fields.topic, len(rows), result.size)
    return result, rows.message_ids(store_host.hex().upper().encode())


def _illegal(reason: str) -> Refused:
    return Refused(ResponseCode.MESSAGE_ILLEGAL, reason)


def is_unusual_batch(text: str) -> bool:
    """By the properties of its request."""
    return properties.TRAN_MSG in text or _is_delayed(text)


def _is_delayed(text: str) -> bool:
    if "DELAY" not in text and "TIMER_" not in text:
        return False
    pairs = properties.parse(text)
    level = pairs.get(properties.DELAY, "0")
    return level != "0" or any(name.startswith("TIMER_DEL") for name in pairs)
