"""Dead letters: groups that have some, listing, replaying at a rate, export to a file."""

from __future__ import annotations

from typing import Any, Final

from aerobee.client.console.download import Download
from aerobee.client.console.safety import file_name
from aerobee.client.console.view import Params, View, attempt, gather, moment, need, now_ms, number
from aerobee.client.console.views import message_json
from aerobee.client.console.views.messages import as_file
from aerobee.client.console.views.overview import DAY_MS, dead_since
from aerobee.client.errors import Misuse
from aerobee.client.message import Message
from aerobee.client.tools.dead_letters import (
    groups_with_letters,
    letters_of,
    origin_topic,
    replay_marks,
    send_letters_again,
)
from aerobee.protocol.names import DLQ_PREFIX

LISTED_MAX: Final = 1000
RATE_MAX: Final = 10_000


async def listed(view: View, _params: Params) -> dict[str, Any]:
    """The groups with dead letters."""
    found = await groups_with_letters(view.mq)
    recent = await gather(
        dead_since(view, DLQ_PREFIX + group, now_ms() - DAY_MS) for group in found
    )
    rows = zip(found.items(), recent, strict=True)
    return {"groups": [{"group": row[0], "letters": row[1], "day": day} for row, day in rows]}


async def one(view: View, params: Params) -> dict[str, Any]:
    """The dead letters of a group, newest first."""
    group = need(params, "group")
    limit = number(params, "limit", 200, 1, LISTED_MAX)
    letters = await letters_of(view.mq, group, moment(params, "since"))
    marks = await attempt(replay_marks(view.mq), {})
    bodies = not view.options.hide_bodies
    rows = []
    for letter in letters[::-1][:limit]:
        replayed = marks.get(letter.offset_message_id)
        rows.append(
            message_json.row_of(letter, bodies=bodies)
            | {
                "origin": origin_topic(letter),
                "retries": letter.reconsume_times,
                "failure": letter.failure,
                "replayed": round(replayed.timestamp() * 1000) if replayed else None,
            }
        )
    return {"group": group, "letters": rows, "total": len(letters)}


async def _chosen(view: View, params: Params) -> list[Message]:
    """Those with the given ids, or all; without `again` those that were not replayed yet."""
    ids = params.get("ids")
    if ids is not None and not isinstance(ids, list):
        ids = [one for one in str(ids).split(",") if one]
    letters = await letters_of(view.mq, need(params, "group"), moment(params, "since"))
    if ids:
        wanted = set(map(str, ids))
        letters = [row for row in letters if row.offset_message_id in wanted]
    if params.get("again") in (True, "1"):
        return letters
    marks = await replay_marks(view.mq)
    return [row for row in letters if row.offset_message_id not in marks]


async def preview(view: View, params: Params) -> dict[str, Any]:
    """What a replay would send, by topic."""
    counts: dict[str, int] = {}
    for letter in await _chosen(view, params):
        target = str(params.get("to") or origin_topic(letter) or "")
        counts[target] = counts.get(target, 0) + 1
    return {"targets": [{"topic": topic, "letters": count} for topic, count in counts.items()]}


async def replay(view: View, params: Params) -> dict[str, Any]:
    """Start a replay; `jobs` shows its progress. The letters stay, marked as replayed."""
    group, to = need(params, "group"), str(params.get("to") or "") or None
    if to is not None and to.startswith(DLQ_PREFIX):
        raise Misuse("a replay cannot go to a dead-letter topic")
    rate = number(params, "rate", 100, 1, RATE_MAX)
    letters = await _chosen(view, params)
    steps = send_letters_again(view.mq, letters, to, rate)
    return view.jobs.start(f"replay of {group}", len(letters), steps).as_dict()


async def job(view: View, params: Params) -> dict[str, Any]:
    return view.jobs.get(number(params, "job", 0, 0, 1 << 31)).as_dict()


async def stop_job(view: View, params: Params) -> dict[str, Any]:
    return view.jobs.stop(number(params, "job", 0, 0, 1 << 31)).as_dict()


async def export(view: View, params: Params) -> Download:
    """The dead letters as a file; `again` so that replayed ones are in it too."""
    if view.options.hide_bodies:
        raise Misuse("this console hides bodies, so it exports no messages")
    letters = await _chosen(view, params | {"again": True})
    name = f"dead-{file_name(need(params, 'group'))}-{now_ms()}"
    return as_file(letters, name, str(params.get("format") or "jsonl"))
