"""Finding messages that are stored: by key, by id, by time, by offset."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Final

from aerobee.client.admin.admin import Admin
from aerobee.client.consuming import positions
from aerobee.client.consuming.pulling import Pulled, pull
from aerobee.client.consuming.subscription import Subscription, subscribe
from aerobee.client.core import Core
from aerobee.client.errors import (
    AerobeeError,
    ConnectFailed,
    ConnectionLost,
    Misuse,
    NoRoute,
    NotFound,
    RequestTimeout,
    refusal,
)
from aerobee.client.message import Message, timestamp_ms
from aerobee.client.transport.routes import MASTER
from aerobee.protocol.files.ids import decode_host, parse_offset_message_id
from aerobee.protocol.files.record import decode_record, decode_records
from aerobee.protocol.json.fastjson import MessageQueue
from aerobee.protocol.names import TOOLS_GROUP
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command

TIME_MAX: Final = 2**63 - 1
PULL_COUNT: Final = 256
KEY_MAX: Final = 64  # what brokers give by a key, unless they are set to more (maxMsgsNumBatch)
PORT_MAX: Final = 65535


async def by_key(
    core: Core,
    topic: str,
    key: str,
    *,
    since_ms: int = 0,
    until_ms: int = TIME_MAX,
    limit: int | None = None,
    unique: bool = False,
) -> list[Message]:
    """The newest `limit` messages of `topic` with that key, oldest first; None: as many as the
    brokers give. With `unique` the key is their id."""
    route = await core.routes.refresh(topic)
    ext = {
        "topic": topic,
        "key": key,
        "maxNum": str(KEY_MAX if limit is None else limit),
        "beginTimestamp": str(since_ms),
        "endTimestamp": str(until_ms),
        "indexType": "U" if unique else "K",
    }
    if unique:
        ext["_UNIQUE_KEY_QUERY"] = "true"
    found: list[Message] = []
    for part in route.parts:
        answer = await core.remoting.request(
            core.routes.address(part.broker), Command(RequestCode.QUERY_MESSAGE, dict(ext))
        )
        if answer.code == ResponseCode.SUCCESS:
            found += [
                Message(stored, part.broker, serializer=core.sender.serializer)
                for stored in decode_records(answer.body)
            ]
        elif answer.code not in (ResponseCode.QUERY_NOT_FOUND, ResponseCode.SYSTEM_ERROR):
            raise refusal(answer.code, answer.remark, what=f"the query of key {key!r}")
    # The broker looks up hashes: other keys may collide.
    found = [
        message
        for message in found
        if message.stored.topic == topic
        and (message.message_id == key if unique else key in message.keys)
    ]
    found.sort(key=lambda message: message.stored.store_timestamp)
    return found if limit is None else found[max(0, len(found) - limit) :]


async def by_id(core: Core, message_id: str, topic: str | None = None) -> Message:
    """The message with that id: an offset id names its broker, a unique id needs the topic."""
    if topic is not None:
        by_unique = await by_key(core, topic, message_id, unique=True, limit=32)
        if by_unique:
            return by_unique[0]
    try:
        host, physical_offset = parse_offset_message_id(message_id)
        address = "{}:{}".format(*decode_host(host))
    except ValueError as error:
        if topic is not None:
            raise NotFound(f"topic {topic!r} has no message {message_id}") from None
        raise Misuse(str(error), hint="a unique id needs the topic too") from None
    ext = {"offset": str(physical_offset)}
    if topic is not None:
        ext["topic"] = topic
    elif decode_host(host)[1] > PORT_MAX or physical_offset < 0:
        raise NotFound(
            f"{message_id} is an id that a producer gave, and does not say where the message is",
            hint="name the topic too",
        )
    # Only brokers of this cluster are queried, and the message found must have this id: a forged id
    # must not choose which host we connect to and send a signed request to.
    brokers = [broker for broker in await Admin(core).brokers() if broker.number == MASTER]
    brokers.sort(key=lambda broker: broker.address != address)
    unreached: AerobeeError | None = None
    for broker in brokers:
        try:
            answer = await core.remoting.request(
                broker.address, Command(RequestCode.VIEW_MESSAGE_BY_ID, dict(ext))
            )
        except (ConnectFailed, ConnectionLost, RequestTimeout) as error:
            unreached = error
            continue
        if answer.code == ResponseCode.SUCCESS:
            found = Message(
                decode_record(answer.body), broker.name, serializer=core.sender.serializer
            )
            if found.offset_message_id == message_id.upper():
                return found
    if unreached is not None:
        raise unreached
    raise NotFound(
        f"no broker of this cluster has a message with the id {message_id}, "
        f"which {address} gave, at {physical_offset}",
        hint="" if topic else "is it a unique id? Then name the topic too",
    )


async def pull_queue(
    core: Core,
    queue: MessageQueue,
    queue_offset: int,
    *,
    count: int = PULL_COUNT,
    wait: float = 0.0,
    subscription: Subscription | None = None,
) -> Pulled:
    """One pull outside of any group."""
    await core.routes.get(queue.topic)
    return await pull(
        core.remoting,
        core.routes.address(queue.broker_name),
        queue,
        queue_offset,
        group=TOOLS_GROUP,
        subscription=subscription or subscribe(queue.topic, None, None, 0),
        count=count,
        suspend=wait,
    )


async def by_time(
    core: Core,
    topic: str,
    *,
    since: datetime | float | None,
    until: datetime | float | None,
    subscription: Subscription | None = None,
) -> AsyncIterator[Message]:
    """Every message of the topic stored in that time, queue by queue."""
    try:
        route = await core.routes.refresh(topic)
    except NoRoute as error:
        raise NotFound(str(error)) from None
    until_ms = TIME_MAX if until is None else timestamp_ms(until)
    for queue in sorted(route.read_queues()):
        if since is None:
            offset = await positions.min_offset(core, queue)
        else:
            offset = await positions.offset_at(core, queue, timestamp_ms(since))
        end = await positions.max_offset(core, queue)
        while offset < end:
            pulled = await pull_queue(core, queue, offset, subscription=subscription)
            if pulled.next_offset <= offset and not pulled.messages:
                break
            for stored in pulled.messages:
                if stored.store_timestamp > until_ms or stored.queue_offset >= end:
                    end = 0
                    break
                yield Message(stored, queue.broker_name, serializer=core.sender.serializer)
            offset = pulled.next_offset
