"""The SDK beside Apache's Java client in one group, on an embedded broker."""

import asyncio

import pytest
from peers.java_client import JavaClient
from waiting import until

pytestmark = pytest.mark.apache


async def test_members_in_java_and_python_split_the_queues_alike(aerobee_broker, tmp_path):
    java = await asyncio.to_thread(JavaClient, "5.5.0", tmp_path)
    try:
        async with aerobee_broker.connect() as mq:
            await mq.admin.create_topic("orders", queues=4)
            namesrv = aerobee_broker.namesrv
            other = await asyncio.to_thread(java.consumer, namesrv, "other", "billing", "orders")
            async with mq.consumer("orders", group="billing") as inbox:
                await until(lambda: len(inbox.queues) == 2, 30)
                await asyncio.sleep(2)  # the Java client lets go of its half
                for number in range(40):
                    await mq.send("orders", b"%d" % number)
                mine = []
                async with asyncio.timeout(20):
                    while len(mine) < 20:
                        message = await inbox.get()
                        await message.ack()
                        mine.append(int(message.body))
                theirs = await asyncio.to_thread(java.wait_messages, other, 20)
            assert sorted(mine + [int(row["body"]) for row in theirs]) == list(range(40))
    finally:
        await asyncio.to_thread(java.close)
