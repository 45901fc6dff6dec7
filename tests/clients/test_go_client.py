"""The Go client of Apache RocketMQ against the broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from clients import flows
from clients.counted import bodies
from peers.go_client import GoClient
from peers.remote import ClientError
from peers.under_test import Broker

pytestmark = pytest.mark.go


@pytest.fixture(scope="module")
def go(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GoClient]:
    with GoClient(tmp_path_factory.mktemp("go")) as go:
        yield go


@pytest.mark.parametrize("mode", ["sync", "async", "oneway"])
def test_messages_sent_by_go_arrive_once_at_a_go_consumer(
    broker: Broker, go: GoClient, name: str, mode: str
) -> None:
    flows.messages_arrive_once(go, broker, name, mode)


def test_a_batch_by_go_is_stored_as_single_messages(
    broker: Broker, go: GoClient, name: str
) -> None:
    flows.batch_is_single_messages(go, broker, name)


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
    flows.two_share_the_queues(go, broker, name)


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
    flows.order_of_queues_is_kept(go, broker, name)


def test_transactions_work_for_go(broker: Broker, go: GoClient, name: str) -> None:
    flows.transactions_work(go, broker, name)


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


def test_go_learns_that_nobody_has_the_topic(broker: Broker, go: GoClient, name: str) -> None:
    with pytest.raises(ClientError, match=r"route info not found|not exist|no route"):
        go.consumer(broker.namesrv, f"c-{name}", f"g-{name}", name)
