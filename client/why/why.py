"""Collects the facts about a message from the cluster, and derives the verdicts."""

from __future__ import annotations

import asyncio

from aerobee.client.admin.admin import Admin
from aerobee.client.core import Core
from aerobee.client.errors import (
    ConnectFailed,
    ConnectionLost,
    Misuse,
    NoPermission,
    RequestTimeout,
    refusal,
)
from aerobee.client.why import by_admin
from aerobee.client.why.answer import Why
from aerobee.client.why.judge import judge
from aerobee.client.why.story import life, story_of
from aerobee.protocol.wire import message_facts
from aerobee.protocol.wire.codes import ResponseCode
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.message_facts import EXPLAIN_MESSAGE, Broker


async def explain(core: Core, message_id: str, topic: str | None, group: str | None) -> Why:
    """The history of a message, and its outcome for the group, or for each group."""
    if not message_id or not message_id.isascii():
        raise Misuse(f"{message_id!r} is not a message id")
    places = await _brokers(core, topic)
    answers = await asyncio.gather(
        *(_ask(core, name, where, message_id, topic, group) for name, where in places.items())
    )
    found = [answer for answer in answers if isinstance(answer, Broker)]
    unreached = [answer for answer in answers if isinstance(answer, str)]
    story = story_of(found, unreached, topic)
    return Why(message_id, tuple(life(story)), judge(story, group))


async def _brokers(core: Core, topic: str | None) -> dict[str, list[str]]:
    """The brokers to ask: all, or those of the topic when the user may see no more. Of each its
    addresses, the master's first: when that is down a slave may know."""
    try:
        brokers = await Admin(core).brokers()
    except NoPermission:
        if topic is None:
            raise
        route = await core.routes.refresh(topic)
        return {part.broker: [core.routes.address(part.broker)] for part in route.parts}
    places: dict[str, list[str]] = {}
    for broker in sorted(brokers, key=lambda broker: broker.number):
        places.setdefault(broker.name, []).append(broker.address)
    return places


async def _ask(
    core: Core, name: str, where: list[str], message_id: str, topic: str | None, group: str | None
) -> Broker | str:
    """What the broker knows; its name when none of its addresses answers."""
    ext = {"msgId": message_id}
    ext |= {"topic": topic} if topic else {}
    ext |= {"group": group} if group else {}
    for address in where:
        try:
            answer = await core.remoting.request(address, Command(EXPLAIN_MESSAGE, dict(ext)))
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return await by_admin.facts(core, name, address, message_id, topic, group)
        except (ConnectFailed, ConnectionLost, RequestTimeout):
            continue
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer.code, answer.remark, what=f"the question about {message_id}")
        return message_facts.decode(answer.body)
    return name
