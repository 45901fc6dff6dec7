"""Consumers that want some of the messages."""

import pytest
from sdk.reading import nothing_comes, take

from aerobee import FilterRefused
from aerobee.testing import EmbeddedBroker


async def test_tags_select(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        for number in range(12):
            await mq.send("orders", b"%d" % number, tag=("paid", "open", "void")[number % 3])
        async with mq.consumer("orders", group="billing", tags={"paid", "void"}) as inbox:
            found = await take(inbox, 8)
            assert {message.tag for message in found} == {"paid", "void"}
            await nothing_comes(inbox)


async def test_a_tag_with_the_same_hash_is_not_taken_for_ours(
    aerobee_broker: EmbeddedBroker,
) -> None:
    """Java's hash of "Aa" and "BB" is the same, and brokers compare hashes."""
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"other", tag="BB")
        await mq.send("orders", b"ours", tag="Aa")
        async with mq.consumer("orders", group="billing", tags="Aa") as inbox:
            assert [row.body for row in await take(inbox, 1)] == [b"ours"]
            await nothing_comes(inbox)


async def test_sql_selects_by_properties(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        for number in range(10):
            await mq.send("orders", b"%d" % number, properties={"amount": str(number)})
        async with mq.consumer("orders", group="billing", sql="amount > 6") as inbox:
            assert sorted(int(row.body) for row in await take(inbox, 3)) == [7, 8, 9]
            await nothing_comes(inbox)


async def test_sql_that_does_not_parse_is_refused_on_entering(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"x")
        with pytest.raises(FilterRefused):
            async with mq.consumer("orders", group="billing", sql="amount >"):
                pass
