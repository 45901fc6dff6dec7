"""Mistakes in the use of a consumer, each of which says so."""

import asyncio
import logging
import threading
import time

import pytest
from waiting import until

from aerobee import GroupNotFound, Message, Misuse
from aerobee.testing import EmbeddedBroker


async def test_a_plain_function_is_a_handler_and_runs_in_a_thread(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        seen = {}
        together = threading.Barrier(8)

        def handle(message: Message) -> None:
            if message.reconsume_times == 0 and message.body == b"0":
                raise ValueError("the first time")
            if int(message.body) < 9:
                together.wait(10)  # breaks unless eight of them run at a time
            seen[message.body] = threading.current_thread() is threading.main_thread()

        for number in range(9):
            await mq.send("jobs", b"%d" % number)
        async with mq.consumer("jobs", group="workers") as inbox:
            running = asyncio.create_task(inbox.run(handle, concurrency=8))
            await until(lambda: len(seen) == 8)
            async with mq.consumer("%RETRY%workers", group="spy") as spy:
                await aerobee_broker.advance(seconds=11)
                assert (await spy.get()).body == b"0"  # only what raised is retried
            assert set(seen.values()) == {False}
            await inbox.close()
            await running
        assert sum(row.lag for row in await mq.admin.lag("workers", "jobs")) == 0


async def test_closing_waits_for_a_handler_in_a_thread(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("jobs", b"x")
        events = []

        def handle(message: Message) -> None:
            events.append("begun")
            time.sleep(0.3)
            events.append("ended")

        async with mq.consumer("jobs", group="workers") as inbox:
            running = asyncio.create_task(inbox.run(handle))
            await until(lambda: events)
        assert events == ["begun", "ended"]
        await running


async def test_what_a_plain_function_returns_is_awaited(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("jobs", b"x")
        seen = []

        async def handle(message: Message, note: str) -> None:
            seen.append((message.body, note))

        async with mq.consumer("jobs", group="workers") as inbox:
            running = asyncio.create_task(inbox.run(lambda message: handle(message, "noted")))
            await until(lambda: seen)
        assert seen == [(b"x", "noted")]
        await running


async def test_a_consumer_that_was_never_entered_says_so(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        inbox = mq.consumer("orders", group="billing")
        with pytest.raises(Misuse, match="async with"):
            async for _ in inbox:
                pass
        with pytest.raises(Misuse, match="async with"):
            await inbox.get()
        with pytest.raises(Misuse, match="async with"):
            await inbox.run(print)


async def test_a_group_that_the_broker_refuses_is_an_error() -> None:
    async with (
        EmbeddedBroker(autoCreateSubscriptionGroup="false") as broker,
        broker.connect() as mq,
    ):
        await mq.admin.create_topic("orders")
        with pytest.raises(GroupNotFound, match="nobody"):
            async with asyncio.timeout(5), mq.consumer("orders", group="nobody"):
                pass
        await mq.admin.create_group("somebody")
        await mq.send("orders", b"x")
        async with asyncio.timeout(5), mq.consumer("orders", group="somebody") as inbox:
            assert (await inbox.get()).body == b"x"


async def test_a_topic_that_is_not_there_is_reported_once(
    aerobee_broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aerobee")
    async with (
        aerobee_broker.connect() as mq,
        mq.consumer("ordres", group="billing") as inbox,
    ):
        await asyncio.sleep(1.2)  # it looks every second
        said = [row for row in caplog.records if "'ordres'" in row.getMessage()]
        assert [row.levelname for row in said] == ["WARNING"]
        assert "waits for topic 'ordres', which name servers" in said[0].getMessage()
        await mq.send("ordres", b"x")
        assert (await inbox.get()).body == b"x"
        await until(lambda: "topic 'ordres' exists now" in caplog.text)
    assert "%RETRY%" not in caplog.text  # the broker makes that one by itself
