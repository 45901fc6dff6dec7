"""Two brokers in this process behind one name service."""

from __future__ import annotations

from waiting import until

from aerobee import Client
from aerobee.testing import EmbeddedBroker


async def pair(first: EmbeddedBroker) -> EmbeddedBroker:
    """A second broker that registers with the name service of the first."""
    second = EmbeddedBroker(
        brokerName="second", namesrvAddr=first.namesrv, namesrvListenPort=-1, forceRegister="true"
    )
    await second.start()
    return second


async def knows_brokers(mq: Client, count: int) -> bool:
    return len(await mq.admin.brokers()) == count


async def has_queues(mq: Client, topic: str, count: int) -> bool:
    return len(await mq.queues(topic)) == count


async def on_both(mq: Client, topic: str, queues: int) -> None:
    """Make a topic with so many queues on each of two brokers, once both are known."""
    await until(lambda: knows_brokers(mq, 2))
    await mq.admin.create_topic(topic, queues=queues)
    await until(lambda: has_queues(mq, topic, 2 * queues))
