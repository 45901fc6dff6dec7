"""Clients, settings that differ from their defaults, brokers, name servers and replicas."""

from __future__ import annotations

from typing import Any

from aerobee.client.admin.types import Broker
from aerobee.client.console.view import Params, View, attempt, gather, number
from aerobee.client.console.views.groups import configs_of, connections_of, members_of
from aerobee.client.console.views.progress import all_progress
from aerobee.client.errors import AerobeeError


async def clients(view: View, _params: Params) -> dict[str, Any]:
    """All connected clients with their groups."""
    found: dict[str, dict[str, Any]] = {}
    names = sorted({*await all_progress(view), *await configs_of(view)})
    for group, connections in zip(
        names, await gather(connections_of(view, name) for name in names), strict=True
    ):
        for member in members_of(connections):
            row = found.setdefault(member["client"], member | {"consumes": [], "produces": []})
            row["consumes"].append(group)
    for broker in await view.masters():
        for group, members in (await view.admin.details.producers(broker.address)).items():
            for member in members:
                row = found.setdefault(
                    member["clientId"],
                    {
                        "client": member["clientId"],
                        "address": member.get("remoteIP", ""),
                        "language": str(member.get("language", "")),
                        "version": int(member.get("version", 0)),
                        "consumes": [],
                        "produces": [],
                    },
                )
                if group not in row["produces"]:
                    row["produces"].append(group)
    return {"clients": [found[name] for name in sorted(found)], "self": view.mq.client_id}


async def settings(view: View, params: Params) -> dict[str, Any]:
    """Each broker's settings; by default those that differ from the default or between brokers."""
    brokers = await view.brokers()
    tables = await gather(_settings(view, row) for row in brokers)
    everything = params.get("all") == "1"
    known = view.options.known_settings
    ours = [await _is_ours(view, row) for row in brokers]
    keys = sorted({key for table in tables for key in table})
    rows = []
    for key in keys:
        about = known.get(key, {})
        values = [table.get(key) for table in tables]
        defaults = [about.get("default" if own else "upstream_default") for own in ours]
        is_default = all(value == default for value, default in zip(values, defaults, strict=True))
        if everything or (about and not is_default):
            rows.append(
                {
                    "key": key,
                    "values": values,
                    "default": defaults[0] if defaults else None,
                    "differs": not is_default and bool(about),
                    "live": about.get("live"),
                    "unit": about.get("unit", ""),
                    "meaning": about.get("meaning", ""),
                }
            )
    return {"brokers": [f"{row.name}:{row.number}" for row in brokers], "settings": rows}


async def _settings(view: View, broker: Broker) -> dict[str, str]:
    return await attempt(view.settings(broker.address), {})


async def _is_ours(view: View, broker: Broker) -> bool:
    return "sendsRefused" in await attempt(view.runtime(broker.address), {})


async def cluster(view: View, _params: Params) -> dict[str, Any]:
    """Name servers and brokers, whether they answer, and which broker replicates which."""
    servers = await gather(_ping(view, address) for address in view.mq.name_servers)
    brokers = await gather(_broker(view, row) for row in await view.brokers())
    return {"name_servers": servers, "brokers": brokers}


async def _ping(view: View, address: str) -> dict[str, Any]:
    try:
        return {"address": address, "ms": await view.admin.ping(address) * 1000}
    except AerobeeError as error:
        return {"address": address, "error": str(error)}


async def _broker(view: View, broker: Broker) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": broker.name,
        "cluster": broker.cluster,
        "number": broker.number,
        **await _ping(view, broker.address),
    }
    if "error" in found:
        return found
    state = await attempt(view.runtime(broker.address), {})
    settings = await attempt(view.settings(broker.address), {})
    replicas = await attempt(view.admin.replication(broker.address), {})
    end = int(replicas.get("masterCommitLogMaxOffset") or 0)
    return found | {
        "version": state.get("brokerVersionDesc", ""),
        "ours": "sendsRefused" in state,
        "started": int(state.get("bootTimestamp") or 0),
        "role": settings.get("brokerRole", ""),
        "permission": settings.get("brokerPermission", ""),
        "end": int(state.get("commitLogMaxOffset") or 0),
        "refused": state.get("sendsRefused") or "",
        "slaves": [_slave(row, end) for row in replicas.get("haConnectionInfo") or ()],
    }


def _slave(row: dict[str, Any], end: int) -> dict[str, Any]:
    acked = int(row.get("slaveAckOffset") or 0)
    return {
        "address": str(row.get("addr", "")).removeprefix("/"),
        "behind": int(row.get("diff") or max(0, end - acked)),
        "in_sync": bool(row.get("inSync", row.get("isInSync", False))),
        "speed": int(row.get("transferredByteInSecond") or 0),
    }


async def search(view: View, params: Params) -> dict[str, Any]:
    """Names of topics and groups with the text in them; ids and keys are tried by the page."""
    text = str(params.get("text") or "").strip().lower()
    limit = number(params, "limit", 8, 1, 50)
    topics = [name for name in await view.user_topics() if text in name.lower()]
    groups = [name for name in sorted(await configs_of(view)) if text in name.lower()]
    return {"topics": topics[:limit], "groups": groups[:limit]}
