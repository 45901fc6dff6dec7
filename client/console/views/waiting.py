"""Pending messages: timers, delay levels and retries; half messages of transactions."""

from __future__ import annotations

from typing import Any, Final

from aerobee.client.admin.types import Broker
from aerobee.client.console.view import Params, View, attempt, gather, need, now_ms, number
from aerobee.client.console.views import message_json
from aerobee.client.console.views.topics import stats_of
from aerobee.client.console.views.wheel import Timers, timers_of_apache
from aerobee.client.errors import AerobeeError, BrokerError, NoPermission, NotFound
from aerobee.client.message import DELAY_LEVELS, Message
from aerobee.protocol.files import properties as props
from aerobee.protocol.json.fastjson import MessageQueue
from aerobee.protocol.names import (
    SCHEDULE_TOPIC,
    TRANSACTION_GROUP,
    TRANSACTION_HALF_TOPIC,
    TRANSACTION_OP_TOPIC,
)

TIMERS: Final = 2000
LEVEL_SAMPLE: Final = 200
HALVES: Final = 2000


async def waiting(view: View, params: Params) -> dict[str, Any]:
    """Timers with their due times, and what lies in each delay level."""
    limit = number(params, "limit", TIMERS, 1, 20_000)
    topic = str(params.get("topic") or "") or None
    try:
        listed = await view.admin.timers(topic, limit=limit)
        timers = Timers([_timer(row) for row in listed], True)
    except NoPermission:
        raise
    except BrokerError:  # only Aerobee's brokers list them
        timers = await timers_of_apache(view, topic, limit)
    levels = await gather(_levels(view, row) for row in await view.masters())
    rows = [row for found in levels for row in found if not topic or topic in row["topics"]]
    return {
        "timers": timers.rows,
        "all_timers": timers.is_all,
        "limit": limit,
        "levels": rows,
        "now": now_ms(),
    }


def _timer(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "due": int(row["deliverTimestamp"]),
        "topic": row["topic"],
        "id": row["msgId"],
        "tag": row.get("tags"),
        "keys": row.get("keys"),
        "size": row["bodySize"],
        "handle": row["recallHandle"],
    }


async def _levels(view: View, broker: Broker) -> list[dict[str, Any]]:
    """How many messages wait in each delay level, and when the next ones are due."""
    try:
        delivered = await view.admin.details.delay_offsets(broker.address)
        stats = await stats_of(view, SCHEDULE_TOPIC)
    except AerobeeError:
        return []
    ends = {row.queue.queue_id: row for row in stats if row.queue.broker_name == broker.name}
    found = []
    for queue_id, row in sorted(ends.items()):
        at = max(row.min_offset, delivered.get(queue_id + 1, row.min_offset))
        if row.max_offset > at and queue_id < len(DELAY_LEVELS):
            found.append(await _level(view, row.queue, at, row.max_offset))
    return found


async def _level(view: View, queue: MessageQueue, at: int, end: int) -> dict[str, Any]:
    seconds = DELAY_LEVELS[queue.queue_id]
    pulled = await attempt(view.mq.pull(queue, at, count=LEVEL_SAMPLE), None)
    messages = [Message(row, queue.broker_name) for row in pulled.messages] if pulled else []
    return {
        "broker": queue.broker_name,
        "level": queue.queue_id + 1,
        "seconds": seconds,
        "count": end - at,
        "topics": sorted({row.properties.get(props.REAL_TOPIC, "") for row in messages}),
        "due": [row.stored.store_timestamp + seconds * 1000 for row in messages],
        "sample": [
            {
                "due": row.stored.store_timestamp + seconds * 1000,
                "topic": row.properties.get(props.REAL_TOPIC, ""),
                "id": row.message_id,
                "keys": row.keys,
            }
            for row in messages[:50]
        ],
    }


async def recall(view: View, params: Params) -> dict[str, Any]:
    """Take a delayed message back before its time."""
    found = await view.mq.recall(need(params, "topic"), need(params, "handle"))
    return {"recalled": found}


async def transactions(view: View, _params: Params) -> dict[str, Any]:
    """Half messages without an outcome: age, and how often their producer was asked."""
    bodies = not view.options.hide_bodies
    halves: list[dict[str, Any]] = []
    passed = 0
    for broker in await view.masters():
        open_halves, count = await _open_halves(view, broker)
        passed += count
        for half in open_halves:
            row = message_json.row_of(half, bodies=bodies)
            halves.append(
                row
                | {
                    "topic": half.properties.get(props.REAL_TOPIC, ""),
                    "group": half.properties.get(props.PGROUP, ""),
                    "born": half.stored.born_timestamp,
                    "checks": half.properties.get(props.TRANSACTION_CHECK_TIMES, "0"),
                }
            )
    return {"halves": halves, "looked_at": passed, "limit": HALVES, "now": now_ms()}


async def _open_halves(view: View, broker: Broker) -> tuple[list[Message], int]:
    """Those after the broker's own offset without an op message."""
    half_queue = MessageQueue(TRANSACTION_HALF_TOPIC, broker.name, 0)
    op_queue = MessageQueue(TRANSACTION_OP_TOPIC, broker.name, 0)
    try:
        halves = await _from_offset(view, broker, half_queue)
        ops = await _from_offset(view, broker, op_queue)
    except NotFound:
        return [], 0
    done = {
        int(word)
        for op in ops
        for word in op.body.decode("ascii", "replace").split(",")
        if word.isascii() and word.isdigit()
    }
    latest: dict[str, Message] = {}
    for half in halves:
        if half.queue_offset in done:
            continue
        latest[half.message_id] = half  # a check stores it again
    return list(latest.values()), len(halves)


async def _from_offset(view: View, broker: Broker, queue: MessageQueue) -> list[Message]:
    details = view.admin.details
    at = await details.offset_of(broker.address, TRANSACTION_GROUP, queue)
    at = max(at, await view.mq.min_offset(queue), 0)
    found: list[Message] = []
    while len(found) < HALVES:
        pulled = await view.mq.pull(queue, at)
        found += [Message(row, broker.name) for row in pulled.messages]
        if not pulled.messages or pulled.next_offset <= at:
            break
        at = pulled.next_offset
    return found
