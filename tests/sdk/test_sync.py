"""The synchronous facade, from a thread without a loop, against an embedded broker."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import aerobee
import aerobee.sync
from aerobee import AerobeeError, Misuse, Verdict
from aerobee.sync import connect
from aerobee.testing import EmbeddedBroker


async def test_the_blocking_client_does_what_the_other_does(aerobee_broker: EmbeddedBroker) -> None:
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
            with pytest.raises(ZeroDivisionError), transactions.begin(b"never") as half:
                half.rollback()
                raise ZeroDivisionError
            with pytest.raises(ZeroDivisionError), transactions.begin(b"seven"):
                raise ZeroDivisionError  # the check says: commit
            transactions.send(b"never either", lambda half: Verdict.ROLLBACK)
        bodies = set()
        with mq.consumer("orders", group="g") as inbox:
            for message in inbox:
                bodies.add(message.body)
                if len(bodies) == 7:
                    message.ack()
                    break
            assert inbox.get(timeout=0.2) is None
            inbox.pause()
            inbox.resume()
            inbox.seek(receipt.queue, receipt.queue_offset)
            again = inbox.get(timeout=5)
            assert again is not None and again.body == b"one"
            inbox.seek_to("last")
        assert bodies == {b"one", b"two", b"three", b"four", b"five", b"six", b"seven"}
        assert [row.body for row in mq.find("orders", key="k")] == [b"one"]
        assert sum(row.lag for row in mq.admin.lag("g", "orders")) == 0
        [queue] = [row for row in mq.queues("orders") if row == receipt.queue]
        assert mq.pull(queue, mq.min_offset(queue)).messages[0].queue_offset == 0
        with pytest.raises(Misuse):
            mq.send("orders", "text")


def test_errors_come_through() -> None:
    with pytest.raises(AerobeeError, match="no connection"):
        connect("mq://127.0.0.1:1")


@pytest.mark.parametrize(
    ("name", "only_async"),
    [
        ("Client", {"open", "telemetry_default"}),
        ("Producer", set()),
        ("BufferedProducer", set()),
        ("TransactionProducer", set()),
        ("Message", set()),
        ("Admin", set()),
        ("Consumer", set()),
    ],
)
def test_the_facade_has_every_call(name: str, only_async: set[str]) -> None:
    public = {call for call in dir(getattr(aerobee, name)) if not call.startswith("_")}
    facade = {call for call in dir(getattr(aerobee.sync, name)) if not call.startswith("_")}
    assert public - facade - only_async == set()


TYPED = """
from typing import assert_type
from aerobee import Receipt
from aerobee.sync import Message, connect

with connect("mq://localhost") as mq:
    assert_type(mq.send("orders", b"x", tag="t", delay=1.0), Receipt)
    assert_type(mq.producer("orders").send_batch([b"x"]), list[Receipt])
    assert_type(mq.admin.topics(system=True), list[str])
    with mq.consumer("orders", group="g") as inbox:
        for message in inbox:
            assert_type(message, Message)
            assert_type(message.keys, list[str])
            assert_type(message.reply(b"x"), bool)
    mq.send("orders", b"x", tagg="t")  # type: ignore[call-arg]
    mq.admin.create_topic("orders", queues="8")  # type: ignore[arg-type]
    message.bodie  # type: ignore[attr-defined]
"""


def test_the_facade_is_typed_like_the_client(tmp_path: Path) -> None:
    """With warn_unused_ignores a missing expected error is an error."""
    program = tmp_path / "typed.py"
    program.write_text(TYPED)
    options = ["--strict", "--cache-dir", str(tmp_path / "cache"), "--follow-imports", "silent"]
    mypy = subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(program)], capture_output=True, text=True
    )
    assert mypy.returncode == 0, mypy.stdout


async def test_a_handler_runs_in_threads_and_blocks_there(aerobee_broker: EmbeddedBroker) -> None:
    def work(url: str) -> list[bytes]:
        seen = []
        with connect(url) as mq:
            mq.send("orders", b"ask", tag="a")
            with mq.consumer("orders", group="g") as inbox:

                def handle(message: aerobee.sync.Message) -> None:
                    message.ack()
                    assert message.finished
                    seen.append(message.body)
                    if len(seen) == 1:
                        mq.send("orders", b"more")
                    else:
                        threading.Thread(target=inbox.close).start()

                inbox.run(handle, concurrency=2)
        return seen

    assert await asyncio.to_thread(work, aerobee_broker.url) == [b"ask", b"more"]
