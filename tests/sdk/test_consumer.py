"""Consumers against a real broker in the test's process."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sdk.reading import every_queue_polls, fill, nothing_comes, take
from waiting import until

from aerobee import ConsumerOptions, Message, Misuse
from aerobee.testing import EmbeddedBroker

QUICK = ConsumerOptions(commit_interval=0.1)


async def test_a_group_gets_every_message_once(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        await fill(mq, "orders", 50)
        async with mq.consumer("orders", group="billing") as inbox:
            found = await take(inbox, 50)
            assert sorted(int(message.body) for message in found) == list(range(50))
            await nothing_comes(inbox)


async def test_a_message_sent_later_arrives_by_the_long_poll_at_once(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.admin.create_topic("orders")
        async with mq.consumer("orders", group="billing") as inbox:
            await every_queue_polls(aerobee_broker, inbox)
            await mq.send("orders", b"now")
            assert (await take(inbox, 1))[0].body == b"now"


async def test_a_topic_that_is_born_later_is_found(aerobee_broker: EmbeddedBroker) -> None:
    async with (
        aerobee_broker.connect() as mq,
        mq.consumer("orders", group="billing", start="last") as inbox,
    ):
        await mq.send("orders", b"first ever")
        assert (await take(inbox, 1))[0].body == b"first ever"


async def test_finished_offsets_survive_the_consumer(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        await fill(mq, "orders", 10, order_key="one queue")
        async with mq.consumer("orders", group="billing") as inbox:
            await take(inbox, 4)
        async with mq.consumer("orders", group="billing") as inbox:
            assert [int(row.body) for row in await take(inbox, 6)] == [4, 5, 6, 7, 8, 9]


async def test_asking_for_the_next_message_acks_the_one_before(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        await fill(mq, "orders", 5, order_key="one queue")
        async with mq.consumer("orders", group="billing") as inbox:
            async for message in inbox:
                if int(message.body) == 2:
                    break  # 0 and 1 are acked, 2 is not
        async with mq.consumer("orders", group="billing") as inbox:
            assert [int(row.body) for row in await take(inbox, 3)] == [2, 3, 4]


async def test_an_exception_in_the_loop_does_not_ack(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        await fill(mq, "orders", 2, order_key="one queue")
        with pytest.raises(ZeroDivisionError):
            async with mq.consumer("orders", group="billing") as inbox:
                async for _ in inbox:
                    raise ZeroDivisionError
        async with mq.consumer("orders", group="billing") as inbox:
            assert [int(row.body) for row in await take(inbox, 2)] == [0, 1]


async def test_messages_acked_out_of_order_do_not_skip_the_unfinished(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        await fill(mq, "orders", 4, order_key="one queue")
        async with mq.consumer("orders", group="billing") as inbox:
            messages = [await inbox.get() for _ in range(4)]
            await messages[3].ack()
            await messages[1].ack()
            await messages[0].ack()
        async with mq.consumer("orders", group="billing") as inbox:
            assert [int(row.body) for row in await take(inbox, 2)] == [2, 3]


async def test_iterating_ends_when_the_consumer_is_closed(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        await fill(mq, "orders", 1)
        seen = []
        async with mq.consumer("orders", group="billing") as inbox:

            async def read() -> None:
                async for message in inbox:
                    seen.append(message.body)

            reader = asyncio.create_task(read())
            await until(lambda: seen)
            await inbox.close()
            async with asyncio.timeout(5):
                await reader
        assert seen == [b"0"]


async def test_a_group_starts_at_the_first_the_last_or_a_time(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        await fill(mq, "orders", 2)
        await asyncio.sleep(0.05)  # store times are of a millisecond
        moment = datetime.now(UTC)
        await mq.send("orders", b"2")
        async with mq.consumer("orders", group="a", start="first") as inbox:
            assert {int(row.body) for row in await take(inbox, 3)} == {0, 1, 2}
        async with mq.consumer("orders", group="b", start=moment) as inbox:
            assert [int(row.body) for row in await take(inbox, 1)] == [2]
        async with mq.consumer("orders", group="c", start="last") as inbox:
            await mq.send("orders", b"3")
            assert [int(row.body) for row in await take(inbox, 1)] == [3]


async def test_retry_with_a_delay_is_exact(aerobee_broker: EmbeddedBroker) -> None:
    async with (
        aerobee_broker.connect() as mq,
        mq.consumer("orders", group="billing", options=QUICK) as inbox,
    ):
        receipt = await mq.send("orders", b"x", key="k")
        message = await inbox.get()
        await message.retry(delay=3600)
        await aerobee_broker.advance(minutes=59)
        await nothing_comes(inbox)
        await aerobee_broker.advance(minutes=1, seconds=1)
        again = (await take(inbox, 1))[0]
        assert again.reconsume_times == 1
        assert again.topic == "orders"
        assert again.message_id == receipt.message_id
        assert again.keys == ["k"]


async def test_retries_without_a_delay_grow_and_end_among_the_dead_letters(
    aerobee_broker: EmbeddedBroker,
) -> None:
    options = ConsumerOptions(max_retries=2, commit_interval=0.1)
    async with aerobee_broker.connect() as mq:
        async with mq.consumer("orders", group="billing", options=options) as inbox:
            await mq.send("orders", b"poison")
            for attempt in range(3):
                async with asyncio.timeout(10):
                    message = await inbox.get()
                assert message.reconsume_times == attempt
                await message.retry()
                await aerobee_broker.advance(minutes=5)
            await nothing_comes(inbox)
        dead = [row async for row in mq.find("%DLQ%billing")]
        assert [row.body for row in dead] == [b"poison"]
        assert dead[0].topic == "orders"


async def test_the_callback_form_acks_retries_and_limits_concurrency(
    aerobee_broker: EmbeddedBroker,
) -> None:
    running = most = 0
    done: list[bytes] = []
    failed_once: set[bytes] = set()

    async def handle(message: Message) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1
        if int(message.body) % 10 == 3 and message.body not in failed_once:
            failed_once.add(message.body)
            raise RuntimeError("the first time fails")
        done.append(message.body)

    async with aerobee_broker.connect() as mq:
        await fill(mq, "orders", 40)
        async with mq.consumer("orders", group="billing") as inbox:
            worker = asyncio.create_task(inbox.run(handle, concurrency=4))
            async with asyncio.timeout(20):
                while len(done) < 40:
                    await aerobee_broker.advance(seconds=11)
                    await asyncio.sleep(0.02)
            await inbox.close()
            await worker
    assert sorted(map(int, done)) == list(range(40))
    assert most == 4


async def test_two_members_share_the_queues_and_one_takes_over(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as one, aerobee_broker.connect() as two:
        await one.admin.create_topic("orders", queues=4)
        async with one.consumer("orders", group="billing") as first:
            async with two.consumer("orders", group="billing") as second:
                await until(lambda: len(first.queues) == len(second.queues) == 2)
                assert set(first.queues).isdisjoint(second.queues)
                await fill(one, "orders", 20)
                halves = await asyncio.gather(take(first, 10), take(second, 10))
                bodies = sorted(int(row.body) for half in halves for row in half)
                assert bodies == list(range(20))
            await until(lambda: len(first.queues) == 4)
            await fill(one, "orders", 8)
            await take(first, 8)


async def test_orderly_consuming_keeps_the_order_of_each_key(
    aerobee_broker: EmbeddedBroker,
) -> None:
    seen: dict[str, list[int]] = {}

    async def handle(message: Message) -> None:
        key = message.keys[0]
        await asyncio.sleep(0.001 * (int(message.body) % 3))
        if int(message.body) == 7 and message.reconsume_times == 0:
            raise RuntimeError("order must survive this")
        seen.setdefault(key, []).append(int(message.body))

    async with aerobee_broker.connect() as mq:
        for number in range(20):
            for key in ("a", "b", "c"):
                await mq.send("orders", b"%d" % number, key=key, order_key=key)
        async with mq.consumer("orders", group="billing", orderly=True) as inbox:
            worker = asyncio.create_task(inbox.run(handle, concurrency=8))
            await until(lambda: sum(map(len, seen.values())) == 60, 20)
            await inbox.close()
            await worker
    assert seen == {key: list(range(20)) for key in "abc"}


async def test_an_orderly_queue_is_read_by_the_holder_of_its_lock_only(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as one, aerobee_broker.connect() as two:
        await one.admin.create_topic("orders", queues=1)
        async with one.consumer("orders", group="billing", orderly=True) as first:
            async with two.consumer("orders", group="billing", orderly=True) as second:
                await fill(one, "orders", 3)
                owner, other = (first, second) if first.queues else (second, first)
                assert not other.queues
                assert [int(row.body) for row in await take(owner, 3)] == [0, 1, 2]
            await until(lambda: first.queues)
            await fill(one, "orders", 1)
            assert len(await take(first, 1)) == 1


async def test_every_broadcast_reader_gets_every_message(
    aerobee_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    async with aerobee_broker.connect() as one, aerobee_broker.connect() as two:
        await fill(one, "news", 3)  # sent before the first start: not delivered
        paths = [ConsumerOptions(state_path=tmp_path / f"{name}.json") for name in "ab"]
        async with (
            one.consumer("news", group="readers", broadcast=True, options=paths[0]) as first,
            two.consumer("news", group="readers", broadcast=True, options=paths[1]) as second,
        ):
            await one.send("news", b"extra")
            assert [row.body for row in await take(first, 1)] == [b"extra"]
            assert [row.body for row in await take(second, 1)] == [b"extra"]
            await one.send("news", b"more")
            message = await first.get()
            with pytest.raises(Misuse, match="not redelivered"):
                await message.retry()
        await one.send("news", b"while away")
        async with one.consumer("news", group="readers", broadcast=True, options=paths[0]) as first:
            found = await take(first, 2)  # the unacked one is redelivered, too
            assert {row.body for row in found} == {b"more", b"while away"}


async def test_a_consumer_pauses_resumes_and_seeks(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        await fill(mq, "orders", 5, order_key="one queue")
        async with mq.consumer("orders", group="billing") as inbox:
            found = await take(inbox, 5)
            queue = found[0].queue
            inbox.seek(queue, 3)
            assert [int(row.body) for row in await take(inbox, 2)] == [3, 4]
            await inbox.seek_to("first")
            assert [int(row.body) for row in await take(inbox, 5)] == [0, 1, 2, 3, 4]
            inbox.pause()
            await asyncio.sleep(0.05)
            inbox.seek(queue, 4)
            await nothing_comes(inbox)
            inbox.resume()
            assert [int(row.body) for row in await take(inbox, 1)] == [4]


async def test_a_queue_can_be_pulled_by_hand(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        await fill(mq, "orders", 5, order_key="one queue")
        [queue] = [row for row in await mq.queues("orders") if await mq.max_offset(row)]
        pulled = await mq.pull(queue, 1, count=2)
        assert [message.body for message in pulled.messages] == [b"1", b"2"]
        assert (pulled.next_offset, pulled.min_offset, pulled.max_offset) == (3, 0, 5)


async def test_a_slow_consumer_does_not_fill_the_memory(aerobee_broker: EmbeddedBroker) -> None:
    options = ConsumerOptions(prefetch_count=100, pull_count=10)
    async with aerobee_broker.connect() as mq:
        async with mq.producer("orders", linger=0.001) as orders:
            for number in range(2000):
                await orders.send(b"%d" % number)
        async with mq.consumer("orders", group="billing", options=options) as inbox:
            mine = inbox._member.assignment
            await until(lambda: sum(row.unfinished for row in mine.process_queues) >= 100)
            await asyncio.sleep(0.1)  # nothing more may arrive
            assert sum(row.unfinished for row in mine.process_queues) <= 100 + 10 * 5
            assert len(await take(inbox, 2000)) == 2000


@pytest.mark.parametrize(
    "options",
    [{"prefetch_count": 0}, {"pull_count": -1}, {"commit_interval": 0.0}, {"backoff": ()}],
)
def test_options_by_which_a_consumer_would_hang_are_refused_by_name(
    options: dict[str, Any],
) -> None:
    (name,) = options
    with pytest.raises(Misuse, match=name):
        ConsumerOptions(**options)


async def test_prefetch_is_bounded_in_bytes_too(aerobee_broker: EmbeddedBroker) -> None:
    options = ConsumerOptions(prefetch_bytes=100_000, pull_count=5)
    async with aerobee_broker.connect() as mq:
        async with mq.producer("orders", linger=0.001) as orders:
            for _ in range(400):
                await orders.send(b"x" * 4000)
        async with mq.consumer("orders", group="billing", options=options) as inbox:
            mine = inbox._member.assignment
            await until(lambda: sum(row.unfinished_bytes for row in mine.process_queues) >= 100_000)
            await asyncio.sleep(0.1)  # nothing more may arrive
            assert (
                sum(row.unfinished_bytes for row in mine.process_queues) <= 100_000 + 5 * 5 * 4500
            )
            assert len(await take(inbox, 400)) == 400


async def test_consuming_continues_after_the_broker_was_restarted(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        await fill(mq, "orders", 3)
        async with mq.consumer("orders", group="billing") as inbox:
            await take(inbox, 3)
            await inbox.commit()
            await aerobee_broker.restart()
            await mq.send("orders", b"after", timeout=10)
            assert [row.body for row in await take(inbox, 1, seconds=30)] == [b"after"]


async def test_one_group_reads_several_topics(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"o")
        await mq.send("returns", b"r")
        async with mq.consumer(["orders", "returns"], group="billing") as inbox:
            found = {(row.topic, row.body) for row in await take(inbox, 2)}
        assert found == {("orders", b"o"), ("returns", b"r")}


async def test_the_broker_can_reset_an_online_group() -> None:
    async with EmbeddedBroker() as broker, broker.connect() as mq:
        await fill(mq, "orders", 3, order_key="one queue")
        async with mq.consumer("orders", group="billing", options=QUICK) as inbox:
            await take(inbox, 3)
            await inbox.commit()
            await mq.admin.reset("billing", "orders", "first")
            assert sorted(int(row.body) for row in await take(inbox, 3, seconds=30)) == [0, 1, 2]
