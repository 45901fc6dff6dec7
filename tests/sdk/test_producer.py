"""Producers against a real broker in the test's process."""

import socket
from collections import Counter
from typing import Any

import pytest
from sdk.reading import stored
from waiting import until

from aerobee import (
    AerobeeError,
    ConnectFailed,
    Durability,
    MessageQueue,
    Misuse,
    NoRoute,
    SendsFailed,
    TopicNotFound,
    Unconfirmed,
    connect,
)
from aerobee.testing import EmbeddedBroker


async def test_a_receipt_tells_where_the_message_is(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        receipt = await mq.send("orders", b"{}", tag="paid", key="o-42", properties={"n": "1"})
        assert receipt.ok
        assert receipt.queue.topic == "orders"
        assert receipt.queue_offset == 0
        by_unique_id = await mq.message(receipt.message_id, topic="orders")
        by_offset_id = await mq.message(receipt.offset_message_id)
        for message in (by_unique_id, by_offset_id):
            assert message.body == b"{}"
            assert message.tag == "paid"
            assert message.keys == ["o-42"]
            assert message.properties["n"] == "1"
            assert message.queue == receipt.queue
            assert message.message_id == receipt.message_id


async def test_after_the_first_answer_our_brokers_are_asked_in_messagepack(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"x")
        connection = mq._core.remoting.known(aerobee_broker.address)
        assert connection is not None and connection.is_aerobee


async def test_connect_can_be_awaited(aerobee_broker: EmbeddedBroker) -> None:
    mq = await connect(aerobee_broker.url)
    try:
        assert (await mq.send("orders", b"x")).queue_offset == 0
    finally:
        await mq.close()


async def test_topics_that_are_sent_to_in_turn_are_spread_alike(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        counts: Counter[MessageQueue] = Counter()
        for topic in ("orders", "refunds"):
            await mq.admin.create_topic(topic, queues=4)
        for _ in range(8):
            for topic in ("orders", "refunds"):
                counts[(await mq.send(topic, b"x")).queue] += 1
        assert len(counts) == 8 and set(counts.values()) == {2}


async def test_clients_do_not_all_begin_at_the_same_queue(aerobee_broker: EmbeddedBroker) -> None:
    begun = set()
    for _ in range(24):  # all of them at one of eight queues by chance: once in 10^21
        async with aerobee_broker.connect() as mq:
            await mq.admin.create_topic("orders", queues=8)
            begun.add((await mq.send("orders", b"x")).queue.queue_id)
    assert len(begun) > 1


async def test_plain_messages_go_round_the_queues(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        queues = {(await mq.send("orders", b"x")).queue for _ in range(8)}
        assert len(queues) == 4


async def test_messages_with_one_order_key_share_a_queue_in_order(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        receipts = [await mq.send("orders", b"%d" % n, order_key="customer-7") for n in range(5)]
        assert len({receipt.queue for receipt in receipts}) == 1
        assert [receipt.queue_offset for receipt in receipts] == [0, 1, 2, 3, 4]


async def test_a_batch_is_stored_in_one_queue_and_each_has_its_receipt(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        receipts = await mq.producer("orders").send_batch([b"a", b"b", b"c"], tag="t")
        assert len({receipt.queue for receipt in receipts}) == 1
        assert [receipt.queue_offset for receipt in receipts] == [0, 1, 2]
        for receipt, body in zip(receipts, (b"a", b"b", b"c"), strict=True):
            assert (await mq.message(receipt.offset_message_id)).body == body
            assert (await mq.message(receipt.message_id, topic="orders")).tag == "t"


async def test_a_oneway_message_arrives(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        message_id = await mq.send_oneway("orders", b"quick")

        async def is_there() -> bool:
            return "orders" in await mq.admin.topics() and len(await stored(mq, "orders")) == 1

        await until(is_there)
        assert [row.message_id for row in await stored(mq, "orders")] == [message_id]


async def test_a_large_body_is_compressed_on_its_way_and_comes_out_whole(
    aerobee_broker: EmbeddedBroker,
) -> None:
    body = b"all work and no play " * 1000
    async with aerobee_broker.connect() as mq:
        receipt = await mq.send("orders", body)
        message = await mq.message(receipt.offset_message_id)
        assert message.body == body
        assert len(message.stored.body) < len(body) / 10


async def test_durable_false_does_not_wait_for_the_disk() -> None:
    async with EmbeddedBroker(flushDiskType="SYNC_FLUSH") as broker, broker.connect() as mq:
        receipt = await mq.send("orders", b"x", durable=False)
        assert receipt.durability is Durability.CACHED
        assert (await mq.send("orders", b"y")).durability is Durability.FLUSHED


async def test_a_buffered_producer_stores_everything_in_batches(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        async with mq.producer("orders", linger=0.005) as orders:
            for number in range(5000):
                await orders.send(b"%d" % number, key=f"k{number}")
        found = await stored(mq, "orders")
        assert sorted(int(message.body) for message in found) == list(range(5000))
        assert len({message.message_id for message in found}) == 5000


async def test_a_buffered_message_has_a_receipt_on_request(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq, mq.producer("orders", linger=0.001) as orders:
        deliveries = [await orders.send(b"%d" % number) for number in range(10)]
        receipts = [await delivery.receipt() for delivery in deliveries]
        for number, receipt in enumerate(receipts):
            assert (await mq.message(receipt.offset_message_id)).body == b"%d" % number


async def test_buffered_messages_with_order_keys_stay_in_order(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        async with mq.producer("orders", linger=0.001) as orders:
            for number in range(2000):
                await orders.send(b"%d" % number, order_key=f"c{number % 7}")
        by_key: dict[str, list[int]] = {}
        queues: dict[str, set[MessageQueue]] = {}
        for message in await stored(mq, "orders"):
            key = message.properties["__SHARDINGKEY"]
            by_key.setdefault(key, []).append(int(message.body))
            queues.setdefault(key, set()).add(message.queue)
        assert sum(map(len, by_key.values())) == 2000
        assert all(numbers == sorted(numbers) for numbers in by_key.values())
        assert all(len(used) == 1 for used in queues.values())


async def test_a_full_buffer_makes_send_wait(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        most = 0
        async with mq.producer("orders", linger=0.001, buffer_bytes=50_000) as orders:
            for _ in range(500):
                await orders.send(b"x" * 1000)
                most = max(most, orders.buffered)
        assert most < 60_000
        assert len(await stored(mq, "orders")) == 500


async def test_a_full_buffer_is_sent_without_lingering(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        async with mq.producer("orders", linger=3600, buffer_bytes=1000) as orders:
            for number in range(20):
                await orders.send(b"x" * 400, order_key=str(number % 3))
        assert len(await stored(mq, "orders")) == 20


async def test_failures_of_buffered_messages_are_raised_on_leaving_the_block() -> None:
    async with (
        EmbeddedBroker(autoCreateTopicEnable="false") as broker,
        broker.connect(timeout=0.3) as mq,
    ):
        await mq.admin.create_topic("orders")
        with pytest.raises(SendsFailed) as caught:
            async with mq.producer("orders", linger=0.001) as orders:
                await orders.send(b"one")
                await orders.flush()
                await mq.admin.delete_topic("orders")
                await orders.send(b"two")
        [(body, error)] = caught.value.failures
        assert body == b"two"
        assert isinstance(error, TopicNotFound | NoRoute)


async def test_failures_of_buffered_messages_are_logged_when_the_block_fails_otherwise(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        EmbeddedBroker(autoCreateTopicEnable="false") as broker,
        broker.connect(timeout=0.3) as mq,
    ):
        await mq.admin.create_topic("orders")
        with pytest.raises(ZeroDivisionError):
            async with mq.producer("orders", linger=0.001) as orders:
                await mq.admin.delete_topic("orders")
                await orders.send(b"one")
                raise ZeroDivisionError
    [said] = [row.getMessage() for row in caplog.records if row.name == "aerobee.producer"]
    assert said.startswith("1 buffered message(s) were not delivered")
    assert said.endswith("the block of the producer was left by ZeroDivisionError()")


async def test_an_unknown_topic_without_auto_creation_is_a_clear_error() -> None:
    async with (
        EmbeddedBroker(autoCreateTopicEnable="false") as broker,
        broker.connect(timeout=0.5) as mq,
    ):
        with pytest.raises(NoRoute, match="aerobee topic create nowhere"):
            await mq.send("nowhere", b"x")


async def test_a_send_without_an_answer_is_unconfirmed(aerobee_broker: EmbeddedBroker) -> None:
    """The request is sent and no answer arrives: its outcome is unknown."""
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"first")
        connection = mq._core.remoting.known(aerobee_broker.address)
        assert connection is not None
        connection._transport.pause_reading()  # the answer never gets here
        with pytest.raises(Unconfirmed) as caught:
            await mq.send("orders", b"lost answer", timeout=0.2)
        async with aerobee_broker.connect() as other:
            assert b"lost answer" in [row.body for row in await stored(other, "orders")]
        assert caught.value.topic == "orders"
        assert caught.value.retriable


async def test_nothing_listening_is_a_clear_error() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(ConnectFailed, match=f"no connection to 127.0.0.1:{port}.*running there"):
        await connect(f"mq://127.0.0.1:{port}")


async def test_a_second_name_server_is_asked_when_the_first_is_dead(
    aerobee_broker: EmbeddedBroker,
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{probe.getsockname()[1]}"
    async with connect(f"mq://{dead},{aerobee_broker.namesrv}") as mq:
        assert (await mq.send("orders", b"x")).ok


async def test_sends_continue_after_the_broker_was_restarted(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect(timeout=5) as mq:
        await mq.send("orders", b"before")
        await aerobee_broker.restart()
        await mq.send("orders", b"after")
        assert {message.body for message in await stored(mq, "orders")} == {
            b"before",
            b"after",
        }


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"body": "text"}, "encode the text"),
        ({"body": b"x" * (5 << 20)}, "at most"),
        ({"tag": ""}, "tag"),
        ({"key": "a b"}, "blank"),
        ({"properties": {"KEYS": "x"}}, "is reserved"),
        ({"properties": {"a": "b\x01c"}}, "x01"),
        ({"delay": 1, "deliver_at": 5.0}, "not both"),
        ({"delay": -1}, "0 or more"),
        ({"delay": float("nan")}, "0 or more"),
        ({"delay": float("inf")}, "0 or more"),
        ({"deliver_at": float("nan")}, "time"),
        ({"deliver_at": float("inf")}, "time"),
    ],
)
async def test_what_can_never_be_sent_is_refused_at_once(
    aerobee_broker: EmbeddedBroker, options: dict[str, Any], text: str
) -> None:
    async with aerobee_broker.connect() as mq:
        with pytest.raises(Misuse, match=text):
            await mq.send("orders", **{"body": b"x", **options})


async def test_a_name_that_the_broker_refuses_is_an_error_with_its_words(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        with pytest.raises(AerobeeError, match=r"(?i)topic") as caught:
            await mq.send("no/such*name", b"x")
        assert not caught.value.retriable
