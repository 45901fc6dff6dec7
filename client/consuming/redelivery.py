"""Handing a message back to the broker, to be delivered again later or to the dead letters."""

from __future__ import annotations

import logging
import time
from typing import Final

from aerobee.client.core import Core
from aerobee.client.errors import AerobeeError, BrokerError, refusal
from aerobee.client.message import Message, delay_level
from aerobee.client.transport.connection import Connection
from aerobee.protocol.files import properties as props
from aerobee.protocol.files.record import COMPRESSED, COMPRESSION_MASK
from aerobee.protocol.json import fastjson
from aerobee.protocol.names import TEMPLATE_TOPIC, retry_topic
from aerobee.protocol.wire.codes import RequestCode
from aerobee.protocol.wire.command import Command

log = logging.getLogger("aerobee.consumer")

LIMIT_SECONDS: Final = 60.0  # how long a group's retry limit is cached
TO_DEAD_LETTERS: Final = -1  # as a delay level
# Properties left by an earlier delivery of the message.
_TRACES = (
    *(props.DELAY, props.REAL_TOPIC, props.REAL_QID, props.WAIT, props.CRC32, props.TRAN_MSG),
    *(props.TIMER_DELAY_MS, props.TIMER_DELAY_SEC, props.TIMER_DELIVER_MS, props.TIMER_OUT_MS),
    *(props.MSG_REGION, props.TRACE_ON, props.CLUSTER),
    *(props.TIMER_ENQUEUE_MS, props.TIMER_DEQUEUE_MS, props.TIMER_ROLL_TIMES),
)


class Limits:
    """How many retries a group's messages get: the consumer's setting, else the broker's."""

    def __init__(self, group: str, declared: int | None) -> None:
        self._group = group
        self._declared = declared
        self._known: dict[str, tuple[int | None, float]] = {}  # broker -> (limit, valid until)

    async def most(self, core: Core, broker: str) -> int | None:
        """None when the broker does not report it."""
        if self._declared is not None:
            return self._declared
        now = time.monotonic()
        known = self._known.get(broker)
        if known is None or known[1] < now:
            try:
                self._known[broker] = await self._ask(core, broker), now + LIMIT_SECONDS
            except AerobeeError as error:  # the last known limit is the best guess
                log.debug("the settings of group %s: %s", self._group, error)
        return self._known[broker][0] if broker in self._known else None

    async def _ask(self, core: Core, broker: str) -> int | None:
        try:
            answer = await core.remoting.ask(
                core.routes.address(broker),
                RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
                {"group": self._group},
                what=f"the settings of group {self._group!r}",
            )
            return int(fastjson.loads(answer.body)["retryMaxTimes"])
        except (BrokerError, KeyError, TypeError, ValueError) as error:
            log.info("the retry limit of group %s is not known: %s", self._group, error)
            return None


async def reject(core: Core, group: str, message: Message, reason: str) -> None:
    """To the dead letters at once."""
    await send_back(core, group, message, None, 0, reason, in_place=False, level=TO_DEAD_LETTERS)


def failure_text(reason: str) -> str:
    """The reason, cut to what a property can hold."""
    plain = reason.replace(props.NAME_END, " ").replace(props.PAIR_END, " ")
    return plain.encode(errors="replace").decode()[: props.FAILURE_SIZE_MAX]


async def send_back(
    core: Core,
    group: str,
    message: Message,
    delay: float | None,
    max_retries: int | None,
    reason: str = "",
    *,
    level: int = 0,
    in_place: bool,
) -> None:
    """Exact to the broker's timer with Aerobee; rounded up to a delay level with others.

    `in_place`: it was retried in its queue, and the retries are used up.
    """
    connection = await core.remoting.connection(core.routes.address(message.broker))
    # The broker does not know of attempts in an orderly queue: the message carries the count. In
    # other queues, those that it got here while the broker was away do not count.
    tries = message.reconsume_times if in_place else message.stored.reconsume_times
    if in_place or (delay is not None and connection.is_aerobee):
        await _resend(core, connection, group, message, tries, delay, max_retries, reason)
        return
    if delay is not None:
        level = delay_level(delay)
    ext = {
        "group": group,
        "offset": str(message.stored.physical_offset),
        "delayLevel": str(level),
        "originMsgId": message.message_id,
        "originTopic": message.stored.topic,
        "unitMode": "false",
        "bname": message.broker,
    }
    if reason:
        ext["reason"] = failure_text(reason)
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
        await _resend(core, connection, group, message, tries, delay, max_retries, reason)


async def _resend(
    core: Core,
    connection: Connection,
    group: str,
    message: Message,
    tries: int,
    delay: float | None,
    max_retries: int | None,
    reason: str,
) -> None:
    """Send the message itself to the retry topic, with its count of attempts."""
    stored = message.stored
    text = props.remove(stored.properties, *_TRACES)
    text = props.put(text, props.RETRY_TOPIC, message.topic)
    if props.get(text, props.ORIGIN_MESSAGE_ID) is None:
        text = props.put(text, props.ORIGIN_MESSAGE_ID, stored.message_id)
    if reason:
        text = props.put(text, props.LAST_FAILURE, failure_text(reason))
    if connection.is_aerobee and delay is not None:
        if delay > 0:
            text = props.put(text, props.TIMER_DELAY_MS, str(round(delay * 1000)))
    else:
        level = 3 + tries if delay is None else delay_level(delay)
        text = props.put(text, props.DELAY, str(level))
    ext = {
        "a": group,
        "b": retry_topic(group),
        "c": TEMPLATE_TOPIC,
        "d": "1",
        "e": "0",
        "f": str(stored.sys_flag & (COMPRESSED | COMPRESSION_MASK)),
        "g": str(stored.born_timestamp or time.time_ns() // 1_000_000),
        "h": str(stored.flag),
        "i": text,
        "j": str(tries + 1),
        "k": "false",
        "m": "false",
        "n": message.broker,
    }
    if max_retries is not None:
        ext["l"] = str(max_retries)
    command = Command(RequestCode.SEND_MESSAGE_V2, ext, bytes(stored.body))
    answer = await connection.request(command, core.timeout)
    if answer.code not in (0, 10, 11, 12):
        raise refusal(answer.code, answer.remark, what=f"the retry of {message.message_id}")
