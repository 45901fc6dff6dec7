"""Request and reply: a consumer's answer goes to the client that asked."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from peers.aerobee_broker import AerobeeBroker
from peers.java_client import JavaClient
from waiting import until

from aerobee import Message, Misuse, RequestTimeout, connect
from aerobee.testing import EmbeddedBroker


async def answer(message: Message) -> None:
    text = message.properties.get("style", "plain")
    assert await message.reply(b"re: " + message.body, properties={"style": text})


async def test_a_request_gets_its_reply(aerobee_broker: EmbeddedBroker) -> None:
    async with (
        aerobee_broker.connect() as asker,
        aerobee_broker.connect() as answerer,
        answerer.consumer("questions", group="oracle") as inbox,
    ):
        running = asyncio.create_task(inbox.run(answer))
        reply = await asker.request("questions", b"who?", properties={"style": "grand"})
        assert reply.body == b"re: who?" and reply.properties["style"] == "grand"
        replies = await asyncio.gather(
            *(asker.request("questions", b"%d" % number, timeout=10) for number in range(100))
        )
        assert [row.body for row in replies] == [b"re: %d" % number for number in range(100)]
        large = b"a long story, " * 1000  # is compressed on both ways
        assert (await asker.request("questions", large)).body == b"re: " + large
        await inbox.close()
        await running


async def test_a_request_that_nobody_answers_ends_in_time(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        with pytest.raises(RequestTimeout, match="no reply"):
            await mq.request("questions", b"anybody?", timeout=0.5)


async def test_a_reply_that_nobody_waits_for_is_reported_to_the_answerer(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with (
        aerobee_broker.connect() as mq,
        mq.consumer("questions", group="oracle") as inbox,
    ):
        async with aerobee_broker.connect() as asker:
            with pytest.raises(RequestTimeout):
                await asker.request("questions", b"quick?", timeout=0.2)
        message = await inbox.get()
        assert not await message.reply(b"too late")


async def test_only_a_request_can_be_replied_to(aerobee_broker: EmbeddedBroker) -> None:
    async with (
        aerobee_broker.connect() as mq,
        mq.consumer("orders", group="billing") as inbox,
    ):
        await mq.send("orders", b"no question")
        with pytest.raises(Misuse, match="was not sent by `request`"):
            await (await inbox.get()).reply(b"?")


async def test_a_request_is_answered_after_the_broker_was_killed(tmp_path: Path) -> None:
    broker = AerobeeBroker(tmp_path, metricsExporterType="DISABLE")
    await asyncio.to_thread(broker.start)
    try:
        async with (
            connect(f"mq://{broker.namesrv}") as asker,
            connect(f"mq://{broker.namesrv}") as answerer,
            answerer.consumer("questions", group="oracle") as inbox,
        ):
            running = asyncio.create_task(inbox.run(answer))
            assert (await asker.request("questions", b"before")).body == b"re: before"
            await asyncio.to_thread(broker.kill_and_start)
            assert (await asker.request("questions", b"after", timeout=20)).body == b"re: after"
            await inbox.close()
            await running
    finally:
        await asyncio.to_thread(broker.kill)


@pytest.mark.apache
@pytest.mark.parametrize("version", ["4.9.8", "5.5.0"])
async def test_java_asks_and_answers(
    aerobee_broker: EmbeddedBroker, tmp_path: Path, version: str
) -> None:
    java = await asyncio.to_thread(JavaClient, version, tmp_path)
    namesrv = aerobee_broker.namesrv
    try:
        async with aerobee_broker.connect() as mq:
            for topic in ("to-java", "to-python"):
                await mq.admin.create_topic(topic, queues=2)
            options: dict[str, Any] = {"group": "java", "topic": "to-java", "reply": True}
            await asyncio.to_thread(
                lambda: java.call("consumer", namesrv=namesrv, name="answerer", **options)
            )
            reply = await mq.request("to-java", b"question", timeout=20)
            assert reply.body == b"reply to question"

            await asyncio.to_thread(java.producer, namesrv, "asker")
            async with mq.consumer("to-python", group="python") as inbox:
                running = asyncio.create_task(inbox.run(answer))
                await until(lambda: len(inbox.queues) == 2)
                found = await asyncio.to_thread(
                    lambda: java.call("request", name="asker", topic="to-python", prefix="ask")
                )
                assert found["reply"] == "re: ask-0"
                await inbox.close()
                await running
    finally:
        await asyncio.to_thread(java.close)
