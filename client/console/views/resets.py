"""Moving a group: first a table of what would change, then the change itself, queue by queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from aerobee.client.console.view import Params, View, gather, moment, need, number
from aerobee.client.console.views.topics import stats_of
from aerobee.client.errors import Misuse, NotFound
from aerobee.protocol.json.fastjson import MessageQueue

TARGETS: Final = ("first", "last", "time", "shift", "offset")


@dataclass(frozen=True, slots=True)
class Move:
    """One queue: from where to where."""

    queue: MessageQueue
    low: int
    end: int
    old: int
    new: int

    def as_dict(self) -> dict[str, Any]:
        return {
            "topic": self.queue.topic,
            "broker": self.queue.broker_name,
            "queue": self.queue.queue_id,
            "old": self.old,
            "new": self.new,
            "again": max(0, self.old - self.new),
            "skipped": max(0, self.new - self.old),
        }


async def preview(view: View, params: Params) -> dict[str, Any]:
    """Preview of a reset: nothing is changed, and no member need be online."""
    moves = [move for topic in topics_in(params) for move in await plan(view, topic, params)]
    return {
        "moves": [move.as_dict() for move in moves],
        "again": sum(max(0, move.old - move.new) for move in moves),
        "skipped": sum(max(0, move.new - move.old) for move in moves),
    }


def topics_in(params: Params) -> list[str]:
    """Several topics may be moved together."""
    value = params.get("topic")
    names = value if isinstance(value, list) else str(value or "").split(",")
    found = [str(name).strip() for name in names if str(name).strip()]
    if not found:
        raise Misuse("'topic' is missing")
    return found


async def plan(view: View, topic: str, params: Params) -> list[Move]:
    group, to = need(params, "group"), need(params, "to")
    if to not in TARGETS:
        raise Misuse(f"a group is moved to {', '.join(TARGETS)}, not to {to!r}")
    await view.admin.group_config(group)  # NotFound when there is none
    try:
        stats = await stats_of(view, topic)
    except NotFound:
        raise NotFound(f"there is no topic {topic!r}") from None
    committed = {row.queue: row.offset for row in await view.admin.lag(group, topic)}
    only = number(params, "queue", -1, -1, 1 << 20)
    chosen = [row for row in stats if only in (-1, row.queue.queue_id)]
    news = await gather(
        _target(view, params, to, row.queue, row.min_offset, row.max_offset, committed)
        for row in chosen
    )
    return [
        Move(
            row.queue,
            row.min_offset,
            row.max_offset,
            max(0, committed.get(row.queue, row.min_offset)),
            min(max(new, row.min_offset), row.max_offset),
        )
        for row, new in zip(chosen, news, strict=True)
    ]


async def _target(
    view: View,
    params: Params,
    to: str,
    queue: MessageQueue,
    low: int,
    end: int,
    committed: dict[MessageQueue, int],
) -> int:
    if to == "first":
        return low
    if to == "last":
        return end
    if to == "time":
        since = moment(params, "time")
        if since is None:
            raise Misuse("'time' is missing")
        return await view.mq.offset_at(queue, since)
    amount = number(params, "amount", 0, -(2**53), 2**53)
    if to == "offset":
        return amount
    return max(0, committed.get(queue, low)) + amount


async def reset(view: View, params: Params) -> dict[str, Any]:
    """Apply a preview exactly. `confirm` is the group's name, typed by the user."""
    group = need(params, "group")
    if params.get("confirm") != group:
        raise Misuse("type the group's name to confirm")
    moves = params.get("moves")
    if not isinstance(moves, list) or not moves:
        raise Misuse("'moves' are the rows of the preview, and there is none")
    try:
        chosen = [(_queue(row), int(row["new"])) for row in moves]
    except (TypeError, KeyError, ValueError):
        raise Misuse("'moves' are not the rows of a preview") from None
    for queue, offset in chosen:
        broker = await view.master(queue.broker_name)
        await view.admin.details.move(broker.address, group, queue, offset)
    return {"moved": len(chosen)}


def _queue(row: dict[str, Any]) -> MessageQueue:
    return MessageQueue(str(row["topic"]), str(row["broker"]), int(row["queue"]))


async def pause(view: View, params: Params) -> dict[str, Any]:
    """Let the group consume, or not; its other settings stay."""
    group, enabled = need(params, "group"), params.get("consume")
    if not isinstance(enabled, bool):
        raise Misuse("'consume' is true or false")
    configs = await view.admin.group_config(group)
    for broker in await view.masters():
        if broker.name in configs:
            details = view.admin.details
            await details.change_group(broker.address, group, consumeEnable=enabled)
    return {"group": group, "consume": enabled}
