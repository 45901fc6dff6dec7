"""A broker process that is killed and started again under a producer and a consumer."""

import asyncio
from pathlib import Path

from peers.aerobee_broker import AerobeeBroker
from waiting import grown, until

from aerobee import AerobeeError, Client, ConsumerOptions, Message, connect


async def test_every_receipt_is_kept_and_both_continue_unaided(tmp_path: Path) -> None:
    broker = AerobeeBroker(tmp_path, metricsExporterType="DISABLE")
    await asyncio.to_thread(broker.start)
    received: set[int] = set()
    stored: set[int] = set()
    stop = asyncio.Event()

    async def send(mq: Client) -> None:
        number = 0
        while not stop.is_set():
            try:
                await mq.send("orders", b"%d" % number, timeout=10)
            except AerobeeError:  # unconfirmed: it may be there or not
                await asyncio.sleep(0.05)
            else:
                stored.add(number)
            number += 1
            await asyncio.sleep(0.001)

    async def receive(message: Message) -> None:
        received.add(int(message.body))

    try:
        async with connect(f"mq://{broker.namesrv}") as mq:
            options = ConsumerOptions(commit_interval=0.2)
            async with mq.consumer("orders", group="billing", options=options) as inbox:
                worker = asyncio.create_task(inbox.run(receive, concurrency=4))
                sender = asyncio.create_task(send(mq))
                await until(lambda: len(received) > 100, 20)
                for _ in range(2):
                    await asyncio.to_thread(broker.kill_and_start)
                    await grown(lambda: stored, 100, 30)
                stop.set()
                await sender
                await until(lambda: stored <= received, 40)
                await inbox.close()
                await worker
    finally:
        await asyncio.to_thread(broker.kill)
    assert len(stored) > 300
