"""What brokers ask of a client: rebalance, transaction checks, offset resets, its state."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from aerobee.client.consuming.consumer import Consumer
from aerobee.client.consuming.handed import Handed
from aerobee.client.consuming.membership import Membership
from aerobee.client.producing.requests import Requests
from aerobee.client.producing.transactions import TransactionProducer, dispatch_check
from aerobee.client.transport.connection import Connection
from aerobee.protocol.files.record import decode_record
from aerobee.protocol.json import fastjson
from aerobee.protocol.json.fastjson import MessageQueue
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command

log = logging.getLogger("aerobee.client")


@dataclass(slots=True)
class Members:
    """The consumers and transaction producers of one client, by group."""

    consumers: dict[str, Consumer] = field(default_factory=dict)
    producers: dict[str, TransactionProducer] = field(default_factory=dict)
    requests: Requests | None = None
    tasks: set[asyncio.Task[None]] = field(default_factory=set)  # answers that come later


def answer_broker(members: Members, connection: Connection, command: Command) -> None:
    """Do what the broker asks; a one-way request gets no answer."""
    handler = _HANDLERS.get(command.code)
    try:
        if handler is None:
            answer: Command | None = command.answer(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                remark=f"request type {command.code} not supported",
            )
        else:
            answer = handler(members, connection, command)
    except Exception as error:
        log.exception("request %d of %s failed", command.code, connection.address)
        answer = command.answer(ResponseCode.SYSTEM_ERROR, remark=str(error))
    if answer is not None and not command.is_oneway:
        connection.answer(answer)


def _check_transaction(members: Members, connection: Connection, command: Command) -> Command:
    dispatch_check(members.producers, connection, command)
    return command.answer(ResponseCode.SUCCESS)


def _take_reply(members: Members, _: Connection, command: Command) -> Command:
    if members.requests is not None:
        members.requests.take(command)
    return command.answer(ResponseCode.SUCCESS)


def _members_changed(members: Members, _: Connection, command: Command) -> Command:
    consumer = members.consumers.get(command.ext.get("consumerGroup", ""))
    if consumer is not None:
        consumer._member.request_rebalance()
    return command.answer(ResponseCode.SUCCESS)


def _reset_offsets(members: Members, _: Connection, command: Command) -> Command:
    consumer = members.consumers.get(command.ext.get("group", ""))
    if consumer is None:
        return command.answer(ResponseCode.CONSUMER_NOT_ONLINE, remark="no such consumer here")
    table = fastjson.loads(command.body).get("offsetTable") or {}
    pairs = (
        [(_queue(row), int(row["offset"])) for row in table]
        if isinstance(table, list)
        else [(queue, int(offset)) for queue, offset in table.items()]
    )
    mine = set(consumer.queues)
    for queue, offset in pairs:
        if queue in mine:
            log.info("the broker resets group %s on %s to offset %d", consumer.group, queue, offset)
            consumer.seek(queue, offset)
    return command.answer(ResponseCode.SUCCESS)


def _queue(row: dict[str, Any]) -> MessageQueue:
    return MessageQueue(row["topic"], row["brokerName"], int(row["queueId"]))


def _consumer_status(members: Members, _: Connection, command: Command) -> Command:
    consumer = members.consumers.get(command.ext.get("group", ""))
    if consumer is None:
        return command.answer(ResponseCode.CONSUMER_NOT_ONLINE, remark="no such consumer here")
    table = {
        row.queue: row.commit_offset
        for row in consumer._member.assignment.process_queues
        if row.queue.topic == command.ext.get("topic")
    }
    body = fastjson.dumps({"messageQueueTable": table})
    return command.answer(ResponseCode.SUCCESS, body=body)


def _running_info(members: Members, _: Connection, command: Command) -> Command:
    consumer = members.consumers.get(command.ext.get("consumerGroup", ""))
    if consumer is None:
        return command.answer(ResponseCode.SYSTEM_ERROR, remark="no such consumer here")
    return command.answer(ResponseCode.SUCCESS, body=fastjson.dumps(_describe(consumer._member)))


def _consume_directly(members: Members, connection: Connection, command: Command) -> Command | None:
    """Have the application handle a stored message now; answers when that is done."""
    consumer = members.consumers.get(command.ext.get("consumerGroup", ""))
    if consumer is None:
        return command.answer(ResponseCode.SYSTEM_ERROR, remark="no such consumer here")
    broker = command.ext.get("brokerName", "")
    handed = Handed(decode_record(bytes(command.body)), broker, consumer._member.serializer)
    consumer._member.hand_in(handed.message)
    task = asyncio.create_task(_answer_later(connection, command, handed), name="handed message")
    members.tasks.add(task)
    task.add_done_callback(members.tasks.discard)
    return None


async def _answer_later(connection: Connection, command: Command, handed: Handed) -> None:
    body = fastjson.dumps(await handed.result())
    if connection.closed is None:
        connection.answer(command.answer(ResponseCode.SUCCESS, body=body))


def _describe(member: Membership) -> dict[str, Any]:
    rows = member.assignment.process_queues
    queues = {
        row.queue: {
            "cachedMsgCount": row.unfinished,
            "cachedMsgSizeInMiB": row.unfinished_bytes >> 20,
            "commitOffset": row.commit_offset,
            "droped": row.revoked,
            "locked": member.locks_queues,
        }
        for row in rows
    }
    topics = {row.queue.topic for row in rows}
    return {
        "mqPopTable": {},
        "mqTable": queues,
        "properties": {
            "PROP_CLIENT_VERSION": "V5_5_0",
            "PROP_CONSUMEORDERLY": "true" if member.orderly else "false",
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_NAMESERVER_ADDR": ";".join(member.core.routes.name_servers),
        },
        "statusTable": {},
        "subscriptionSet": [member.subscription(topic).describe() for topic in sorted(topics)],
        "userConsumerInfo": {},
    }


_HANDLERS: Final[dict[int, Callable[[Members, Connection, Command], Command | None]]] = {
    RequestCode.CHECK_TRANSACTION_STATE: _check_transaction,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: _take_reply,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: _members_changed,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: _reset_offsets,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: _consumer_status,
    RequestCode.GET_CONSUMER_RUNNING_INFO: _running_info,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: _consume_directly,
}
