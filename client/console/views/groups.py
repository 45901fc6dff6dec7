"""Consumer groups: all of them, and one with its owners, lag and members."""

from __future__ import annotations

from typing import Any

from aerobee.client.admin.details import Progress, TimeSpan
from aerobee.client.admin.types import Broker
from aerobee.client.console.view import Params, View, attempt, gather, need, now_ms
from aerobee.client.console.views.progress import all_progress
from aerobee.protocol.json.fastjson import MessageQueue
from aerobee.protocol.names import RETRY_PREFIX, is_system_group


async def listed(view: View, _params: Params) -> dict[str, Any]:
    """Every group with its lag in messages and in time, its members and topics."""
    progress = await all_progress(view)
    names = sorted({*progress, *await configs_of(view)})
    rows = await gather(_row(view, name, progress.get(name, [])) for name in names)
    return {"groups": rows}


async def _row(view: View, group: str, rows: list[Progress]) -> dict[str, Any]:
    connections = await connections_of(view, group)
    members = members_of(connections)
    view.history.see_members(group, {row["client"]: row["address"] for row in members})
    lag = sum(row.lag for row in rows)
    view.history.see_lag(group, lag)
    broadcasting = is_broadcasting(connections)
    configs = await configs_of(view)
    return {
        "group": group,
        "lag": None if broadcasting else lag,
        "age": None if broadcasting else await oldest_age(view, group, rows),
        "members": len(members),
        "topics": sorted({row.queue.topic for row in rows if not _is_retry(row.queue)}),
        "broadcasting": broadcasting,
        "growing": view.history.is_growing(group),
        "conflicts": any(body.get("conflicts") for body in connections.values()),
        "paused": any(not config.get("consumeEnable", True) for config in configs.get(group, ())),
    }


def _is_retry(queue: MessageQueue) -> bool:
    return queue.topic.startswith(RETRY_PREFIX)


async def configs_of(view: View) -> dict[str, list[dict[str, Any]]]:
    """The settings of all groups on all masters."""

    async def ask() -> dict[str, list[dict[str, Any]]]:
        found: dict[str, list[dict[str, Any]]] = {}
        masters = await view.masters()
        for table in await gather(view.admin.details.all_groups(row.address) for row in masters):
            for name, config in table.items():
                if not is_system_group(name):
                    found.setdefault(name, []).append(config)
        return found

    kept: dict[str, list[dict[str, Any]]] = await view.shared.get("group configs", 3.0, ask)
    return kept


async def connections_of(view: View, group: str) -> dict[str, dict[str, Any]]:
    """Each master's view of the group's members, by broker."""

    async def ask() -> dict[str, dict[str, Any]]:
        masters = await view.masters()
        details = view.admin.details
        answers = await gather(details.connections(row.address, group) for row in masters)
        return {row.name: answer for row, answer in zip(masters, answers, strict=True)}

    kept: dict[str, dict[str, Any]] = await view.shared.get(("connections", group), 1.5, ask)
    return kept


def members_of(connections: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    found = {
        row["clientId"]: {
            "client": row["clientId"],
            "address": row["clientAddr"],
            "language": str(row["language"]),
            "version": int(row["version"]),
        }
        for body in connections.values()
        for row in body.get("connectionSet") or ()
    }
    return sorted(found.values(), key=lambda row: str(row["client"]))


def is_broadcasting(connections: dict[str, dict[str, Any]]) -> bool:
    return any(body.get("messageModel") == "BROADCASTING" for body in connections.values())


async def oldest_age(view: View, group: str, rows: list[Progress]) -> int | None:
    """How long ago the oldest message that the group has not read was stored, in ms."""
    topics = {row.queue.topic for row in rows if row.lag}
    spans = [await spans_of(view, group, topic) for topic in topics]
    behind = {row.queue for row in rows if row.lag}
    ages = [row.delay_ms for found in spans for row in found if row.queue in behind]
    return max(ages, default=None)


async def spans_of(view: View, group: str, topic: str) -> list[TimeSpan]:
    async def ask() -> list[TimeSpan]:
        found: list[TimeSpan] = []
        for broker in await view.masters():
            details = view.admin.details
            found += await attempt(details.time_spans(broker.address, topic, group), [])
        return found

    kept: list[TimeSpan] = await view.shared.get(("spans", group, topic), 2.0, ask)
    return kept


async def one(view: View, params: Params) -> dict[str, Any]:
    """One group: owners, offsets, lag and age of each queue; members; who came and left."""
    group = need(params, "group")
    configs = await view.admin.group_config(group)  # NotFound when there is none
    connections = await connections_of(view, group)
    members = members_of(connections)
    view.history.see_members(group, {row["client"]: row["address"] for row in members})
    progress = (await all_progress(view)).get(group, [])
    broadcasting = is_broadcasting(connections)
    owners = await owners_of(view, group, connections)
    ages = {
        span.queue: span.delay_ms
        for topic in sorted({row.queue.topic for row in progress if row.lag})
        for span in await spans_of(view, group, topic)
    }
    return {
        "group": group,
        "broadcasting": broadcasting,
        "queues": [] if broadcasting else [_queue(row, owners, ages) for row in progress],
        "members": members,
        "owned": {client: sum(c == client for c in owners.values()) for client in owners.values()},
        "subscriptions": _subscriptions(connections),
        "conflicts": _conflicts(connections),
        "config": configs,
        "paused": any(not row.get("consumeEnable", True) for row in configs.values()),
        "events": list(view.history.events.get(group, ()))[::-1],
        "watched_since": view.history.since_ms,
        "now": now_ms(),
    }


def _queue(
    row: Progress, owners: dict[MessageQueue, str], ages: dict[MessageQueue, int]
) -> dict[str, Any]:
    return {
        "topic": row.queue.topic,
        "broker": row.queue.broker_name,
        "queue": row.queue.queue_id,
        "owner": owners.get(row.queue),
        "committed": row.committed,
        "sent": row.sent,
        "end": row.end,
        "lag": row.lag,
        "age": ages.get(row.queue) if row.lag else None,
    }


async def owners_of(
    view: View, group: str, connections: dict[str, dict[str, Any]]
) -> dict[MessageQueue, str]:
    """Which member owns which queue, as reported by the members themselves."""

    async def ask() -> dict[MessageQueue, str]:
        masters = {row.name: row for row in await view.masters()}
        asked: dict[str, Broker] = {}
        for broker, body in connections.items():
            for row in body.get("connectionSet") or ():
                asked.setdefault(row["clientId"], masters[broker])
        answers = await gather(_running(view, group, *pair) for pair in asked.items())
        return {
            queue: client
            for client, answer in zip(asked, answers, strict=True)
            for queue, state in (answer.get("mqTable") or {}).items()
            if not state.get("droped")
        }

    kept: dict[MessageQueue, str] = await view.shared.get(("owners", group), 4.0, ask)
    return kept


async def _running(view: View, group: str, client: str, broker: Broker) -> dict[str, Any]:
    details = view.admin.details
    return await attempt(details.running(broker.address, group, client), {})


def _subscriptions(connections: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    found = {
        topic: {
            "topic": topic,
            "expression": row.get("subString") or "*",
            "kind": row.get("expressionType") or "TAG",
        }
        for body in connections.values()
        for topic, row in (body.get("subscriptionTable") or {}).items()
    }
    return [found[topic] for topic in sorted(found)]


def _conflicts(connections: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"topic": topic, "client": row.get("clientId"), "expression": row.get("subString")}
        for body in connections.values()
        for topic, rows in (body.get("conflicts") or {}).items()
        for row in rows
    ]
