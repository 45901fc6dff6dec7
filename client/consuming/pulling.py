"""One pull of one queue: the request, its answer, the records in it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum
from typing import Final

from aerobee.client.consuming.subscription import SQL92, Subscription
from aerobee.client.errors import refusal
from aerobee.client.transport.remoting import Remoting
from aerobee.protocol.files.record import StoredMessage, decode_records
from aerobee.protocol.files.record_layout import CorruptRecord
from aerobee.protocol.json.fastjson import MessageQueue
from aerobee.protocol.wire.codes import RequestCode
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.headers import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND

log = logging.getLogger("aerobee.consumer")

PULL_BYTES: Final = 4 << 20
ANSWER_SECONDS: Final = 15.0  # a pull's timeout beyond the time it may be held


class PullStatus(Enum):
    FOUND = 0
    NO_NEW = 19
    NO_MATCH = 20
    OFFSET_MOVED = 21


@dataclass(slots=True)
class Pulled:
    """The result of a pull; `next_offset` is where to continue."""

    status: PullStatus
    messages: list[StoredMessage]
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker: int


async def pull(
    remoting: Remoting,
    address: str,
    queue: MessageQueue,
    queue_offset: int,
    *,
    group: str,
    subscription: Subscription,
    count: int,
    suspend: float = 0.0,
    commit_offset: int = 0,
) -> Pulled:
    """Pull up to `count` messages from `queue_offset`; held up to `suspend` seconds when none."""
    sys_flag = PULL_SUSPEND if suspend > 0 else 0
    if commit_offset > 0:
        sys_flag |= PULL_COMMIT_OFFSET
    if subscription.kind != SQL92 or suspend == 0:
        sys_flag |= PULL_SUBSCRIPTION  # SQL is compiled once, from the heartbeat
    ext = {
        "consumerGroup": group,
        "topic": queue.topic,
        "queueId": str(queue.queue_id),
        "queueOffset": str(queue_offset),
        "maxMsgNums": str(count),
        "sysFlag": str(sys_flag),
        "commitOffset": str(max(commit_offset, 0)),
        "suspendTimeoutMillis": str(round(suspend * 1000)),
        "subscription": subscription.expression,
        "subVersion": str(subscription.version),
        "expressionType": subscription.kind,
        "maxMsgBytes": str(PULL_BYTES),
        "bname": queue.broker_name,
    }
    command = Command(RequestCode.PULL_MESSAGE, ext)
    answer = await remoting.request(address, command, timeout=suspend + ANSWER_SECONDS)
    try:
        status = PullStatus(answer.code)
    except ValueError:
        raise refusal(
            answer.code, answer.remark, what=f"a pull of {queue.topic!r}/{queue.queue_id}"
        ) from None
    stored: list[StoredMessage] = []
    if status is PullStatus.FOUND:
        try:
            stored = decode_records(bytes(answer.body))
        except CorruptRecord as error:
            if count > 1:  # one by one, so that only the damaged one is skipped
                return await pull(
                    remoting,
                    address,
                    queue,
                    queue_offset,
                    group=group,
                    subscription=subscription,
                    count=1,
                    suspend=suspend,
                    commit_offset=commit_offset,
                )
            log.error(
                "the message of %s at offset %d is damaged and skipped: %s",
                *(queue, queue_offset, error),
            )
    return Pulled(
        status,
        list(filter(subscription.matches, stored)) if subscription.tags else stored,
        int(answer.ext["nextBeginOffset"]),
        int(answer.ext["minOffset"]),
        int(answer.ext["maxOffset"]),
        int(answer.ext.get("suggestWhichBrokerId", 0)),
    )
