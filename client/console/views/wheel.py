"""The timers of Apache's brokers, which do not list them: read from the topic in which they keep
them. Each is stored there when it is sent, and again when its broker carries it on."""

from __future__ import annotations

import time
from typing import Any, Final, NamedTuple

from aerobee.client.admin.types import Broker
from aerobee.client.console.view import View, gather, now_ms
from aerobee.client.errors import BrokerError, NoRoute, NotFound
from aerobee.client.message import Message
from aerobee.protocol.files import properties as props
from aerobee.protocol.json.fastjson import MessageQueue
from aerobee.protocol.names import TIMER_TOPIC
from aerobee.protocol.wire import recall_handle

STEP: Final = 256
LOOKED_AT_MAX: Final = 50_000
BUDGET_S: Final = 3.0


class Timers(NamedTuple):
    """The pending ones, next first; and whether older ones were left out."""

    rows: list[dict[str, Any]]
    is_all: bool


async def timers_of_apache(view: View, topic: str | None, limit: int) -> Timers:
    found = await gather(_timers(view, broker) for broker in await view.masters())
    rows = [row for each in found for row in each.rows if topic in (None, row["topic"])]
    rows.sort(key=lambda row: int(row["due"]))
    return Timers(rows[:limit], all(each.is_all for each in found))


async def _timers(view: View, broker: Broker) -> Timers:
    """From the newest back: the latest record of a timer counts."""
    queue = MessageQueue(TIMER_TOPIC, broker.name, 0)
    try:
        first, end = await view.mq.min_offset(queue), await view.mq.max_offset(queue)
    except (BrokerError, NoRoute, NotFound):
        return Timers([], True)  # an older one, or one without a timer wheel
    until = time.monotonic() + BUDGET_S
    low = max(first, end - LOOKED_AT_MAX)
    now, seen = now_ms(), set[str]()
    rows: list[dict[str, Any]] = []
    while end > low and time.monotonic() < until:
        start = max(low, end - STEP)
        for message in reversed(await _between(view, queue, start, end)):
            row = _row(message, broker.name, now, seen)
            if row is not None:
                rows.append(row)
        end = start
    return Timers(rows, end <= first)


async def _between(view: View, queue: MessageQueue, start: int, end: int) -> list[Message]:
    found: list[Message] = []
    while start < end:
        pulled = await view.mq.pull(queue, start, count=end - start)
        found += [Message(row, queue.broker_name) for row in pulled.messages]
        if pulled.next_offset <= start:
            break
        start = pulled.next_offset
    return [message for message in found if message.queue_offset < end]


def _row(message: Message, broker: str, now: int, seen: set[str]) -> dict[str, Any] | None:
    """None when it is due, was recalled, or was seen in a later record."""
    known = message.properties
    recalled = known.get(props.TIMER_DEL_UNIQKEY, "")
    if recalled:
        seen.add(recalled.rpartition("+")[2])  # some settings put the topic before it
        return None
    due = int(known.get(props.TIMER_OUT_MS, "0"))
    if message.message_id in seen or due <= now:
        return None
    seen.add(message.message_id)
    topic = known.get(props.REAL_TOPIC, "")
    return {
        "due": due,
        "topic": topic,
        "id": message.message_id,
        "tag": message.tag,
        "keys": " ".join(message.keys),
        "size": len(message.body),
        # Their brokers give it for a millisecond later, against rounding.
        "handle": recall_handle.encode(topic, broker, str(due + 1), message.message_id),
    }
