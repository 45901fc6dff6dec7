"""Finding messages: by id, key, time, offset, filter, what a group has not read; and the tail."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from aerobee.client.console.download import Download
from aerobee.client.console.safety import csv_cell, file_name
from aerobee.client.console.view import Params, View, gather, moment, need, now_ms, number
from aerobee.client.console.views import message_json
from aerobee.client.console.views.scan import (
    Page,
    Reach,
    read_cursor,
    read_page,
    write_cursor,
)
from aerobee.client.errors import Misuse, NotFound
from aerobee.client.message import Message
from aerobee.client.tools.messages import message_json as export_json
from aerobee.protocol.json.fastjson import MessageQueue

LIMIT: Final = 50
TAIL_MAX: Final = 50  # a second
EXPORT_MAX: Final = 10_000


async def find(view: View, params: Params) -> dict[str, Any]:
    """The messages that the form asks for; `mode` says by what."""
    topic = need(params, "topic")
    mode = params.get("mode") or "latest"
    if mode == "id":
        wanted = need(params, "id").strip()
        return _listed(view, Page([await view.mq.message(wanted, topic=topic)]))
    if mode == "key":
        key = need(params, "key").strip()
        found = view.mq.find(topic, key=key, limit=number(params, "limit", LIMIT, 1, 500))
        return _listed(view, Page([message async for message in found]))
    limit = number(params, "limit", LIMIT, 1, 500)
    if mode == "latest" and not params.get("cursor"):
        return _listed(view, await _latest(view, topic, limit, params))
    page = await read_page(
        view.mq, await _reaches(view, topic, mode, params), limit, **_filter(params)
    )
    return _listed(view, page)


def _listed(view: View, page: Page) -> dict[str, Any]:
    bodies = not view.options.hide_bodies
    return {
        "messages": [message_json.row_of(row, bodies=bodies) for row in page.messages],
        "cursor": page.cursor,
        "passed": page.passed,
        "stopped": page.stopped,
    }


def _filter(params: Params) -> dict[str, Any]:
    tags = [tag for tag in str(params.get("tag") or "").split("||") if tag.strip()]
    sql = str(params.get("sql") or "").strip()
    return {"tags": [tag.strip() for tag in tags] or None, "sql": sql or None}


async def _ends(view: View, topic: str) -> list[tuple[MessageQueue, int, int]]:
    stats = await view.admin.topic_stats(topic)
    return [(row.queue, row.min_offset, row.max_offset) for row in stats]


async def _latest(view: View, topic: str, limit: int, params: Params) -> Page:
    """The newest ones: the end of every queue, newest first."""
    ends = await _ends(view, topic)
    reaches = [Reach(queue, max(low, end - limit), end) for queue, low, end in ends if end > low]
    page = await read_page(view.mq, reaches, limit * max(1, len(reaches)), **_filter(params))
    page.messages = page.messages[::-1][:limit]
    page.cursor = ""
    return page


async def _reaches(view: View, topic: str, mode: str, params: Params) -> list[Reach]:
    if params.get("cursor"):
        return read_cursor(str(params["cursor"]), topic)
    ends = await _ends(view, topic)
    if mode == "unread":
        return await unread(view, topic, need(params, "group"), ends)
    if mode == "offset":
        queue_id = number(params, "queue", -1, -1, 1 << 20)
        at = number(params, "offset", 0, 0, 2**62)
        chosen = [row for row in ends if queue_id in (-1, row[0].queue_id)]
        if not chosen:
            raise NotFound(f"topic {topic!r} has no queue {queue_id}")
        return [Reach(queue, max(low, at), end) for queue, low, end in chosen]
    if mode in ("time", "latest"):
        since, until = moment(params, "since"), moment(params, "until")
        return list(
            await gather(_between(view, queue, low, end, since, until) for queue, low, end in ends)
        )
    raise Misuse(f"messages are found by id, key, time, offset or unread, not by {mode!r}")


async def _between(
    view: View, queue: MessageQueue, low: int, end: int, since: float | None, until: float | None
) -> Reach:
    first = low if since is None else await view.mq.offset_at(queue, since)
    if until is None:
        return Reach(queue, max(low, first), end)
    after = (round(until * 1000) + 1) / 1000  # in whole ms: until + 0.001 may round to `until`
    last = await view.mq.offset_at(queue, after)
    return Reach(queue, max(low, first), min(end, last) if last >= 0 else end)


async def unread(
    view: View, topic: str, group: str, ends: list[tuple[MessageQueue, int, int]]
) -> list[Reach]:
    """The messages after the group's offsets: not acknowledged yet."""
    await view.admin.group_config(group)  # NotFound when there is none
    committed = {row.queue: row.offset for row in await view.admin.lag(group, topic)}
    return [Reach(queue, max(low, committed.get(queue, low)), end) for queue, low, end in ends]


