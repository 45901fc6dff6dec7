"""Outgoing messages: delays, the broker's answer, and receipts."""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from aerobee.client.message import (
    DELAY_LEVELS,
    Outgoing,
    Receipt,
    delay_level,
    durability_of,
)
from aerobee.client.transport.connection import Connection
from aerobee.protocol.files import properties as props
from aerobee.protocol.json.fastjson import MessageQueue
from aerobee.protocol.wire.command import Command

FIRST_5X: Final = 413  # the version number from which brokers have timers


class Delayed(Outgoing, gc=False, eq=False):
    """A delayed message: how the delay is encoded depends on the broker."""

    delay_ms: int | None = None
    deliver_ms: int | None = None

    def timing(self, connection: Connection) -> str:
        if self.deliver_ms is None and self.delay_ms is None:
            return ""
        if not connection.is_aerobee:
            seconds = (
                self.delay_ms / 1000
                if self.delay_ms is not None
                else (self.deliver_ms or 0) / 1000 - time.time()
            )
            if connection.peer_version < FIRST_5X or seconds in DELAY_LEVELS:
                return props.encode({props.DELAY: str(delay_level(seconds))})
        if self.delay_ms is not None:
            return props.encode({props.TIMER_DELAY_MS: str(self.delay_ms)})
        return props.encode({props.TIMER_DELIVER_MS: str(self.deliver_ms)})


class Stored(NamedTuple):
    """A broker's answer that it has stored the message or batch."""

    queue: MessageQueue
    answer: Command
    connection: Connection


def receipt(message: Outgoing, stored: Stored, index: int = 0) -> Receipt:
    """The receipt of the message; of a batch, that of the message at `index`."""
    ext = stored.answer.ext
    offset_ids = ext.get("msgId", "").split(",")
    return Receipt(
        message.topic,
        message.message_id,
        stored.queue._replace(queue_id=int(ext.get("queueId", stored.queue.queue_id))),
        int(ext.get("queueOffset", -1)) + index,
        offset_ids[index] if index < len(offset_ids) else "",
        durability_of(stored.answer.code, stored.connection.flush_mode, message.durable),
        ext.get("recallHandle") or None,
    )
