"""Consumers that leave: while they are being entered, or with messages still in hand."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sdk.reading import fill
from waiting import until

from aerobee import Closed, ConsumerOptions, Message
from aerobee.client.consuming import assignment
from aerobee.client.consuming.consumer import Consumer
from aerobee.protocol.names import retry_topic
from aerobee.testing import EmbeddedBroker

QUICK = ConsumerOptions(commit_interval=0.1)


@pytest.fixture(params=["check_sql", "members_of"], ids=["before it joins", "as a member"])
def held(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[asyncio.Event]:
    """Entering stops at this step: the first event says so, the second lets it go on."""
    reached, release = asyncio.Event(), asyncio.Event()
    step: Callable[..., Awaitable[Any]] = getattr(assignment, request.param)

    async def hold(*args: Any) -> Any:
        reached.set()
        await release.wait()
        return await step(*args)

    monkeypatch.setattr(assignment, request.param, hold)
    return [reached, release]


@pytest.mark.parametrize("by", ["the consumer", "its client"])
async def test_a_consumer_that_is_closed_while_it_is_entered_leaves_nothing_behind(
    aerobee_broker: EmbeddedBroker, held: list[asyncio.Event], by: str
) -> None:
    """It would go on as a member that nobody reads: its queues would be read by no one."""
    reached, release = held
    async with aerobee_broker.connect() as mq, aerobee_broker.connect() as other:
        await fill(mq, "orders", 10)
        inbox = mq.consumer("orders", group="g")

        async def enter() -> Consumer:
            return await inbox.__aenter__()

        entering = asyncio.create_task(enter())
        await reached.wait()
        await (inbox.close() if by == "the consumer" else mq.close())
        release.set()
        with pytest.raises(Closed, match="'g' was closed while it was being entered"):
            await entering
        assert await other.admin.members("g") == []
        assert not any(
            "of g" in task.get_name() or task.get_name().endswith(" g")
            for task in asyncio.all_tasks()
        )
        async with other.consumer("orders", group="g") as again:
            got = [await again.get() for _ in range(10)]
            assert len({message.message_id for message in got}) == 10


async def test_a_cancelled_entering_is_a_cancellation(
    aerobee_broker: EmbeddedBroker, held: list[asyncio.Event]
) -> None:
    reached, release = held
    async with aerobee_broker.connect() as mq:
        await fill(mq, "orders", 1)
        inbox = mq.consumer("orders", group="g")
        entering = asyncio.create_task(inbox.__aenter__())
        await reached.wait()
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        release.set()
        assert await mq.admin.members("g") == []
        async with inbox as again:  # it can be entered once more
            assert (await again.get()).body == b"0"


async def retried(message: Message) -> None:
    await message.retry(delay=0.0)


async def rejected(message: Message) -> None:
    await message.reject("no good")


@pytest.mark.parametrize("outcome", [retried, rejected])
async def test_a_message_whose_queue_went_to_another_member_is_left_to_that_one(
    aerobee_broker: EmbeddedBroker, outcome: Callable[[Message], Awaitable[None]]
) -> None:
    async with aerobee_broker.connect() as one, aerobee_broker.connect() as two:
        await one.admin.create_topic("orders", queues=2)
        for number in range(20):
            await one.send("orders", b"%d" % number)
        async with one.consumer("orders", group="g", options=QUICK) as first:
            held = [await first.get() for _ in range(20)]
            async with two.consumer("orders", group="g", options=QUICK) as second:
                await until(lambda: len(first.queues) == len(second.queues) == 1)
                gone = [
                    m for m in held if m.stored.queue_id not in {q.queue_id for q in first.queues}
                ]
                assert len(gone) == 10
                again = [await second.get() for _ in gone]
                assert {m.body for m in again} == {m.body for m in gone}
                for message in gone:
                    await outcome(message)
                    assert message.finished
                for message in again:
                    await message.ack()
                store = aerobee_broker.app.broker.store
                for topic in (retry_topic("g"), "%DLQ%g"):
                    assert store.max_offset(topic, 0) <= 0
                mine = next(m for m in held if m not in gone)
                await outcome(mine)
                sent = (retry_topic("g"), "%DLQ%g")[outcome is rejected]
                await until(lambda: store.max_offset(sent, 0) == 1)


async def test_a_message_that_is_retried_after_a_seek_past_it_comes_again(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"x")
        async with mq.consumer("orders", group="g", options=QUICK) as inbox:
            message = await inbox.get()
            await inbox.seek_to("last")
            await message.retry(delay=0.0)
            assert (await inbox.get()).body == b"x"
