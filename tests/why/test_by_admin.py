"""The way for brokers without EXPLAIN_MESSAGE, tried on ours: less is known, nothing is wrong.

`test_java_clients` tries it on Apache's own broker.
"""

import pytest
from waiting import until

from aerobee import Client, Message, Receipt, Verdict
from aerobee.client.why import by_admin
from aerobee.client.why.judge import judge
from aerobee.client.why.story import story_of
from aerobee.testing import EmbeddedBroker


async def verdict(
    mq: Client, broker: EmbeddedBroker, message_id: str, group: str, topic: str | None = None
) -> str:
    """By the admin requests alone."""
    name = broker.app.broker.settings.broker_name
    facts = await by_admin.facts(mq._core, name, broker.address, message_id, topic, group)
    [row] = judge(story_of([facts], [], topic), group)
    return row.verdict.value


@pytest.mark.parametrize("topic", [None, "orders"])
async def test_consumed_sent_offline_and_filtered_are_reported_as_far_as_known(
    aerobee_broker: EmbeddedBroker, topic: str | None
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.admin.create_topic("orders", queues=1)

        async def becomes(receipt: Receipt, wanted: str, group: str = "g") -> None:
            async def is_so() -> bool:
                found = await verdict(mq, aerobee_broker, receipt.message_id, group, topic)
                return found == wanted

            await until(is_so, 20)

        async with mq.consumer("orders", group="g", tags="a") as inbox:
            first = await mq.send("orders", b"1", tag="a")
            message = await anext(aiter(inbox))
            await becomes(first, "sent")
            await message.ack()
            small = await mq.send("orders", b"2", tag="b")
            await mq.send("orders", b"3", tag="a")  # matches the filter, so the pull returns
            await (await anext(aiter(inbox))).ack()
            await inbox.commit()
            await becomes(first, "consumed")
            await becomes(small, "unknown")  # the group passed it with an unknown filter
        last = await mq.send("orders", b"4", tag="a")
        await becomes(last, "offline")
        await becomes(last, "no_group", "nobody")
        late = await mq.send("orders", b"5", delay=3600)
        await becomes(late, "waiting_timer")
        missing = await verdict(mq, aerobee_broker, "0" * 32, "g", topic)
        assert missing == "not_found"


async def test_retries_dead_letters_and_halves_are_reported_as_far_as_known(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async def never(message: Message) -> Verdict:
        raise AssertionError(message)

    async with aerobee_broker.connect() as mq:
        receipt = await mq.send("orders", b"1")
        async with mq.consumer("orders", group="g") as inbox:
            await (await anext(aiter(inbox))).retry()  # by the group's delay levels
        found = await verdict(mq, aerobee_broker, receipt.message_id, "g")
        assert found == "in_retry"
        async with mq.consumer("orders", group="h") as inbox:
            await (await anext(aiter(inbox))).reject("no")
        assert await verdict(mq, aerobee_broker, receipt.message_id, "h") == "dead"
        async with (
            mq.transactions("orders", group="pay", check=never) as transactions,
            transactions.begin(b"2") as half,
        ):
            asked = await verdict(mq, aerobee_broker, half.receipt.message_id, "g")
            assert asked == "unknown"  # such a broker does not tell whether it is open
