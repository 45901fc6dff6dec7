"""Topics: all of them, and one with its queues, groups and settings."""

from __future__ import annotations

from typing import Any, Final

from aerobee.client.admin.types import QueueStats
from aerobee.client.console.view import Params, View, attempt, gather, need, now_ms
from aerobee.client.console.views.progress import all_progress
from aerobee.client.errors import AerobeeError, NotFound
from aerobee.protocol.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic

ROUTE_SECONDS: Final = 30.0  # as often as clients ask for their routes


async def listed(view: View, params: Params) -> dict[str, Any]:
    """Every topic with its queues, its messages, the rate of sends and who reads it."""
    names = await view.user_topics()
    if params.get("all") == "1":
        names = await view.all_topics()
    readers: dict[str, set[str]] = {}
    for group, rows in (await all_progress(view)).items():
        for row in rows:
            readers.setdefault(row.queue.topic, set()).add(group)
    listed = await gather(_row(view, name, sorted(readers.get(name, ()))) for name in names)
    return {"topics": listed}


async def stats_of(view: View, topic: str) -> list[QueueStats]:
    """Of each broker that has the topic; which these are changes seldom."""
    details = view.admin.details

    async def ask() -> list[QueueStats]:
        names = await view.shared.get(
            ("brokers of", topic), ROUTE_SECONDS, lambda: details.brokers_of(topic)
        )
        found: list[QueueStats] = []
        for row in await view.leading():
            if row.name in names:
                found += await details.topic_stats(row.address, topic)
        return sorted(found, key=lambda row: row.queue)

    kept: list[QueueStats] = await view.shared.get(("stats", topic), 1.5, ask)
    return kept


async def _row(view: View, name: str, groups: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"topic": name, "kind": _kind(name), "groups": groups}
    try:
        stats = await stats_of(view, name)
    except AerobeeError as error:
        return found | {"error": str(error)}
    newest = max((row.updated_at for row in stats if row.updated_at), default=None)
    end = sum(row.max_offset for row in stats)
    return found | {
        "queues": len(stats),
        "messages": end - sum(row.min_offset for row in stats),
        "rate": view.history.rate(("topic", name), end),
        "newest": round(newest.timestamp() * 1000) if newest else None,
    }


def _kind(name: str) -> str:
    if name.startswith(RETRY_PREFIX):
        return "retries"
    if name.startswith(DLQ_PREFIX):
        return "dead letters"
    return "system" if is_system_topic(name) else "normal"


async def one(view: View, params: Params) -> dict[str, Any]:
    """One topic: its queues with their span, its groups, its settings."""
    name = need(params, "topic")
    try:
        stats = await stats_of(view, name)
    except NotFound:
        raise NotFound(f"there is no topic {name!r}") from None
    oldest = await gather(_oldest(view, row) for row in stats)
    queues = [
        {
            "broker": row.queue.broker_name,
            "queue": row.queue.queue_id,
            "min": row.min_offset,
            "max": row.max_offset,
            "newest": round(row.updated_at.timestamp() * 1000) if row.updated_at else None,
            "oldest": first,
            "rate": view.history.rate(("queue", row.queue), row.max_offset),
        }
        for row, first in zip(stats, oldest, strict=True)
    ]
    groups: dict[str, int] = {}
    for group, rows in (await all_progress(view)).items():
        for row in rows:
            if row.queue.topic == name:
                groups[group] = groups.get(group, 0) + row.lag
    return {
        "topic": name,
        "kind": _kind(name),
        "queues": queues,
        "rate": view.history.rate(("topic", name), sum(row.max_offset for row in stats)),
        "groups": [{"group": group, "lag": lag} for group, lag in sorted(groups.items())],
        "config": await attempt(view.admin.topic_config(name), {}),
        "now": now_ms(),
    }


async def _oldest(view: View, row: QueueStats) -> int | None:
    """When the oldest message of a queue was stored."""
    if row.max_offset <= row.min_offset:
        return None

    async def ask() -> int | None:
        pulled = await view.mq.pull(row.queue, row.min_offset, count=1)
        return pulled.messages[0].store_timestamp if pulled.messages else None

    async def kept() -> int | None:
        key = ("oldest", row.queue, row.min_offset)
        found: int | None = await view.shared.get(key, 60.0, ask)
        return found

    return await attempt(kept(), None)
