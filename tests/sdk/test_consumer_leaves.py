"""Consumers that leave while they are being entered."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sdk.reading import fill

from aerobee import Closed
from aerobee.client.consuming import assignment
from aerobee.client.consuming.consumer import Consumer
from aerobee.testing import EmbeddedBroker


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
