"""Dead letters: finding them, and sending them again as marked copies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, Final

from aerobee.client.client import Client
from aerobee.client.errors import AerobeeError, Misuse, NoRoute, NotFound
from aerobee.client.message import Message
from aerobee.protocol.files import properties as props
from aerobee.protocol.files.copies import REPLAYED_FROM, SYSTEM_PROPERTIES
from aerobee.protocol.names import DLQ_PREFIX, REPLAYED_TOPIC, RETRY_PREFIX

_OF_GROUPS: Final = (DLQ_PREFIX, RETRY_PREFIX)


async def count_of(mq: Client, topic: str) -> int:
    """How many messages a topic holds."""
    return sum(row.max_offset - row.min_offset for row in await mq.admin.topic_stats(topic))


async def groups_with_letters(mq: Client) -> dict[str, int]:
    """How many dead letters each group has that has any."""
    found = {}
    for topic in await mq.admin.topics(system=True):
        if topic.startswith(DLQ_PREFIX) and (count := await count_of(mq, topic)):
            found[topic.removeprefix(DLQ_PREFIX)] = count
    return found


async def letters_of(
    mq: Client, group: str, since: Any = None, limit: int | None = None
) -> list[Message]:
    """The dead letters; none of a group that has none, NotFound when there is no such group."""
    try:
        found = mq.find(DLQ_PREFIX + group, since=since, limit=limit)
        return [message async for message in found]
    except NotFound:
        await mq.admin.group_config(group)
        return []


async def replay_marks(mq: Client) -> dict[str, datetime]:
    """When each letter was replayed, by its offset id."""
    try:
        return {
            message.body.decode(): message.stored_at async for message in mq.find(REPLAYED_TOPIC)
        }
    except NotFound:
        return {}


def origin_topic(message: Message) -> str | None:
    """Where a dead letter was sent to first; None when its properties do not have it."""
    origins = (message.properties.get(name) for name in (props.DLQ_ORIGIN_TOPIC, props.RETRY_TOPIC))
    return next((name for name in origins if name and not name.startswith(_OF_GROUPS)), None)


async def send_letters_again(
    mq: Client, letters: list[Message], topic: str | None, rate: float
) -> AsyncIterator[str | None]:
    """One step for each letter: None when it was sent, or why it can never be.

    At most `rate` a second. What may succeed later is raised and ends it.
    """
    await _provide_marks(mq)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    for number, letter in enumerate(letters):
        if (wait := begun + number / rate - loop.time()) > 0:
            await asyncio.sleep(wait)
        try:
            await _send_again(mq, letter, topic)
        except AerobeeError as error:
            if error.retriable:
                raise
            yield f"{letter.message_id}: {error}"
        else:
            yield None


async def _provide_marks(mq: Client) -> None:
    try:
        await mq.queues(REPLAYED_TOPIC)
    except NoRoute:
        await mq.admin.create_topic(REPLAYED_TOPIC, queues=1)


async def _send_again(mq: Client, letter: Message, topic: str | None) -> None:
    """Send the copy first, then the mark: an interruption leads to a second copy, never to none."""
    target = topic or origin_topic(letter)
    if target is None:
        raise Misuse("nothing says where it came from: --to names a topic")
    await mq.send(
        target,
        letter.body,
        tag=letter.tag,
        key=letter.keys or None,
        order_key=letter.properties.get(props.SHARDING_KEY),
        properties=_kept(letter),
    )
    await mq.send(REPLAYED_TOPIC, letter.offset_message_id.encode())


def own_properties(message: Message) -> dict[str, str]:
    """The properties that the user gave it."""
    return {
        name: value for name, value in message.properties.items() if name not in SYSTEM_PROPERTIES
    }


def _kept(letter: Message) -> dict[str, str]:
    """The user's own properties, and where the copy comes from."""
    return own_properties(letter) | {REPLAYED_FROM: letter.offset_message_id}
