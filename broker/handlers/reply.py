"""SEND_REPLY_MESSAGE and its V2: a consumer's answer, pushed to the producer that waits for it."""

import asyncio
from typing import Final

from aerobee.broker.handlers.common import bound
from aerobee.broker.handlers.context import Broker
from aerobee.broker.handlers.send import Sends
from aerobee.broker.net.addresses import join
from aerobee.broker.net.requests import Handler, Request
from aerobee.broker.services.reply import push_request, waiting_client
from aerobee.protocol.files import properties as props
from aerobee.protocol.files.ids import decode_host, encode_host, offset_message_id
from aerobee.protocol.files.record import Message
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.headers import SendRequest, decode_ext, decode_send_v2

PUSH_TIMEOUT_S: Final = 3.0


def handlers(sends: Sends) -> dict[int, Handler]:
    return bound(
        sends,
        {
            RequestCode.SEND_REPLY_MESSAGE: send_reply,
            RequestCode.SEND_REPLY_MESSAGE_V2: send_reply_v2,
        },
    )


def send_reply(sends: Sends, request: Request) -> Command | None:
    return _reply(sends, request, decode_ext(request.command.ext, SendRequest))


def send_reply_v2(sends: Sends, request: Request) -> Command | None:
    return _reply(sends, request, decode_send_v2(request.command.ext))


def _reply(sends: Sends, request: Request, fields: SendRequest) -> Command | None:
    """Push the reply, and answer its sender once the producer has confirmed it."""
    broker = sends.broker
    sends.checked_topic(fields)
    message = _message(broker, request, fields)
    ext = _store(sends, message)
    client_id = waiting_client(fields)
    if client_id is None:
        remark = f"reply message properties[{props.REPLY_TO_CLIENT}] is null"
        return request.command.answer(ResponseCode.SYSTEM_ERROR, ext, remark=remark)
    producer = broker.clients.producer_by_client_id(client_id)
    if producer is None:
        remark = (
            f"push reply message fail, channel of <{client_id}> not found: it is not connected to "
            "this broker, or has not sent its heartbeat yet"
        )
        return request.command.answer(ResponseCode.SYSTEM_ERROR, ext, remark=remark)
    push = push_request(
        fields,
        request.command.body,
        request.connection.name,
        join(*decode_host(message.store_host)),
        broker.clock.now_ms(),
    )

    def pushed(answer: "asyncio.Future[Command]") -> None:
        request.reply(_answer(request, answer, client_id, ext))

    producer.request(push, PUSH_TIMEOUT_S).add_done_callback(pushed)
    return None


def _answer(
    request: Request, answer: "asyncio.Future[Command]", client_id: str, ext: dict[str, str]
) -> Command:
    try:
        code, reason = answer.result().code, answer.result().remark
    except (TimeoutError, ConnectionError) as error:
        code, reason = ResponseCode.SYSTEM_ERROR, str(error)
    if code == ResponseCode.SUCCESS:
        return request.command.answer(ResponseCode.SUCCESS, ext)
    remark = f"push reply message to {client_id} fail: {reason or f'code {code}'}"
    return request.command.answer(ResponseCode.SYSTEM_ERROR, ext, remark=remark)


def _message(broker: Broker, request: Request, fields: SendRequest) -> Message:
    connection = request.connection
    return Message(
        fields.topic,
        max(0, fields.queue_id),
        request.command.body,
        fields.properties,
        fields.flag,
        fields.sys_flag,
        fields.born_timestamp,
        encode_host(*connection.peer),
        broker.addresses.store_host(connection.peer, connection.local),
        fields.reconsume_times,
    )


def _store(sends: Sends, message: Message) -> dict[str, str]:
    """Store the reply if the settings require it; returns the ext fields of the answer."""
    broker = sends.broker
    ext = {**sends.answers.fixed, "queueId": str(message.queue_id)}
    result = None
    if broker.settings.store_reply_message_enable:
        result = broker.store.put([message])[0]
    if result is None or not result.ok:
        return ext | {"msgId": "0", "queueOffset": "0"}
    return ext | {
        "msgId": offset_message_id(message.store_host, result.physical_offset),
        "queueOffset": str(result.queue_offset),
    }