async def tail(view: View, params: Params) -> dict[str, Any]:
    """New messages since the cursor: the newest 50, and how many were skipped."""
    topic = need(params, "topic")
    ends = await _ends(view, topic)
    cursor = params.get("cursor")
    if not cursor:
        reaches = [Reach(queue, end, end) for queue, _low, end in ends]
        return {"messages": [], "left_out": 0, "cursor": write_cursor(reaches)}
    seen = {row.queue: row.end for row in read_cursor(str(cursor), topic)}
    came = [(queue, max(low, seen.get(queue, low)), end) for queue, low, end in ends]
    total = sum(end - at for _queue, at, end in came)
    share = max(1, TAIL_MAX // max(1, sum(end > at for _queue, at, end in came)))
    reaches = [Reach(queue, max(at, end - share), end) for queue, at, end in came if end > at]
    left_out = total - sum(row.end - row.at for row in reaches)
    page = await read_page(view.mq, reaches, TAIL_MAX, **_filter(params))
    rows = _listed(view, page)["messages"]
    cursor_now = write_cursor([Reach(queue, end, end) for queue, _at, end in came])
    return {"messages": rows, "left_out": left_out, "cursor": cursor_now}


async def export(view: View, params: Params) -> Download:
    """All that the search finds, as JSON lines or CSV, up to a limit that the file states."""
    topic = need(params, "topic")
    if view.options.hide_bodies:
        raise Misuse("this console hides bodies, so it exports no messages")
    found = await _all(view, topic, params)
    return as_file(found, f"{file_name(topic)}-{now_ms()}", str(params.get("format") or "jsonl"))


async def _all(view: View, topic: str, params: Params) -> list[Message]:
    mode = params.get("mode") or "time"
    if mode == "id":
        return [await view.mq.message(need(params, "id").strip(), topic=topic)]
    if mode == "key":
        found = view.mq.find(topic, key=need(params, "key").strip(), limit=EXPORT_MAX + 1)
        return [message async for message in found]
    if mode == "latest":
        limit = number(params, "limit", LIMIT, 1, EXPORT_MAX)
        return (await _latest(view, topic, limit, params)).messages
    reaches = await _reaches(view, topic, mode, {**params, "cursor": ""})
    rows: list[Message] = []
    while len(rows) <= EXPORT_MAX and any(row.at < row.end for row in reaches):  # one too many
        rows += (await read_page(view.mq, reaches, 500, **_filter(params))).messages
    return rows


def as_file(messages: list[Message], name: str, kind: str) -> Download:
    left = len(messages) > EXPORT_MAX
    rows = [_plain(export_json(message)) for message in messages[:EXPORT_MAX]]
    if kind == "csv":
        columns = ("stored_at", "topic", "message_id", "queue_offset", "tag", "keys", "body")
        lines = [",".join(csv_cell(column) for column in columns)]
        lines += [",".join(csv_cell(_cell(row.get(column))) for column in columns) for row in rows]
        lines += [csv_cell(f"stopped at {EXPORT_MAX} messages")] if left else []
        return Download(f"{name}.csv", "\r\n".join(lines).encode(), "text/csv; charset=utf-8")
    lines = [msgspec.json.encode(row).decode() for row in rows]
    lines += (
        [msgspec.json.encode({"stopped": f"at {EXPORT_MAX} messages"}).decode()] if left else []
    )
    text = "".join(f"{line}\n" for line in lines)
    return Download(f"{name}.jsonl", text.encode(), "application/x-ndjson")


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value._asdict() if hasattr(value, "_asdict") else value for key, value in row.items()
    }


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return " ".join(map(str, value))
    return str(value.isoformat() if hasattr(value, "isoformat") else value)
