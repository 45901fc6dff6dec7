"""Handing a message back to the broker, to be delivered again later or to the dead letters."""

from __future__ import annotations

import logging
import time

from aerobee.client.connection import Connection
from aerobee.client.core import Core
from aerobee.client.errors import AerobeeError, refusal
from aerobee.client.message import RETRY_PREFIX, Message, delay_level
from aerobee.protocol import properties as props
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.command import Command
from aerobee.protocol.record import COMPRESSED, COMPRESSION_MASK

log = logging.getLogger("aerobee.consumer")

# What an earlier journey of the message has left in its properties.
_TRACES = (
    *(props.DELAY, props.REAL_TOPIC, props.REAL_QID, props.WAIT, props.CRC32, props.TRAN_MSG),
    *(props.TIMER_DELAY_MS, props.TIMER_DELAY_SEC, props.TIMER_DELIVER_MS, props.TIMER_OUT_MS),
    *(props.MSG_REGION, props.TRACE_ON, props.CLUSTER),
    *(props.TIMER_ENQUEUE_MS, props.TIMER_DEQUEUE_MS, props.TIMER_ROLL_TIMES),
)


async def send_back(
    core: Core,
    group: str,
    message: Message,
    delay: float | None,
    max_retries: int | None,
    *,
    in_place: bool,
) -> None:
    """Exact to the broker's timer with Aerobee; rounded up to a delay level with others.

    `in_place`: it was retried in its queue, and this is the end of it.
    """
    connection = await core.remoting.connection(core.routes.address(message.broker))
    # Of attempts in an orderly queue the broker does not know: they go with the message.
    if in_place or (delay is not None and connection.is_aerobee):
        await _resend(core, connection, group, message, delay, max_retries)
        return
    level = 0 if delay is None else delay_level(delay)
    ext = {
        "group": group,
        "offset": str(message.stored.physical_offset),
        "delayLevel": str(level),
        "originMsgId": message.message_id,
        "originTopic": message.stored.topic,
        "unitMode": "false",
        "bname": message.broker,
    }
    if max_retries is not None:
        ext["maxReconsumeTimes"] = str(max_retries)
    try:
        await core.remoting.ask(
            connection.address,
            RequestCode.CONSUMER_SEND_MSG_BACK,
            ext,
            what=f"the retry of {message.message_id}",
        )
    except AerobeeError as error:
        log.warning("%s; it is sent to the retry topic instead", error)
        await _resend(core, connection, group, message, delay, max_retries)


async def _resend(
    core: Core,
    connection: Connection,
    group: str,
    message: Message,
    delay: float | None,
    max_retries: int | None,
) -> None:
    """Send the message itself to the retry topic, with its count of attempts."""
    stored = message.stored
    text = props.remove(stored.properties, *_TRACES)
    text = props.put(text, props.RETRY_TOPIC, message.topic)
    if props.get(text, props.ORIGIN_MESSAGE_ID) is None:
        text = props.put(text, props.ORIGIN_MESSAGE_ID, stored.message_id)
    if connection.is_aerobee and delay is not None:
        if delay > 0:
            text = props.put(text, props.TIMER_DELAY_MS, str(round(delay * 1000)))
    else:
        level = 3 + message.reconsume_times if delay is None else delay_level(delay)
        text = props.put(text, props.DELAY, str(level))
    ext = {
        "a": group,
        "b": RETRY_PREFIX + group,
        "c": "TBW102",
        "d": "1",
        "e": "0",
        "f": str(stored.sys_flag & (COMPRESSED | COMPRESSION_MASK)),
        "g": str(stored.born_timestamp or time.time_ns() // 1_000_000),
        "h": str(stored.flag),
        "i": text,
        "j": str(message.reconsume_times + 1),
        "k": "false",
        "m": "false",
        "n": message.broker,
    }
    if max_retries is not None:
        ext["l"] = str(max_retries)
    command = core.remoting.sign(Command(RequestCode.SEND_MESSAGE_V2, ext, bytes(stored.body)))
    answer = await connection.request(command, core.timeout)
    if answer.code not in (0, 10, 11, 12):
        raise refusal(answer.code, answer.remark, what=f"the retry of {message.message_id}")
