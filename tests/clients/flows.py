"""Flows shared by clients in several languages."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from clients.counted import bodies
from peers.remote import Event, RemoteClient
from peers.tools import wait_for
from peers.under_test import Broker


def messages_arrive_once(client: RemoteClient, broker: Broker, name: str, mode: str) -> None:
    """What is sent in this mode is delivered once, with tags and keys."""
    producer = client.producer(broker.namesrv, f"p-{name}")
    (first,) = client.send(producer, name, 1, prefix="first")
    assert (first["status"], len(first["offsetId"])) == ("SEND_OK", 32)
    sent = client.send(producer, name, 30, mode=mode, tags="red,blue", keys="key")
    if mode != "oneway":
        assert {result["status"] for result in sent} == {"SEND_OK"}
    consumer = client.consumer(broker.namesrv, f"c-{name}", f"g-{name}", name)
    messages = client.wait_messages(consumer, 31)
    client.stop(producer, consumer)
    assert bodies(messages) == Counter([*(f"m-{n}" for n in range(30)), "first-0"])
    assert Counter(message["tag"] for message in messages) == {"red": 15, "blue": 15, "": 1}
    assert {message["keys"] for message in messages} >= {"key-0", "key-29"}


def batch_is_single_messages(client: RemoteClient, broker: Broker, name: str) -> None:
    """A batch is stored as single messages, in its order."""
    producer = client.producer(broker.namesrv, f"p-{name}")
    (result,) = client.send(producer, name, 10, mode="batch")
    assert result["status"] == "SEND_OK"
    consumer = client.consumer(broker.namesrv, f"c-{name}", f"g-{name}", name)
    messages = client.wait_messages(consumer, 10)
    client.stop(producer, consumer)
    assert [m["body"] for m in sorted(messages, key=lambda m: int(m["offset"]))] == [
        f"m-{n}" for n in range(10)
    ]


def two_share_the_queues(client: RemoteClient, broker: Broker, name: str) -> list[Event]:
    """Two consumers share the queues, and a third resumes where they stopped."""
    producer = client.producer(broker.namesrv, f"p-{name}")
    client.send(producer, name, 4, prefix="first")
    one = client.consumer(broker.namesrv, f"one-{name}", f"g-{name}", name)
    client.wait_messages(one, 4)
    two = client.consumer(broker.namesrv, f"two-{name}", f"g-{name}", name)
    time.sleep(3)
    client.send(producer, name, 40)

    def got() -> Counter[str]:
        both = client.messages(one) + client.messages(two)
        return bodies([m for m in both if m["body"].startswith("m-")])

    wait_for(lambda: len(got()) == 40, timeout=30, what="both consumers together got all")
    assert client.messages(two), "the second consumer got no queue"
    client.stop(one, two)
    client.send(producer, name, 8, prefix="last")
    three = client.consumer(broker.namesrv, f"three-{name}", f"g-{name}", name)
    messages = client.wait_messages(three, 8)
    client.stop(producer, three)
    assert {m["body"] for m in messages if m["body"].startswith("last")} == {
        f"last-{n}" for n in range(8)
    }
    return messages


def order_of_queues_is_kept(client: RemoteClient, broker: Broker, name: str) -> None:
    """An orderly consumer gets each queue in order."""
    producer = client.producer(broker.namesrv, f"p-{name}")
    sent = client.send(producer, name, 20)
    consumer = client.consumer(broker.namesrv, f"c-{name}", f"g-{name}", name, orderly=True)
    messages = client.wait_messages(consumer, 20)
    client.stop(producer, consumer)
    for queue in range(4):
        wanted = [f"m-{n}" for n, result in enumerate(sent) if result["queue"] == queue]
        assert [m["body"] for m in messages if m["queue"] == queue] == wanted


def transactions_work(client: RemoteClient, broker: Broker, name: str) -> str:
    """Committed, rolled back, and checked; gives the producer."""
    plain = client.producer(broker.namesrv, f"p-{name}")
    client.send(plain, name, 1, prefix="first")
    consumer = client.consumer(broker.namesrv, f"c-{name}", f"g-{name}", name)
    producer = client.producer(broker.namesrv, f"t-{name}", transactions=True)
    options: dict[str, Any] = {"name": producer, "topic": name}
    client.call("transaction", prefix="yes", local="commit", **options)
    client.call("transaction", prefix="no", local="rollback", **options)
    client.call("transaction", prefix="later", local="unknown", check="commit", **options)
    client.wait_messages(consumer, 3, timeout=40)
    time.sleep(2)
    client.stop(plain, producer, consumer)
    assert bodies(client.messages(consumer)) == Counter(["first-0", "yes-0", "later-0"])
    return producer
