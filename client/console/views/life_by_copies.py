"""The life of a message from its copies and the groups' offsets: what any broker can be asked."""

from __future__ import annotations

from typing import Any, Final

from aerobee.client.console.view import View, attempt, gather
from aerobee.client.console.views.groups import connections_of, is_broadcasting, members_of
from aerobee.client.console.views.progress import all_progress
from aerobee.client.message import DELAY_LEVELS, Message
from aerobee.protocol.files import properties as props
from aerobee.protocol.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANSACTION_GIVEN_UP_TOPIC,
    TRANSACTION_HALF_TOPIC,
)

_INNER: Final = (SCHEDULE_TOPIC, TIMER_TOPIC, TRANSACTION_HALF_TOPIC, TRANSACTION_GIVEN_UP_TOPIC)


async def explain(view: View, message: Message) -> dict[str, Any]:
    """Its events, and for each group whether it has passed the message."""
    copies = await _all_copies(view, message)
    events = [event for row in copies for event in _events(row)]
    dead = {
        row.stored.topic.removeprefix(DLQ_PREFIX)
        for row in copies
        if row.stored.topic.startswith(DLQ_PREFIX)
    }
    return {
        "life": sorted(events, key=lambda event: event["at"]),
        "groups": await _groups(view, message, dead),
    }


async def _all_copies(view: View, message: Message) -> list[Message]:
    """Everything that is stored under the same id."""
    groups = await _reading(view, message.topic)
    names = [
        message.topic,
        *_INNER,
        *(prefix + group for group in groups for prefix in (RETRY_PREFIX, DLQ_PREFIX)),
    ]
    known = set(await view.all_topics()) | set(_INNER) | {message.topic}
    found = await gather(_copies(view, message.message_id, name) for name in names if name in known)
    copies = {row.offset_message_id: row for rows in found for row in rows}
    copies.setdefault(message.offset_message_id, message)
    return list(copies.values())


async def _copies(view: View, message_id: str, topic: str) -> list[Message]:
    empty: list[Message] = []
    return await attempt(view.admin.details.copies(message_id, topic), empty)


def _events(copy: Message) -> list[dict[str, Any]]:
    topic, at = copy.stored.topic, copy.stored.store_timestamp
    place = f"{copy.broker}/{copy.stored.queue_id} @ {copy.queue_offset}"
    real = copy.properties.get(props.REAL_TOPIC, "")
    event: dict[str, Any] = {"at": at, "topic": topic, "place": place}
    if topic == SCHEDULE_TOPIC:
        level = copy.stored.queue_id + 1
        seconds = DELAY_LEVELS[level - 1] if level <= len(DELAY_LEVELS) else 0
        due = at + seconds * 1000
        of_retry = real.startswith(RETRY_PREFIX)
        text = f"given back by {real.removeprefix(RETRY_PREFIX)}" if of_retry else "delayed"
        text += f", due again after {seconds} s" if of_retry else f" by {seconds} s"
        return [event | {"event": "retry" if of_retry else "delayed", "text": text, "due": due}]
    if topic == TIMER_TOPIC:
        timer_due = int(copy.properties.get(props.TIMER_OUT_MS) or 0) or None
        return [event | {"event": "delayed", "text": "waits for its time", "due": timer_due}]
    if topic == TRANSACTION_HALF_TOPIC:
        checks = copy.properties.get(props.TRANSACTION_CHECK_TIMES)
        text = f"its producer is asked, check {checks}" if checks else "half message stored"
        return [event | {"event": "half", "text": text}]
    if topic == TRANSACTION_GIVEN_UP_TOPIC:
        return [event | {"event": "given up", "text": "its producer never said what became of it"}]
    if topic.startswith(RETRY_PREFIX):
        group = topic.removeprefix(RETRY_PREFIX)
        text = f"attempt {copy.reconsume_times + 1} can be read by {group}"
        return [event | {"event": "retry", "text": text, "failure": copy.failure}]
    if topic.startswith(DLQ_PREFIX):
        text = (
            f"dead letter of {topic.removeprefix(DLQ_PREFIX)} after {copy.reconsume_times} retries"
        )
        return [event | {"event": "dead", "text": text, "failure": copy.failure}]
    return [event | {"event": "stored", "text": f"stored in {topic}, can be read"}]


async def _reading(view: View, topic: str) -> list[str]:
    progress = await all_progress(view)
    return sorted(
        group for group, rows in progress.items() if any(row.queue.topic == topic for row in rows)
    )


async def _groups(view: View, message: Message, dead: set[str]) -> list[dict[str, Any]]:
    """For each group whether its offset has passed the message; no more is claimed than that."""
    progress = await all_progress(view)
    found = []
    for group in await _reading(view, message.stored.topic):
        row = next((row for row in progress[group] if row.queue == message.queue), None)
        connections = await connections_of(view, group)
        at = message.queue_offset
        if group in dead:
            verdict, text = "dead", "its retries are used up: it is among the dead letters"
        elif is_broadcasting(connections):
            verdict, text = "broadcast", "each member keeps its own offsets: no broker knows"
        elif row is None:
            verdict, text = "unknown", "the group has no offset in this queue"
        elif row.committed > at:
            verdict, text = "passed", f"the group's offset passed it, by {row.committed - at}"
        elif row.sent > at and members_of(connections):
            verdict, text = "sent", "sent to a member, not confirmed yet"
        else:
            verdict = "behind" if members_of(connections) else "offline"
            who = "" if members_of(connections) else ", and nobody is online"
            text = f"{at - row.committed} messages before it in its queue{who}"
        found.append({"group": group, "verdict": verdict, "text": text, "remedy": ""})
    return found
