"""The SDK with a real Apache RocketMQ 5.5.0: its name server and broker in a JVM."""

import asyncio
import time
from collections.abc import Iterator
from functools import partial

import pytest
from peers.apache import ApacheBroker

from aerobee import ConsumerOptions, Durability, Message, Verdict, connect
from sdk import reading

pytestmark = pytest.mark.apache
take = partial(reading.take, seconds=30.0)


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheBroker]:
    folder = tmp_path_factory.mktemp("apache")
    settings = {"transactionCheckInterval": "6000", "transactionTimeOut": "5000"}
    with ApacheBroker("5.5.0", folder, **settings) as broker:
        yield broker


async def test_every_way_to_send_arrives(apache: ApacheBroker) -> None:
    async with connect(f"mq://{apache.namesrv}") as mq:
        receipt = await mq.send("a-producer", b"one", tag="t", key="k", properties={"own": "1"})
        assert receipt.durability is Durability.ACCEPTED and receipt.queue_offset == 0
        connection = mq._core.remoting.known(apache.broker)
        assert connection is not None and not connection.is_aerobee
        batch = await mq.producer("a-producer").send_batch([b"b%d" % n for n in range(5)])
        assert [row.queue_offset for row in batch] == list(
            range(batch[0].queue_offset, batch[0].queue_offset + 5)
        )
        await mq.send_oneway("a-producer", b"oneway")
        async with mq.producer("a-producer", linger=0.002) as buffered:
            for number in range(1000):
                await buffered.send(b"%d" % number)
        large = b"large body " * 2000
        stored = await mq.send("a-producer", large)
        assert (await mq.message(stored.offset_message_id)).body == large
        async with mq.consumer("a-producer", group="a-producer") as inbox:
            found = await take(inbox, 1 + 5 + 1 + 1000 + 1)
        assert len({row.message_id for row in found}) == 1008


async def test_two_members_of_a_group_share_the_messages_that_they_want(
    apache: ApacheBroker,
) -> None:
    async with connect(f"mq://{apache.namesrv}") as one, connect(f"mq://{apache.namesrv}") as two:
        await one.admin.create_topic("a-consumer", queues=4)
        got: list[bytes] = []

        async def handle(message: Message) -> None:
            got.append(message.body)

        async with (
            one.consumer("a-consumer", group="a-group", tags={"x", "y"}) as first,
            two.consumer("a-consumer", group="a-group", tags={"x", "y"}) as second,
        ):
            async with asyncio.timeout(30):
                while len(first.queues) != 2 or len(second.queues) != 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            workers = [asyncio.create_task(inbox.run(handle)) for inbox in (first, second)]
            for number in range(60):
                await one.send("a-consumer", b"%d" % number, tag="xyz"[number % 3])
            async with asyncio.timeout(30):
                while len(got) < 40:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            await first.close()
            await second.close()
            await asyncio.gather(*workers)
        assert sorted(map(int, got)) == [n for n in range(60) if n % 3 != 2]
        lags = await one.admin.lag("a-group", "a-consumer")
        assert sum(row.lag for row in lags) <= 4  # at most a last z in each queue


async def test_sql_selects_messages(apache: ApacheBroker) -> None:
    async with connect(f"mq://{apache.namesrv}") as mq:
        for number in range(10):
            await mq.send("a-sql", b"%d" % number, properties={"amount": str(number)})
        async with mq.consumer("a-sql", group="a-sql", sql="amount BETWEEN 3 AND 5") as inbox:
            assert sorted(int(row.body) for row in await take(inbox, 3)) == [3, 4, 5]


async def test_orderly_consuming_keeps_the_order(apache: ApacheBroker) -> None:
    seen: dict[str, list[int]] = {}

    async def handle(message: Message) -> None:
        await asyncio.sleep(0.002 * (int(message.body) % 3))
        if int(message.body) == 4 and message.reconsume_times == 0:
            raise RuntimeError("the order must survive this")
        seen.setdefault(message.keys[0], []).append(int(message.body))

    async with connect(f"mq://{apache.namesrv}") as mq:
        for number in range(10):
            for key in ("a", "b"):
                await mq.send("a-orderly", b"%d" % number, key=key, order_key=key)
        async with mq.consumer("a-orderly", group="a-orderly", orderly=True) as inbox:
            worker = asyncio.create_task(inbox.run(handle))
            async with asyncio.timeout(30):
                while sum(map(len, seen.values())) < 20:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            await inbox.close()
            await worker
    assert seen == {"a": list(range(10)), "b": list(range(10))}


