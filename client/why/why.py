"""Asks the cluster about a message, and judges by what it says."""

from __future__ import annotations

from aerobee.client.admin import query
from aerobee.client.core import Core
from aerobee.client.errors import Misuse, NotFound
from aerobee.client.why.answer import ANY_GROUP, GroupVerdict, LifeEvent, Why, WhyVerdict


async def explain(core: Core, message_id: str, topic: str | None, group: str | None) -> Why:
    """The life of a message, and what became of it for the group, or for each group there is."""
    who = group or ANY_GROUP
    try:
        found = await query.by_id(core, message_id, topic)
    except (Misuse, NotFound) as error:
        verdict = GroupVerdict(who, WhyVerdict.NOT_FOUND, str(error))
        return Why(message_id, (), (verdict,))
    stored = found.stored
    place = {
        "broker": found.broker,
        "queue": stored.queue_id,
        "offset": stored.queue_offset,
    }
    event = LifeEvent(stored.store_timestamp, "stored", stored.topic, place)
    verdict = GroupVerdict(who, WhyVerdict.UNKNOWN, "stored; nothing tells what groups did with it")
    return Why(message_id, (event,), (verdict,))
