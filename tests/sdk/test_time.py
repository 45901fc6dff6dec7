"""Delays, deliver-at, recall and retention, with the broker's clock moved by the test."""

from datetime import UTC, datetime, timedelta

from sdk.reading import nothing_comes, take

from aerobee import Consumer, Message
from aerobee.testing import EmbeddedBroker


async def get(inbox: Consumer) -> Message:
    [message] = await take(inbox, 1)
    return message


async def test_a_delayed_message_comes_when_its_time_has_come(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.admin.create_topic("reminders")
        async with mq.consumer("reminders", group="g") as inbox:
            await mq.send("reminders", b"in two hours", delay=7200)
            await mq.send("reminders", b"now")
            assert (await get(inbox)).body == b"now"
            await aerobee_broker.advance(hours=1, minutes=59)
            await nothing_comes(inbox)
            await aerobee_broker.advance(minutes=1, seconds=1)
            assert (await get(inbox)).body == b"in two hours"


async def test_delays_are_kept_in_the_order_of_their_times(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.admin.create_topic("reminders", queues=1)
        async with mq.consumer("reminders", group="g") as inbox:
            for seconds in (300, 17, 86400, 42.5, 3600):
                await mq.send("reminders", b"%g" % seconds, delay=seconds)
            await aerobee_broker.advance(days=1, seconds=1)
            found = [float((await get(inbox)).body) for _ in range(5)]
            assert found == [17, 42.5, 300, 3600, 86400]


async def test_deliver_at_takes_a_datetime(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.admin.create_topic("reminders")
        async with mq.consumer("reminders", group="g") as inbox:
            await mq.send(
                "reminders", b"tomorrow", deliver_at=datetime.now(UTC) + timedelta(days=1)
            )
            await nothing_comes(inbox)
            await aerobee_broker.advance(days=1, seconds=1)
            assert (await get(inbox)).body == b"tomorrow"


async def test_a_delayed_message_can_be_recalled(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.admin.create_topic("reminders")
        async with mq.consumer("reminders", group="g") as inbox:
            receipt = await mq.send("reminders", b"never mind", delay=3600)
            await mq.send("reminders", b"kept", delay=3600)
            assert receipt.recall_handle is not None
            await mq.recall("reminders", receipt.recall_handle)
            await aerobee_broker.advance(hours=1, seconds=2)
            assert (await get(inbox)).body == b"kept"
            await nothing_comes(inbox)


async def test_old_files_go_when_their_time_has_come() -> None:
    async with (
        EmbeddedBroker(fileReservedTime=2, mappedFileSizeCommitLog=1 << 20) as broker,
        broker.connect() as mq,
    ):
        async with mq.producer("orders", linger=0.001) as orders:
            for _ in range(3000):
                await orders.send(b"x" * 1000)
        oldest = broker.app.broker.store.min_physical_offset
        assert oldest == 0
        await broker.advance(hours=1)
        assert broker.app.broker.store.min_physical_offset == 0
        await broker.advance(hours=30)  # past the retention and the next cleaning hour
        assert broker.app.broker.store.min_physical_offset > 0
        async with mq.consumer("orders", group="g", start="first") as inbox:
            await get(inbox)  # the rest can still be read
