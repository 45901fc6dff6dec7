"""The synchronous facade, from a thread without a loop, against an embedded broker."""

import asyncio

import pytest

import aerobee
import aerobee.sync
from aerobee import AerobeeError, Misuse, Verdict
from aerobee.sync import connect


async def test_the_whole_facade(aerobee_broker):
    await asyncio.to_thread(use_all, aerobee_broker.url)


def use_all(url: str) -> None:
    with connect(url) as mq:
        receipt = mq.send("orders", b"one", tag="t", key="k")
        assert mq.message(receipt.message_id, topic="orders").body == b"one"
        with mq.producer("orders") as producer:
            assert producer.send(b"two").ok
            assert len(producer.send_batch([b"three", b"four"])) == 2
        with mq.buffered_producer("orders") as buffered:
            delivery = buffered.send(b"five")
            assert buffered.receipt(delivery).ok
        with mq.transactions("orders", group="p", check=lambda _: Verdict.COMMIT) as transactions:
            with transactions.begin(b"six") as half:
                assert half.receipt.message_id
            with pytest.raises(ZeroDivisionError), transactions.begin(b"never"):
                raise ZeroDivisionError
            transactions.send(b"never either", lambda half: Verdict.ROLLBACK)
        bodies = set()
        with mq.consumer("orders", group="g") as inbox:
            for message in inbox:
                bodies.add(message.body)
                if len(bodies) == 6:
                    message.ack()
                    break
            assert inbox.get(timeout=0.2) is None
            inbox.pause()
            inbox.resume()
            inbox.seek(receipt.queue, receipt.queue_offset)
            again = inbox.get(timeout=5)
            assert again is not None and again.body == b"one"
            inbox.seek_to("last")
        assert bodies == {b"one", b"two", b"three", b"four", b"five", b"six"}
        assert [row.body for row in mq.find("orders", key="k")] == [b"one"]
        assert sum(row.lag for row in mq.admin.lag("g", "orders")) == 0
        [queue] = [row for row in mq.queues("orders") if row == receipt.queue]
        assert mq.pull(queue, mq.min_offset(queue)).messages[0].queue_offset == 0
        with pytest.raises(Misuse):
            mq.send("orders", "text")


def test_errors_come_through():
    with pytest.raises(AerobeeError, match="no connection"):
        connect("mq://127.0.0.1:1")


@pytest.mark.parametrize(
    ("name", "only_async"),
    [
        ("Client", {"open"}),
        ("Producer", set()),
        ("BufferedProducer", set()),
        ("TransactionProducer", {"on_check"}),
        (
            "Consumer",
            # `run` is a loop of threads here; the rest is for the parts of the SDK itself
            {"run", "get_ready", "offer", "make_ready", "on_finished", "forget", "retry", "move"}
            | {"subscription", "request_rebalance", "process_queues", "unlock"},
        ),
    ],
)
def test_the_facade_has_every_call(name, only_async):
    public = {call for call in dir(getattr(aerobee, name)) if not call.startswith("_")}
    facade = {call for call in dir(getattr(aerobee.sync, name)) if not call.startswith("_")}
    assert public - facade - only_async == set()
