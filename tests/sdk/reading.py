"""Helpers of the SDK's tests: fill a topic, take messages, read what is stored, withhold
answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from waiting import until

from aerobee import Client, Consumer, Message
from aerobee.testing import EmbeddedBroker


async def fill(mq: Client, topic: str, count: int, **options: Any) -> None:
    """Send `count` messages, whose bodies are numbers from 0."""
    for number in range(count):
        await mq.send(topic, b"%d" % number, **options)


async def take(inbox: Consumer, count: int, seconds: float = 10.0) -> list[Message]:
    """Take `count` messages and ack each."""
    found: list[Message] = []
    async with asyncio.timeout(seconds):
        while len(found) < count:
            message = await inbox.get()
            await message.ack()
            found.append(message)
    return found


async def nothing_comes(inbox: Consumer, seconds: float = 0.3) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(seconds):
            await inbox.get()


async def every_queue_polls(broker: EmbeddedBroker, inbox: Consumer) -> None:
    """Waits until each of its queues has a pull held at the broker."""
    polls = broker.app.broker.long_polling
    await until(lambda: all(polls.count(row.topic, row.queue_id) for row in inbox.queues))


async def stored(mq: Client, topic: str, **filters: Any) -> list[Message]:
    return [message async for message in mq.find(topic, **filters)]


def transport_to(mq: Client, address: str) -> asyncio.Transport:
    """The transport of the client's connection: with its reading paused, requests reach the
    broker, but answers do not reach the client."""
    connection = mq._core.remoting.known(address)
    assert connection is not None
    return connection._transport
