"""One message: its content, its history, and what each group did with it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from aerobee.client.console.view import Params, View, need, now_ms
from aerobee.client.console.views import message_json
from aerobee.client.console.views.groups import connections_of, members_of
from aerobee.client.errors import Misuse, NotFound
from aerobee.client.message import Message

_TOLD: Final = ("at", "event", "topic", "broker", "queue", "offset", "reason", "due_at")


async def one(view: View, params: Params) -> dict[str, Any]:
    """The message with that id and its history; if it is removed, what is known about it."""
    topic, wanted = need(params, "topic"), need(params, "id").strip()
    message: Message | None = None
    with suppress(NotFound):
        message = await view.mq.message(wanted, topic=topic)
    found = _explained((await view.mq.why(wanted, topic)).as_dict())
    bodies = not view.options.hide_bodies
    shown = message_json.all_of(message, bodies=bodies) if message is not None else None
    return {"message": shown, "now": now_ms(), **found}


def _explained(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer of `why` as the page shows it: facts as a line of text."""
    return {"life": [_event(row) for row in answer["life"]], "groups": answer["groups"]}


def _event(row: dict[str, Any]) -> dict[str, Any]:
    facts = {name: value for name, value in row.items() if name not in _TOLD}
    said = [name.replace("_", " ") for name in ("on_disk", "visible") if facts.pop(name, None)]
    facts.pop("born_at", None)
    said += [f"{name.replace('_', ' ')} {value}" for name, value in facts.items() if value]
    place = f"{row['broker']}/{row['queue']} @ {row['offset']}" if "offset" in row else None
    return {
        "at": row["at"],
        "event": row["event"].replace("_", " "),
        "text": ", ".join((row["topic"], *said)),
        "topic": row["topic"],
        "place": place,
        "due": row.get("due_at"),
        "failure": row.get("reason"),
    }


async def send(view: View, params: Params) -> dict[str, Any]:
    """Send a message, a new one or a stored one as edited."""
    properties = params.get("properties") or {}
    if not isinstance(properties, dict):
        raise Misuse("properties are names with values")
    keys = str(params.get("key") or "").split()
    try:
        delay = float(params.get("delay") or 0)
    except (TypeError, ValueError):
        raise Misuse("the delay is a number of seconds") from None
    receipt = await view.mq.send(
        need(params, "topic"),
        str(params.get("body") or "").encode(),
        tag=str(params.get("tag") or "") or None,
        key=keys or None,
        delay=delay or None,
        properties={str(name): str(value) for name, value in properties.items()} or None,
    )
    return {
        "id": receipt.message_id,
        "queue": receipt.queue.queue_id,
        "broker": receipt.queue.broker_name,
        "offset": receipt.queue_offset,
    }


async def resend(view: View, params: Params) -> dict[str, Any]:
    """Have one member of one group handle a stored message now; no other member gets it."""
    group = need(params, "group")
    message = await view.mq.message(need(params, "id"), topic=need(params, "topic"))
    connections = await connections_of(view, group)
    members = members_of(connections)
    if not members:
        raise NotFound(f"no member of group {group!r} is online to take it")
    client = str(params.get("client") or members[0]["client"])
    broker = await view.master(message.broker)
    result = await view.admin.details.consume_now(broker.address, group, client, message)
    return {
        "client": client,
        "result": str(result.get("consumeResult", "")),
        "remark": str(result.get("remark") or ""),
        "ms": result.get("spentTimeMills"),
    }
