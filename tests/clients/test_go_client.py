"""The Go client of Apache RocketMQ against the broker."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from peers.go_client import GoClient
from peers.remote import ClientError
from peers.tools import wait_for
from peers.under_test import Broker

pytestmark = pytest.mark.go


@pytest.fixture(scope="module")
def go(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GoClient]:
    with GoClient(tmp_path_factory.mktemp("go")) as go:
        yield go


def bodies(messages: list[dict[str, Any]]) -> Counter[str]:
    return Counter(message["body"] for message in messages)


@pytest.mark.parametrize("mode", ["sync", "async", "oneway"])
def test_messages_sent_by_go_arrive_once_at_a_go_consumer(
    broker: Broker, go: GoClient, name: str, mode: str
) -> None:
    producer = go.producer(broker.namesrv, f"p-{name}")
    (first,) = go.send(producer, name, 1, prefix="first")
    assert (first["status"], len(first["offsetId"])) == ("SEND_OK", 32)
    sent = go.send(producer, name, 30, mode=mode, tags="red,blue", keys="key")
    if mode != "oneway":
        assert {result["status"] for result in sent} == {"SEND_OK"}
    consumer = go.consumer(broker.namesrv, f"c-{name}", f"g-{name}", name)
    messages = go.wait_messages(consumer, 31)
    go.stop(producer, consumer)
    assert bodies(messages) == Counter([*(f"m-{n}" for n in range(30)), "first-0"])
    assert Counter(message["tag"] for message in messages) == {"red": 15, "blue": 15, "": 1}
    assert {message["keys"] for message in messages} >= {"key-0", "key-29"}


def test_a_batch_by_go_is_stored_as_single_messages(
    broker: Broker, go: GoClient, name: str
) -> None:
    producer = go.producer(broker.namesrv, f"p-{name}")
    (result,) = go.send(producer, name, 10, mode="batch")
    assert result["status"] == "SEND_OK"
    consumer = go.consumer(broker.namesrv, f"c-{name}", f"g-{name}", name)
    messages = go.wait_messages(consumer, 10)
    go.stop(producer, consumer)
    assert [m["body"] for m in sorted(messages, key=lambda m: int(m["offset"]))] == [
        f"m-{n}" for n in range(10)
    ]


def test_tag_and_sql_filters_work_for_go(broker: Broker, go: GoClient, name: str) -> None:
    producer = go.producer(broker.namesrv, f"p-{name}")
    go.send(producer, name, 12, tags="red,green,blue", properties={"price": "{n}"})
    by_tag = go.consumer(broker.namesrv, f"t-{name}", f"t-{name}", name, tags="red || blue")
    by_sql = go.consumer(broker.namesrv, f"s-{name}", f"s-{name}", name, sql="price >= 10")
    assert Counter(m["tag"] for m in go.wait_messages(by_tag, 8)) == {"red": 4, "blue": 4}
    assert bodies(go.wait_messages(by_sql, 2)) == Counter(["m-10", "m-11"])
    go.stop(producer, by_tag, by_sql)


def test_two_go_consumers_share_the_queues_and_keep_their_place(
    broker: Broker, go: GoClient, name: str
) -> None:
    producer = go.producer(broker.namesrv, f"p-{name}")
    go.send(producer, name, 4, prefix="first")
    one = go.consumer(broker.namesrv, f"one-{name}", f"g-{name}", name)
    go.wait_messages(one, 4)
    two = go.consumer(broker.namesrv, f"two-{name}", f"g-{name}", name)
    time.sleep(3)
    go.send(producer, name, 40)

    def got() -> Counter[str]:
        both = go.messages(one) + go.messages(two)
        return bodies([m for m in both if m["body"].startswith("m-")])

    wait_for(lambda: len(got()) == 40, timeout=30, what="both consumers together got all")
    assert go.messages(two), "the second consumer got no queue"
    go.stop(one, two)
    go.send(producer, name, 8, prefix="last")
    three = go.consumer(broker.namesrv, f"three-{name}", f"g-{name}", name)
    messages = go.wait_messages(three, 8)
    go.stop(producer, three)
    assert {m["body"] for m in messages if m["body"].startswith("last")} == {
        f"last-{n}" for n in range(8)
    }


def test_a_go_pull_consumer_polls_all_messages(broker: Broker, go: GoClient, name: str) -> None:
    """Its Poll asks for 0 messages at once, and gets one."""
    producer = go.producer(broker.namesrv, f"p-{name}")
    go.send(producer, name, 12)
    poller = f"c-{name}"
    go.call("puller", name=poller, namesrv=broker.namesrv, group=f"g-{name}", topic=name)
    messages = go.call("pull", name=poller, n=12, wait=20000)["messages"]
    go.stop(producer, poller)
    assert bodies(messages) == Counter(f"m-{n}" for n in range(12))


def test_delay_and_retry_work_for_go(broker: Broker, go: GoClient, name: str) -> None:
    producer = go.producer(broker.namesrv, f"p-{name}")
    go.send(producer, name, 1, prefix="first", tags="first")
    consumer = go.consumer(
        broker.namesrv, f"c-{name}", f"g-{name}", name, tags="late", fails=1, level=1
    )
    go.send(producer, name, 1, delay=1, tags="late")
    first, again = go.wait_messages(consumer, 2)
    go.stop(producer, consumer)
    assert first["at"] - first["born"] >= 850
    assert (first["times"], again["times"]) == (0, 1)
    assert again["at"] - first["at"] >= 850


def test_orderly_consumption_works_for_go(broker: Broker, go: GoClient, name: str) -> None:
    producer = go.producer(broker.namesrv, f"p-{name}")
    sent = go.send(producer, name, 20)
    consumer = go.consumer(broker.namesrv, f"c-{name}", f"g-{name}", name, orderly=True)
    messages = go.wait_messages(consumer, 20)
    go.stop(producer, consumer)
    for queue in range(4):
        wanted = [f"m-{n}" for n, result in enumerate(sent) if result["queue"] == queue]
        assert [m["body"] for m in messages if m["queue"] == queue] == wanted


def test_transactions_work_for_go(broker: Broker, go: GoClient, name: str) -> None:
    plain = go.producer(broker.namesrv, f"p-{name}")
    go.send(plain, name, 1, prefix="first")
    consumer = go.consumer(broker.namesrv, f"c-{name}", f"g-{name}", name)
    producer = go.producer(broker.namesrv, f"t-{name}", transactions=True)
    options: dict[str, Any] = {"name": producer, "topic": name}
    go.call("transaction", prefix="yes", local="commit", **options)
    go.call("transaction", prefix="no", local="rollback", **options)
    go.call("transaction", prefix="later", local="unknown", check="commit", **options)
    go.wait_messages(consumer, 3, timeout=40)
    time.sleep(2)
    go.stop(plain, producer, consumer)
    assert bodies(go.messages(consumer)) == Counter(["first-0", "yes-0", "later-0"])


def test_go_administers_topics(broker: Broker, go: GoClient, name: str) -> None:
    where: dict[str, Any] = {"namesrv": broker.namesrv, "broker": broker.broker, "topic": name}
    go.call("admin", do="create", queues=3, **where)
    assert name in go.call("admin", do="topics", **where)["topics"]
    assert "TOOLS_CONSUMER" in go.call("admin", do="groups", **where)["groups"]
    producer = go.producer(broker.namesrv, f"p-{name}")
    assert {result["queue"] for result in go.send(producer, name, 6)} == {0, 1, 2}
    go.stop(producer)
    go.call("admin", do="delete", **where)
    assert name not in go.call("admin", do="topics", **where)["topics"]


def test_go_is_told_that_nobody_has_the_topic(broker: Broker, go: GoClient, name: str) -> None:
    with pytest.raises(ClientError, match=r"route info not found|not exist|no route"):
        go.consumer(broker.namesrv, f"c-{name}", f"g-{name}", name)
