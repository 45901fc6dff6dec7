"""The first page: rates, disk usage, lag, and what needs attention."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from aerobee.client.admin.types import Broker
from aerobee.client.console.view import Params, View, attempt, gather, now_ms, number
from aerobee.client.console.views import groups, store
from aerobee.client.errors import AerobeeError
from aerobee.client.tools.doctor import examine_cluster
from aerobee.protocol.names import DLQ_PREFIX

SAMPLE_SECONDS: Final = 2.0
DAY_MS: Final = 86_400_000
OLD_AGE_MS: Final = 60_000  # an unread message older than that is reported
BEHIND_SHOWN: Final = 6
_ORDER: Final = {"trouble": 0, "warning": 1}


async def overview(view: View, params: Params) -> dict[str, Any]:
    """The figures now, the samples since the viewer's last one, and the list of troubles."""
    since = number(params, "since", 0, 0, 2**62)
    sample: dict[str, Any] = await view.shared.get(
        "sample", SAMPLE_SECONDS - 0.2, lambda: _sample(view)
    )
    brokers = await view.brokers()
    found = await view.shared.get("attention", 8.0, lambda: attention(view))
    return {
        "cluster": ", ".join(sorted({row.cluster for row in brokers if row.cluster})) or "–",
        "brokers": sample["brokers"],
        "now": sample["now"],
        "samples": [row["now"] for row in view.history.samples if row["now"]["at"] > since],
        "attention": found["rows"],
        "worst": found["behind"][0] if found["behind"] else None,
        "behind": found["behind"],
        "watched_since": view.history.since_ms,
    }


async def health(view: View, _params: Params) -> dict[str, Any]:
    """For the head of every page: the cluster's name, and how many things are wrong."""
    brokers = await view.brokers()
    rows = (await view.shared.get("attention", 8.0, lambda: attention(view)))["rows"]
    troubles = sum(row["verdict"] == "trouble" for row in rows)
    return {
        "cluster": ", ".join(sorted({row.cluster for row in brokers if row.cluster})) or "–",
        "troubles": troubles,
        "warnings": len(rows) - troubles,
    }


async def _sample(view: View) -> dict[str, Any]:
    rows = await gather(_broker(view, row) for row in await view.brokers())
    up = [row for row in rows if "error" not in row]
    masters = [row for row in up if row["number"] == 0]
    now: dict[str, Any] = {
        "at": now_ms(),
        "in": sum(row["in"] for row in masters),
        "out": sum(row["out"] for row in up),
        "p99": max((row["p99"] for row in masters if row["p99"] is not None), default=None),
        "disk": max((row["disk"] for row in up if row["disk"] is not None), default=None),
        "ends": min((row["ends"] for row in up if row["ends"] is not None), default=None),
    }
    sample = {"now": now, "brokers": rows}
    view.history.sample(sample)
    return sample


async def _broker(view: View, broker: Broker) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": broker.name,
        "number": broker.number,
        "address": broker.address,
        "cluster": broker.cluster,
    }
    try:
        state = await view.runtime(broker.address)
    except AerobeeError as error:
        return found | {"error": str(error)}
    settings = await attempt(view.settings(broker.address), {})
    return found | {
        "in": first_number(state.get("putTps")),
        "out": first_number(state.get("getTransferredTps") or state.get("getTransferedTps")),
        "p99": _float(state.get("putLatency99")),
        "disk": _float(state.get("commitLogDiskRatio")),
        "ends": store.space_ends_ms(view, broker.address, state, settings),
        "refused": state.get("sendsRefused") or "",
        "version": state.get("brokerVersionDesc", ""),
        "started": int(state.get("bootTimestamp") or 0),
        "ours": "sendsRefused" in state,
    }


def first_number(text: str | None) -> float:
    """Brokers report the rates of 10 s, a minute and ten minutes in one text."""
    words = (text or "").split()
    return _float(words[0]) or 0.0 if words else 0.0


def _float(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


async def attention(view: View) -> dict[str, Any]:
    """What an operator would want to know first, the worst first."""
    rows = [
        {"verdict": row.verdict, "what": row.what, "text": row.finding, "remedy": row.remedy}
        async for row in examine_cluster(view.mq)
        if row.verdict != "ok"
    ]
    listed = await attempt(groups.listed(view, {}), {"groups": []})
    rows += [row for group in listed["groups"] for row in _of_group(group)]
    rows += await attempt(_dead(view), [])
    behind = [row for row in listed["groups"] if row["lag"]]
    behind.sort(key=lambda row: (row["age"] or 0, row["lag"]), reverse=True)
    rows.sort(key=lambda row: _ORDER.get(row["verdict"], 2))
    return {"rows": rows, "behind": behind[:BEHIND_SHOWN]}


def _of_group(row: dict[str, Any]) -> list[dict[str, Any]]:
    name = row["group"]
    found = []
    link = {"group": name}
    if row["conflicts"]:
        text = "its members subscribe differently, so messages are lost"
        remedy = "give all members of a group the same topics and filters"
        found.append({"verdict": "trouble", "what": f"group {name}", "text": text} | link)
        found[-1]["remedy"] = remedy
    if row["lag"] and row["paused"]:
        text = f"it is paused with {row['lag']} messages before it"
        found.append({"verdict": "warning", "what": f"group {name}", "text": text} | link)
    elif row["lag"] and not row["members"] and not row["broadcasting"]:
        text = f"nobody is online to read the {row['lag']} messages before it"
        found.append({"verdict": "warning", "what": f"group {name}", "text": text} | link)
    elif row["growing"] and (row["age"] or 0) > OLD_AGE_MS:
        text = f"its lag grows: {row['lag']} messages"
        found.append({"verdict": "warning", "what": f"group {name}", "text": text} | link)
    return found


async def _dead(view: View) -> list[dict[str, Any]]:
    names = [name for name in await view.all_topics() if name.startswith(DLQ_PREFIX)]
    found = await asyncio.gather(*(dead_since(view, name, now_ms() - DAY_MS) for name in names))
    return [
        {
            "verdict": "warning",
            "what": f"group {name.removeprefix(DLQ_PREFIX)}",
            "text": f"{count} dead letter{'s' if count > 1 else ''} in the last 24 hours",
            "remedy": "inspect them, fix the cause, replay them",
            "dead": name.removeprefix(DLQ_PREFIX),
        }
        for name, count in zip(names, found, strict=True)
        if count
    ]


async def dead_since(view: View, topic: str, since_ms: int) -> int:
    count = 0
    for row in await view.admin.topic_stats(topic):
        if row.max_offset > row.min_offset:
            first = await view.mq.offset_at(row.queue, since_ms / 1000)
            count += max(0, row.max_offset - max(first, row.min_offset))
    return count
