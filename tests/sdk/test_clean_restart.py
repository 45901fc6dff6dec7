"""A broker that is stopped cleanly and started again under a group of consumers."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

from peers.aerobee_broker import AerobeeBroker
from waiting import grown, until

from aerobee import AerobeeError, Client, Consumer, Message, connect

RATE = 200  # messages a second


def is_shared(boxes: list[Consumer]) -> bool:
    """Each queue has one reader: the rebalance is complete."""
    queues = [queue for box in boxes for queue in box.queues]
    return len(queues) == len(set(queues)) == 8 and all(len(box.queues) >= 2 for box in boxes)


async def test_a_clean_restart_delivers_nothing_again_but_what_was_in_hand(tmp_path: Path) -> None:
    broker = AerobeeBroker(tmp_path)
    await asyncio.to_thread(broker.start)
    delivered: Counter[int] = Counter()
    in_hand: set[int] = set()
    held: set[int] = set()  # in flight during a restart
    restarting = False
    stored: set[int] = set()
    stop = asyncio.Event()

    async def handle(message: Message) -> None:
        number = int(message.body)
        delivered[number] += 1
        in_hand.add(number)
        if restarting:
            held.add(number)
        await asyncio.sleep(0.02)
        in_hand.discard(number)

    async def produce(mq: Client) -> None:
        number = 0
        while not stop.is_set():
            try:
                await mq.send("orders", b"%d" % number, timeout=20)
            except AerobeeError:
                pass  # unconfirmed: continue with the next number
            else:
                stored.add(number)
            number += 1
            await asyncio.sleep(1 / RATE)

    try:
        async with AsyncExitStack() as stack:
            url = f"mq://{broker.namesrv}"
            clients = [await stack.enter_async_context(connect(url)) for _ in range(4)]
            await clients[0].admin.create_topic("orders", queues=8)
            boxes = [
                await stack.enter_async_context(client.consumer("orders", group="billing"))
                for client in clients[1:]
            ]
            workers = [asyncio.create_task(box.run(handle, concurrency=4)) for box in boxes]
            await until(lambda: is_shared(boxes), 30)
            shares = [box.queues for box in boxes]
            producer = asyncio.create_task(produce(clients[0]))
            for _ in range(2):
                await grown(lambda: stored, 2 * RATE, 30)
                restarting, held = True, held | in_hand
                await asyncio.to_thread(broker.restart)
                restarting = False
                await grown(lambda: stored, RATE, 30)
                assert [box.queues for box in boxes] == shares  # no queue was reassigned
            stop.set()
            await producer
            await until(lambda: stored <= delivered.keys() and not in_hand, 30)
            again = {number for number, count in delivered.items() if count > 1}
            for box in boxes:
                await box.close()
            await asyncio.gather(*workers)
    finally:
        await asyncio.to_thread(broker.kill)
    assert again <= held, f"{len(again - held)} of {len(stored)} were delivered again"


async def test_the_queues_of_a_member_that_does_not_come_back_are_taken_over(
    tmp_path: Path,
) -> None:
    broker = AerobeeBroker(tmp_path)
    await asyncio.to_thread(broker.start)
    try:
        url = f"mq://{broker.namesrv}"
        async with connect(url) as one, connect(url) as two:
            await one.admin.create_topic("orders", queues=4)
            async with (
                one.consumer("orders", group="billing") as stays,
                two.consumer("orders", group="billing") as goes,
            ):
                await until(lambda: len(stays.queues) == len(goes.queues) == 2, 30)
                await asyncio.to_thread(broker.stop)
                await two._core.remoting.close()  # as if its process had exited
                await asyncio.to_thread(broker.start)
                await until(lambda: len(stays.queues) == 4, 10)
    finally:
        await asyncio.to_thread(broker.kill)
