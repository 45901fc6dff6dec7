"""The SDK beside Apache's Java client in one group, on an embedded broker."""

import asyncio
from pathlib import Path

import pytest
from peers.java_client import JavaClient
from sdk.reading import take
from waiting import until

from aerobee import ConsumerOptions
from aerobee.testing import EmbeddedBroker

pytestmark = pytest.mark.apache


async def test_members_in_java_and_python_split_the_queues_alike(
    aerobee_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    java = await asyncio.to_thread(JavaClient, "5.5.0", tmp_path)
    try:
        async with aerobee_broker.connect() as mq:
            await mq.admin.create_topic("orders", queues=4)
            namesrv = aerobee_broker.namesrv
            other = await asyncio.to_thread(java.consumer, namesrv, "other", "billing", "orders")
            async with mq.consumer("orders", group="billing") as inbox:
                await until(lambda: len(inbox.queues) == 2, 30)
                await asyncio.sleep(2)  # the Java client gives up its half
                for number in range(40):
                    await mq.send("orders", b"%d" % number)
                mine = [int(message.body) for message in await take(inbox, 20, 20)]
                theirs = await asyncio.to_thread(java.wait_messages, other, 20)
            assert sorted(mine + [int(row["body"]) for row in theirs]) == list(range(40))
    finally:
        await asyncio.to_thread(java.close)


@pytest.mark.parametrize("version", ["4.9.8", "5.5.0"])
async def test_an_orderly_group_ends_its_retries_as_one_in_java_does(
    aerobee_broker: EmbeddedBroker, tmp_path: Path, version: str
) -> None:
    """Two orderly groups read one topic, with two retries each, and their handlers always fail."""
    java = await asyncio.to_thread(JavaClient, version, tmp_path)
    try:
        async with aerobee_broker.connect() as mq:
            for body in (b"one", b"two"):
                await mq.send("orders", body, order_key="a")
            options = {"mode": "orderly", "fails": -1, "maxTimes": 2, "suspend": 10}
            namesrv = aerobee_broker.namesrv
            theirs = await asyncio.to_thread(
                java.consumer, namesrv, "theirs", "theirs", "orders", **options
            )
            tries = await asyncio.to_thread(java.wait_messages, theirs, 6)
            expected = [(row["body"].encode(), row["times"]) for row in tries]
            found: list[tuple[bytes, int]] = []
            own = ConsumerOptions(max_retries=2, backoff=[0.01])
            async with mq.consumer("orders", group="ours", orderly=True, options=own) as inbox:
                while len(found) < 6:
                    message = await inbox.get(30)
                    assert message is not None
                    found.append((message.body, message.reconsume_times))
                    await message.retry()
            assert found == expected
            letters = {}
            for group in ("theirs", "ours"):
                async with mq.consumer(f"%DLQ%{group}", group=f"dead-{group}") as inbox:
                    dead = await inbox.get_batch(2, 30)
                    if len(dead) < 2:
                        dead += await inbox.get_batch(1, 30)
                    letters[group] = sorted((each.body, each.reconsume_times) for each in dead)
            if version == "4.9.8":  # counts the last one as no retry, which 5.x does
                letters["theirs"] = [(body, times + 1) for body, times in letters["theirs"]]
            assert letters["ours"] == letters["theirs"] == [(b"one", 3), (b"two", 3)]
    finally:
        await asyncio.to_thread(java.close)