async def test_delayed_messages_come_in_time(apache: ApacheBroker) -> None:
    async with connect(f"mq://{apache.namesrv}") as mq:
        await mq.admin.create_topic("a-delay")
        async with mq.consumer("a-delay", group="a-delay") as inbox:
            begun = time.monotonic()
            await mq.send("a-delay", b"by a level", delay=1)
            await mq.send("a-delay", b"by a timer", delay=3.5)
            first, second = await take(inbox, 2)
            assert (first.body, second.body) == (b"by a level", b"by a timer")
            assert 2.0 < time.monotonic() - begun < 10


async def test_retry_is_rounded_up_to_a_level(apache: ApacheBroker) -> None:
    options = ConsumerOptions(commit_interval=0.5)
    async with connect(f"mq://{apache.namesrv}") as mq:
        await mq.send("a-retry", b"again", key="k")
        async with mq.consumer("a-retry", group="a-retry", options=options) as inbox:
            async with asyncio.timeout(30):
                message = await inbox.get()
            begun = time.monotonic()
            await message.retry(delay=3)  # the level above is 5 s
            [again] = await take(inbox, 1, seconds=60)
            assert 4.5 < time.monotonic() - begun < 40
            assert again.reconsume_times == 1 and again.topic == "a-retry" and again.keys == ["k"]


async def test_transactions_commit_roll_back_and_are_checked(apache: ApacheBroker) -> None:
    asked: list[bytes] = []

    async def check(message: Message) -> Verdict:
        asked.append(message.body)
        return Verdict.COMMIT

    async with connect(f"mq://{apache.namesrv}") as mq:
        await mq.admin.create_topic("a-transaction")
        async with (
            mq.transactions("a-transaction", group="a-tx", check=check) as transactions,
            mq.consumer("a-transaction", group="a-transaction") as inbox,
        ):
            async with transactions.begin(b"committed"):
                pass
            assert [row.body for row in await take(inbox, 1)] == [b"committed"]
            with pytest.raises(ZeroDivisionError):
                async with transactions.begin(b"rolled back"):
                    raise ZeroDivisionError
            async with transactions.begin(b"undecided") as half:
                half.verdict = Verdict.UNKNOWN
            # Apache may deliver what it has asked about while the answer was under way twice.
            seen: set[bytes] = set()
            async with asyncio.timeout(60):
                while b"undecided" not in seen:
                    message = await inbox.get()
                    await message.ack()
                    seen.add(message.body)
            assert b"undecided" in asked


async def test_messages_are_found_and_topics_administered(apache: ApacheBroker) -> None:
    async with connect(f"mq://{apache.namesrv}") as mq:
        receipt = await mq.send("a-query", b"find me", key=["k1", "k2"])
        await mq.send("a-query", b"other", key="k3")
        await asyncio.sleep(1.5)  # Apache's index is built after the answer
        for key in ("k1", "k2"):
            assert [row.body async for row in mq.find("a-query", key=key)] == [b"find me"]
        by_id = await mq.message(receipt.message_id, topic="a-query")
        assert by_id.body == b"find me"
        since = time.time() - 60
        assert {row.body async for row in mq.find("a-query", since=since)} == {
            b"find me",
            b"other",
        }
        assert "a-query" in await mq.admin.topics()
        stats = await mq.admin.topic_stats("a-query")
        assert sum(row.max_offset for row in stats) == 2
        async with mq.consumer("a-query", group="a-query") as inbox:
            await take(inbox, 2)
        await mq.admin.reset("a-query", "a-query", "first")
        async with mq.consumer("a-query", group="a-query") as inbox:
            assert {row.body for row in await take(inbox, 2)} == {b"find me", b"other"}
        [broker] = await mq.admin.brokers()
        assert "brokerVersionDesc" in await mq.admin.runtime(broker.address)


async def test_a_request_of_ours_gets_its_reply(apache: ApacheBroker) -> None:
    async with connect(f"mq://{apache.namesrv}") as mq:
        await mq.admin.create_topic("a-questions", queues=1)
        async with mq.consumer("a-questions", group="a-oracle") as inbox:

            async def answer(message: Message) -> None:
                assert await message.reply(b"re: " + message.body)

            running = asyncio.create_task(inbox.run(answer))
            assert (await mq.request("a-questions", b"who?", timeout=20)).body == b"re: who?"
            await inbox.close()
            await running
