"""Messages whose handlers fail: limits, backoff, time limits, rejects."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from sdk.reading import stored
from waiting import until

from aerobee import Client, ConsumerOptions, Message, Misuse, Reject
from aerobee.testing import EmbeddedBroker


async def dead_letters(mq: Client, group: str) -> list[Message]:
    return await stored(mq, f"%DLQ%{group}")


async def test_an_orderly_group_keeps_the_retries_that_it_was_created_with(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.admin.create_group("g", max_retries=2)
        await mq.send("orders", b"poison", order_key="a")
        await mq.send("orders", b"next", order_key="a")
        async with mq.consumer("orders", group="g", orderly=True) as inbox:
            async with asyncio.timeout(10):
                for attempt in range(3):
                    message = await inbox.get()
                    assert (message.body, message.reconsume_times) == (b"poison", attempt)
                    await message.retry(delay=0)
                assert (await inbox.get()).body == b"next"
            [letter] = await dead_letters(mq, "g")
            assert letter.body == b"poison"


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_rejected_message_is_a_dead_letter_at_once_with_its_reason(
    aerobee_broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture, orderly: bool
) -> None:
    async with aerobee_broker.connect() as mq:
        for body in (b"bad", b"good"):
            await mq.send("orders", body, key="k", order_key="a")
        async with mq.consumer("orders", group="g", orderly=orderly) as inbox:
            message = await inbox.get()
            await message.reject("no such customer: \x01 42 \x02 é" + "." * 1000)
            assert message.finished
            assert (await inbox.get()).body == b"good"
        [letter] = await dead_letters(mq, "g")
        assert (letter.body, letter.topic, letter.keys) == (b"bad", "orders", ["k"])
        assert letter.failure is not None
        assert letter.failure.startswith("no such customer:   42   é...")
        assert "goes to the dead letters of group g, it was rejected: no such" in caplog.text


@pytest.mark.parametrize("plain", [False, True])
async def test_a_handler_rejects_by_an_exception(
    aerobee_broker: EmbeddedBroker, plain: bool
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"bad")

        def refuse(message: Message) -> None:
            raise Reject("not an order")

        async def refuse_in_the_loop(message: Message) -> None:
            refuse(message)

        async with mq.consumer("orders", group="g") as inbox:
            handler = refuse if plain else refuse_in_the_loop
            running = asyncio.create_task(inbox.run(handler))
            await until(lambda: has_letters(mq, "g"))
            await inbox.close()
            await running
        [letter] = await dead_letters(mq, "g")
        assert letter.failure == "not an order"


async def has_letters(mq: Client, group: str) -> bool:
    return f"%DLQ%{group}" in await mq.admin.topics(system=True)


async def test_the_last_exception_is_recorded_with_the_dead_letter(
    aerobee_broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"poison")
        failures = []

        async def fail(message: Message) -> None:
            failures.append(message.failure)
            raise ValueError(f"attempt {len(failures)}")

        options = ConsumerOptions(max_retries=2, backoff=[0.1, 0.2])
        async with mq.consumer("orders", group="g", options=options) as inbox:
            running = asyncio.create_task(inbox.run(fail))
            await until(lambda: has_letters(mq, "g"))
            await inbox.close()
            await running
        assert failures == [None, "ValueError: attempt 1", "ValueError: attempt 2"]
        [letter] = await dead_letters(mq, "g")
        assert letter.failure == "ValueError: attempt 3"
        said = [row for row in caplog.records if "goes to the dead letters" in row.getMessage()]
        assert [row.levelno for row in said] == [logging.WARNING]
        assert "after 2 retries: ValueError: attempt 3" in said[0].getMessage()


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("backoff", [[0.1, 0.6], lambda retry: 0.1 if retry == 1 else 0.6])
async def test_a_declared_backoff_is_kept(
    aerobee_broker: EmbeddedBroker, orderly: bool, backoff: Sequence[float] | Callable[[int], float]
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"x")
        times = []

        async def fail_thrice(message: Message) -> None:
            times.append(time.monotonic())
            if len(times) < 4:
                raise ValueError("not yet")

        options = ConsumerOptions(backoff=backoff)
        async with mq.consumer("orders", group="g", orderly=orderly, options=options) as inbox:
            running = asyncio.create_task(inbox.run(fail_thrice))
            await until(lambda: len(times) == 4, 20)
            await inbox.close()
            await running
        waits = [after - before for before, after in pairwise(times)]
        assert waits[0] > 0.05
        assert waits[1] > 0.5 and waits[2] > 0.5


async def test_a_handler_that_takes_too_long_is_stopped_and_its_message_retried(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"x")
        ends: list[str | None] = []

        async def slow_at_first(message: Message) -> None:
            try:
                await asyncio.sleep(0 if message.reconsume_times else 60)
            except asyncio.CancelledError:
                ends.append("stopped")
                raise
            ends.append(message.failure)

        options = ConsumerOptions(backoff=[0.0])
        async with mq.consumer("orders", group="g", options=options) as inbox:
            running = asyncio.create_task(inbox.run(slow_at_first, time_limit=0.2))
            await until(lambda: len(ends) == 2)
            await inbox.close()
            await running
        assert ends == ["stopped", "TimeoutError: the handler took longer than 0.2 s"]


async def test_several_messages_are_taken_at_once(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        async with mq.consumer("orders", group="g") as inbox:
            assert await inbox.get_batch(10, timeout=0.1) == []
            for number in range(25):
                await mq.send("orders", b"%d" % number)
            found: list[Message] = []
            async with asyncio.timeout(10):
                while len(found) < 25:
                    batch = await inbox.get_batch(10)
                    assert 1 <= len(batch) <= 10
                    for message in batch:
                        await message.ack()
                    found += batch
            assert sorted(int(row.body) for row in found) == list(range(25))
            assert await inbox.get_batch(10, timeout=0.1) == []
            with pytest.raises(Misuse):
                await inbox.get_batch(0)
        assert sum(row.lag for row in await mq.admin.lag("g", "orders")) == 0


async def test_messages_that_have_arrived_are_taken_without_waiting(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with (
        aerobee_broker.connect() as mq,
        mq.consumer("orders", group="g") as inbox,
    ):
        async with mq.producer("orders", linger=0) as orders:
            for _ in range(150):
                await orders.send(b"x")
        await until(lambda: inbox._member.unfinished == 150)
        for _ in range(150):
            assert await inbox.get(0) is not None
        assert await inbox.get(0) is None


@pytest.mark.parametrize("error", [StopIteration(), SystemExit(3), KeyboardInterrupt()])
async def test_a_plain_handler_fails_by_whatever_it_raises(
    aerobee_broker: EmbeddedBroker, error: BaseException
) -> None:
    tries: list[Message] = []

    def handle(message: Message) -> None:
        tries.append(message)
        if len(tries) == 1:
            raise error

    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"x")
        async with mq.consumer("orders", group="g", options=ConsumerOptions(backoff=[0])) as inbox:
            running = asyncio.create_task(inbox.run(handle, concurrency=1))
            await until(lambda: len(tries) == 2)
        await running
    assert tries[1].failure == f"RuntimeError: the handler raised {error!r}"
