"""A stored message that an operator hands to one member (CONSUME_MESSAGE_DIRECTLY)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from waiting import until

from aerobee.client.client import Client
from aerobee.client.consuming import handed
from aerobee.client.errors import BrokerError, Reject
from aerobee.client.message import Message
from aerobee.testing import EmbeddedBroker


async def hand_to(broker: EmbeddedBroker, mq: Client, group: str, message: Message) -> Any:
    member = (await mq.admin.members(group))[0]
    details = mq.admin.details
    return await details.consume_now(broker.address, group, member.client_id, message)


async def test_a_handler_gets_it_again_and_its_outcome_is_reported() -> None:
    seen: list[bytes] = []

    async def handler(message: Message) -> None:
        seen.append(message.body)
        if len(seen) == 2:
            raise ValueError("not now")
        if len(seen) == 3:
            raise Reject("never")

    async with EmbeddedBroker() as broker, broker.connect() as mq:
        sent = await mq.send("t", b"x")
        async with mq.consumer("t", group="g") as inbox:
            running = asyncio.create_task(inbox.run(handler))
            await until(lambda: bool(seen), 60)
            message = await mq.message(sent.message_id, topic="t")
            later = await hand_to(broker, mq, "g", message)
            never = await hand_to(broker, mq, "g", message)
            done = await hand_to(broker, mq, "g", message)
            assert (later["consumeResult"], later["remark"]) == ("CR_LATER", "ValueError: not now")
            assert (never["consumeResult"], never["remark"]) == ("CR_THROW_EXCEPTION", "never")
            assert done["consumeResult"] == "CR_SUCCESS"
            assert seen == [b"x"] * 4
        await running
        # Nothing was put back: neither a retry nor a dead letter of it is stored.
        assert [row.lag for row in await mq.admin.lag("g", "t")] == [0] * 4
        topics = await mq.admin.topics(system=True)
        assert "%DLQ%g" not in topics


async def test_one_that_takes_long_is_answered_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handed, "ANSWER_SECONDS", 0.05)
    async with EmbeddedBroker() as broker, broker.connect() as mq:
        sent = await mq.send("t", b"x")
        async with mq.consumer("t", group="g") as inbox:
            await (await asyncio.wait_for(inbox.get(), 60)).ack()
            message = await mq.message(sent.message_id, topic="t")
            answer = await hand_to(broker, mq, "g", message)
            assert answer["consumeResult"] == "CR_LATER" and "still running" in answer["remark"]


async def test_a_group_that_reads_in_order_refuses_it() -> None:
    async with EmbeddedBroker() as broker, broker.connect() as mq:
        sent = await mq.send("t", b"x")
        async with mq.consumer("t", group="g", orderly=True):
            message = await mq.message(sent.message_id, topic="t")
            with pytest.raises(BrokerError, match="is orderly"):
                await hand_to(broker, mq, "g", message)
