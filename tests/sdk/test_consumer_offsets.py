"""What a group has finished stays finished: failed commits, shared files, brokers that are gone."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from sdk.reading import every_queue_polls, fill, take
from sdk.two_brokers import knows_brokers, pair
from waiting import until

from aerobee import AerobeeError, ConnectFailed, ConsumerOptions, Message
from aerobee.broker.services.topics.config import TopicConfig
from aerobee.client.consuming import handling, redelivery
from aerobee.client.consuming.offsets import LocalOffsets
from aerobee.protocol.json.fastjson import MessageQueue
from aerobee.protocol.wire.command import Command
from aerobee.testing import EmbeddedBroker

SLOW = ConsumerOptions(commit_interval=1000)


async def test_a_commit_that_failed_is_made_up_for_on_closing(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect(timeout=0.5) as mq:
        await mq.send("orders", b"x")
        async with mq.consumer("orders", group="g", options=SLOW) as inbox:
            message = await inbox.get()
            inbox.pause()  # no pull carries the offset either
            await aerobee_broker.app.stop()
            await message.ack()
            await inbox.commit()
            await aerobee_broker.start()
        assert sum(row.lag for row in await mq.admin.lag("g", "orders")) == 0


async def test_a_commit_that_was_lost_on_its_way_is_sent_again(
    aerobee_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"x")
        options = ConsumerOptions(commit_interval=0.05)
        lost = []

        async def lose(_address: str, command: Command) -> None:
            lost.append(command)

        async with mq.consumer("orders", group="g", options=options) as inbox:
            monkeypatch.setattr(mq._core.remoting, "oneway", lose)
            message = await inbox.get()
            inbox.pause()  # no pull carries the offset either
            await message.ack()
            await until(lambda: any(command.ext["commitOffset"] == "1" for command in lost))

            queue_id = message.queue.queue_id
            query = aerobee_broker.app.broker.offsets.query
            await until(lambda: query("g", "orders", queue_id) == 1)


@pytest.mark.parametrize("delay", [None, 0, 30])
async def test_an_orderly_message_is_dead_after_its_last_retry_whatever_the_delay(
    aerobee_broker: EmbeddedBroker, delay: float | None
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"poison")
        options = ConsumerOptions(max_retries=1)
        async with mq.consumer("orders", group="g", orderly=True, options=options) as inbox:
            async with asyncio.timeout(5):
                await (await inbox.get()).retry(delay=0)
                await (await inbox.get()).retry(delay)
            assert [row.body async for row in mq.find("%DLQ%g")] == [b"poison"]


@pytest.mark.parametrize("backoff", [None, (1000.0,)])
async def test_what_comes_again_while_the_broker_is_away_uses_up_no_retries(
    aerobee_broker: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
    backoff: tuple[float, ...] | None,
) -> None:
    monkeypatch.setattr(handling, "LOCAL_RETRY_SECONDS", 0.01)
    send_back, tries = redelivery.send_back, 0

    async def away_at_first(*arguments: Any, **options: Any) -> None:
        nonlocal tries
        tries += 1
        if tries <= 5:
            raise ConnectFailed("the broker is away")
        await send_back(*arguments, **options)

    async def handle(_: Message) -> None:
        raise RuntimeError("handled badly")

    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"x")
        options = ConsumerOptions(max_retries=3, backoff=backoff)
        async with mq.consumer("orders", group="g", options=options) as inbox:
            monkeypatch.setattr(redelivery, "send_back", away_at_first)
            running = asyncio.create_task(inbox.run(handle))
            await until(lambda: tries == 6 and inbox._member.unfinished == 0)
            await inbox.close()
            await running
        assert "%DLQ%g" not in await mq.admin.topics(system=True)


async def test_readers_of_one_broadcast_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    readers = [LocalOffsets(path) for _ in range(4)]
    queue = MessageQueue("t", "b", 0)
    for number in range(10):
        await asyncio.gather(*(row.save({queue: number}, confirm=True) for row in readers))
    assert await LocalOffsets(path).load(queue) == 9
    assert os.listdir(tmp_path) == [path.name]


async def test_the_file_of_a_broadcast_reader_may_be_named_by_text(
    aerobee_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    path = tmp_path / "offsets.json"
    options = ConsumerOptions(state_path=str(path))
    async with aerobee_broker.connect() as mq:
        await mq.send("news", b"x")
        async with mq.consumer(
            "news", group="g", broadcast=True, start="first", options=options
        ) as inbox:
            assert [row.body for row in await take(inbox, 1)] == [b"x"]
    assert path.exists()


async def test_orderly_consumers_leave_in_order_when_a_broker_is_forgotten() -> None:
    async with EmbeddedBroker(brokerName="first") as first:
        second = await pair(first)
        async with first.connect(timeout=0.5) as mq:
            await until(lambda: knows_brokers(mq, 2))
            for broker in (first, second):
                topic = f"on-{broker.app.settings.broker_name}"
                broker.app.broker.topics.put(TopicConfig(topic, 1, 1))
            topics = ["on-first", "on-second"]
            async with mq.consumer(topics, group="g", orderly=True) as inbox:
                await until(lambda: len(inbox.queues) == 2)
                await second.stop()

                async def is_forgotten() -> bool:
                    await mq._core.routes.refresh_all()
                    return "second" not in mq._core.routes._brokers

                await until(is_forgotten)
                await inbox._member.assignment._renew_locks()
            assert await mq.admin.members("g") == []


async def test_one_consumer_that_cannot_commit_does_not_keep_the_others_from_closing(
    aerobee_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    path = tmp_path / "offsets.json"
    options = ConsumerOptions(commit_interval=1000, state_path=path)
    mq = await aerobee_broker.connect()
    await mq.send("orders", b"x")
    readers = mq.consumer("orders", group="readers", broadcast=True, start="first", options=options)
    workers = mq.consumer("orders", group="workers", options=SLOW)
    async with asyncio.timeout(5):
        for inbox in (readers, workers):
            await inbox.__aenter__()
            await (await inbox.get()).ack()
    path.unlink()
    path.mkdir()
    with pytest.raises(AerobeeError, match="cannot be written"):
        await mq.close()
    async with aerobee_broker.connect() as other:
        assert await other.admin.members("workers") == []
        assert sum(row.lag for row in await other.admin.lag("workers", "orders")) == 0


async def test_a_paused_consumer_gets_neither_what_is_sent_then_nor_retries(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"first")
        async with mq.consumer("orders", group="g") as inbox:
            async with asyncio.timeout(5):
                message = await inbox.get()
            await every_queue_polls(aerobee_broker, inbox)
            inbox.pause()
            await message.retry(delay=0)
            for _ in range(4):  # one for each queue
                await mq.send("orders", b"later")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await inbox.get()
            inbox.resume()
            async with asyncio.timeout(5):
                found = [(await inbox.get()).body for _ in range(5)]
            assert sorted(found) == [b"first"] + [b"later"] * 4


async def test_a_paused_queue_that_goes_to_another_member_and_comes_back_is_paused_still(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq, aerobee_broker.connect() as other:
        await mq.admin.create_topic("orders", queues=2)
        async with mq.consumer("orders", group="g") as inbox:
            await until(lambda: len(inbox.queues) == 2)
            inbox.pause()
            async with other.consumer("orders", group="g"):
                await until(lambda: len(inbox.queues) == 1)
            await until(lambda: len(inbox.queues) == 2)
            rows = inbox._member.assignment.select(inbox.queues)
            assert [row.running.is_set() for row in rows] == [False, False]
            inbox.resume(inbox.queues)
            await fill(mq, "orders", 10)
            assert len(await take(inbox, 10)) == 10


async def test_a_consumer_that_is_entered_again_gets_what_it_had_not_finished(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        await fill(mq, "orders", 10, order_key="one queue")
        inbox = mq.consumer("orders", group="g", options=ConsumerOptions(prefetch_count=1))
        async with inbox:
            assert (await inbox.get()).body == b"0"
        async with inbox:
            assert [int(row.body) for row in await take(inbox, 10)] == list(range(10))
