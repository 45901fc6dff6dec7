"""A SIGKILL of the broker while delays, retries and transactions are pending: none is lost."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from peers.java_client import ClientError, JavaClient
from peers.tools import wait_for
from peers.under_test import Broker

pytestmark = pytest.mark.apache

EARLY_MS = 150
REFRESH_MS = 1000  # clients look for routes again this often, so that they are back quickly


def test_what_is_pending_at_a_sigkill_is_delivered_at_its_time(
    own_broker: Callable[..., Broker], java: JavaClient, name: str
) -> None:
    """And clients that were running resume without help."""
    broker = own_broker()
    quick: dict[str, Any] = {"poll": REFRESH_MS, "heartbeat": REFRESH_MS}
    producer = java.producer(broker.namesrv, f"p-{name}", **quick)
    deals = java.producer(broker.namesrv, f"t-{name}", transactions=True, **quick)
    java.send(producer, name, 1, prefix="ready", tags="ready")
    picky: dict[str, Any] = {"group": f"picky-{name}", "tags": "bad", "fails": 1, "level": 4}
    refusing = java.consumer(broker.namesrv, f"x-{name}", topic=name, **picky, **quick)
    java.send(producer, name, 3, prefix="retry", tags="bad")
    java.wait_messages(refusing, 3)

    java.send(producer, name, 3, prefix="level", delay=4)
    java.send(producer, name, 3, prefix="timer", prop__TIMER_DELAY_MS="7000")
    options: dict[str, Any] = {"name": deals, "topic": name, "n": 3, "local": "unknown"}
    java.call("transaction", prefix="deal", check="commit", **options)
    java.call("transaction", prefix="off", check="rollback", **options)
    time.sleep(0.3)  # the refused messages have been sent back
    broker.kill()
    with pytest.raises(ClientError):
        java.send(producer, name, 1, prefix="nobody-there")
    broker.start()

    consumer = java.consumer(broker.namesrv, f"c-{name}", f"g-{name}", name, **quick)
    wait_for(lambda: sends(java, producer, name), timeout=30, what="the producer sends again")
    kinds = ("level", "timer", "deal", "retry")
    wanted = Counter([f"{kind}-{n}" for kind in kinds for n in range(3)] + ["ready-0", "after-0"])
    wait_for(
        lambda: wanted.keys() <= {m["body"] for m in java.messages(consumer)},
        timeout=40,
        what=f"{sorted(wanted)} are delivered",
    )
    retried = java.wait_messages(refusing, 6, timeout=45)  # 4.9 sees a dead pull only after 30 s
    time.sleep(2)
    java.stop(producer, deals, consumer, refusing)

    assert Counter(message["body"] for message in java.messages(consumer)) == wanted
    for message in java.messages(consumer):
        due = {"level": 6000, "timer": 7000}.get(message["body"].split("-")[0], 0)
        assert message["at"] - message["born"] >= due - EARLY_MS, message
    again = [message for message in retried if message["times"] == 1]
    assert Counter(message["body"] for message in again) == Counter(f"retry-{n}" for n in range(3))
    first = {message["body"]: message["at"] for message in retried if message["times"] == 0}
    assert all(message["at"] - first[message["body"]] >= 6000 - EARLY_MS for message in again)


def sends(java: JavaClient, producer: str, topic: str) -> bool:
    """Whether a send works; right after the start a client may still hold a dead connection."""
    with suppress(ClientError):
        return bool(java.send(producer, topic, 1, prefix="after"))
    return False


def test_every_answered_send_is_there_after_a_sigkill(
    own_broker: Callable[..., Broker], java: JavaClient, name: str
) -> None:
    broker = own_broker()
    producer = java.producer(broker.namesrv, f"p-{name}", retries=0, poll=REFRESH_MS)
    sent = java.send(producer, name, 10)
    sending = java.start("send", name=producer, topic=name, n=20_000, first=10, mode="async")
    time.sleep(0.5)
    broker.kill()
    with suppress(ClientError):  # a route that went away makes the call itself fail
        sent += java.result(sending, timeout=60)["sent"]
    answered = {n for n, result in enumerate(sent) if result["status"] == "SEND_OK"}
    broker.start()
    consumer = java.consumer(broker.namesrv, f"c-{name}", f"g-{name}", name, poll=REFRESH_MS)
    wanted = {f"m-{n}" for n in answered}
    deadline = time.monotonic() + 60
    got: set[str] = set()
    while not wanted <= got and time.monotonic() < deadline:
        time.sleep(0.2)
        got = {message["body"] for message in java.messages(consumer)}
    java.stop(producer, consumer)
    assert len(answered) >= 10
    assert wanted <= got, f"{len(wanted - got)} answered messages are gone"
