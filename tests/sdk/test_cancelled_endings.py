"""The end of a block, cancelled: what was opened is closed all the same."""

import asyncio

import pytest
from waiting import until

from aerobee import Closed, Message, Verdict
from aerobee.testing import EmbeddedBroker


def names_of_tasks() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks()}


async def test_a_client_whose_closing_is_cancelled_leaves_no_consumer_behind(
    aerobee_broker: EmbeddedBroker,
) -> None:
    release = asyncio.Event()

    async def handle(_: Message) -> None:
        await release.wait()

    mq = await aerobee_broker.connect()
    await mq.send("orders", b"x")
    slow = await mq.consumer("orders", group="slow").__aenter__()
    other = await mq.consumer("orders", group="other").__aenter__()
    await (await other.get()).ack()
    getting = asyncio.create_task(other.get())
    running = asyncio.create_task(slow.run(handle))
    await until(lambda: slow._member.unfinished == 1 and not slow._member.ready)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await mq.close()
    async with asyncio.timeout(20):
        with pytest.raises(Closed):
            await getting
        release.set()
        await running
    await until(lambda: not {"rebalance slow", "rebalance other"} & names_of_tasks())
    assert not {"commit slow", "commit other"} & names_of_tasks()


async def test_transactions_whose_end_is_cancelled_leave_their_group(
    aerobee_broker: EmbeddedBroker,
) -> None:
    asked = asyncio.Event()

    async def check(_: Message) -> Verdict:
        asked.set()
        await asyncio.Event().wait()
        return Verdict.COMMIT

    async with aerobee_broker.connect() as mq:

        async def work() -> None:
            async with mq.transactions("orders", group="pay", check=check) as transactions:
                async with transactions.begin(b"x") as half:
                    half.verdict = Verdict.UNKNOWN
                while not asked.is_set():
                    await aerobee_broker.advance(seconds=40)
                    await asyncio.sleep(0.05)

        working = asyncio.create_task(work())
        await asked.wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(working, 0.5)
        async with mq.transactions("orders", group="pay", check=check):
            assert set(mq._core.presence._producers) == {"pay"}
        assert not mq._core.presence._producers
