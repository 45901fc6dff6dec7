"""The Node client ali-ons against the broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from peers.node_client import NodeClient
from peers.remote import ClientError, Event
from peers.tools import wait_for
from peers.under_test import Broker
from peers.wire import Wire

pytestmark = pytest.mark.node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeClient]:
    with NodeClient(tmp_path_factory.mktemp("node")) as node:
        yield node


@pytest.fixture
def topic(broker: Broker, name: str) -> str:
    """ali-ons never makes a topic: made here as an operator would."""
    make_topic(broker, name)
    return name


def make_topic(broker: Broker, name: str) -> None:
    with Wire(broker.broker) as wire:
        answer = wire.request(
            17,
            {
                "topic": name,
                "defaultTopic": "TBW102",
                "readQueueNums": 4,
                "writeQueueNums": 4,
                "perm": 6,
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": 0,
                "order": False,
            },
        )
    assert answer.code == 0, answer


def bodies(messages: list[Event]) -> Counter[str]:
    return Counter(message["body"] for message in messages)


def test_messages_sent_by_node_arrive_once_at_a_node_consumer(
    broker: Broker, node: NodeClient, topic: str
) -> None:
    producer = node.producer(broker.namesrv, f"p-{topic}")
    sent = node.send(producer, topic, 30, tags="red,blue", keys="key", properties={"n": "{n}"})
    assert {result["status"] for result in sent} == {"SEND_OK"}
    assert len({(result["queue"], result["offset"]) for result in sent}) == 30
    consumer = node.consumer(broker.namesrv, f"c-{topic}", f"g-{topic}", topic)
    messages = node.wait_messages(consumer, 30)
    node.stop(producer, consumer)
    assert bodies(messages) == Counter(f"m-{n}" for n in range(30))
    assert Counter(message["tag"] for message in messages) == {"red": 15, "blue": 15}
    assert all(m["properties"]["n"] == m["body"].removeprefix("m-") for m in messages)


def test_an_idle_node_consumer_gets_a_new_message_at_once(
    broker: Broker, node: NodeClient, topic: str
) -> None:
    producer = node.producer(broker.namesrv, f"p-{topic}")
    consumer = node.consumer(broker.namesrv, f"c-{topic}", f"g-{topic}", topic)
    node.send(producer, topic, 4, prefix="first")
    node.wait_messages(consumer, 4)
    node.send(producer, topic, 8)
    messages = node.wait_messages(consumer, 12)[4:]
    node.stop(producer, consumer)
    assert max(message["at"] - message["stored"] for message in messages) < 2000


def test_tag_and_sql_filters_work_for_node(broker: Broker, node: NodeClient, topic: str) -> None:
    producer = node.producer(broker.namesrv, f"p-{topic}")
    node.send(producer, topic, 12, tags="red,green,blue", properties={"price": "{n}"})
    by_tag = node.consumer(broker.namesrv, f"t-{topic}", f"t-{topic}", topic, tags="red || blue")
    by_sql = node.consumer(broker.namesrv, f"s-{topic}", f"s-{topic}", topic, sql="price >= 10")
    assert Counter(m["tag"] for m in node.wait_messages(by_tag, 8)) == {"red": 4, "blue": 4}
    assert bodies(node.wait_messages(by_sql, 2)) == Counter(["m-10", "m-11"])
    node.stop(producer, by_tag, by_sql)


def test_compressed_and_delayed_messages_of_node_arrive(
    broker: Broker, node: NodeClient, topic: str
) -> None:
    producer = node.producer(broker.namesrv, f"p-{topic}")
    consumer = node.consumer(broker.namesrv, f"c-{topic}", f"g-{topic}", topic)
    node.send(producer, topic, 1, prefix="big", size=100_000)
    node.send(producer, topic, 1, prefix="late", delay=1)
    big, late = node.wait_messages(consumer, 2)
    node.stop(producer, consumer)
    assert (big["body"][:5], big["size"]) == ("big-0", 100_000)
    assert late["at"] - late["born"] >= 850


def test_a_message_that_node_refuses_comes_again(
    broker: Broker, node: NodeClient, topic: str
) -> None:
    producer = node.producer(broker.namesrv, f"p-{topic}")
    consumer = node.consumer(broker.namesrv, f"c-{topic}", f"g-{topic}", topic, fails=1)
    node.send(producer, topic, 1)
    first, again = node.wait_messages(consumer, 2, timeout=30)
    node.stop(producer, consumer)
    assert (first["times"], again["times"]) == (0, 1)
    assert again["at"] - first["at"] >= 3000 - 150  # the delay of level 3


def test_node_consumers_share_keep_their_place_and_broadcast(
    own_broker: Callable[..., Broker], node: NodeClient, name: str
) -> None:
    broker = own_broker()
    make_topic(broker, name)
    producer = node.producer(broker.namesrv, f"p-{name}")
    node.send(producer, name, 8)
    one = node.consumer(broker.namesrv, f"one-{name}", f"g-{name}", name)
    every = [
        node.consumer(broker.namesrv, f"{n}-{name}", f"all-{name}", name, model="BROADCASTING")
        for n in "ab"
    ]
    assert bodies(node.wait_messages(one, 8)) == Counter(f"m-{n}" for n in range(8))
    node.stop(one)
    node.send(producer, name, 8, first=8)
    two = node.consumer(broker.namesrv, f"two-{name}", f"g-{name}", name)
    assert bodies(node.wait_messages(two, 8)) == Counter(f"m-{n}" for n in range(8, 16))
    for consumer in every:
        wait_for(
            lambda consumer=consumer: len(bodies(node.messages(consumer))) == 16,  # type: ignore[misc]
            timeout=20,
            what="a broadcast consumer got all",
        )
    node.stop(producer, two, *every)


def test_node_learns_that_nobody_has_the_topic(broker: Broker, node: NodeClient, name: str) -> None:
    producer = node.producer(broker.namesrv, f"p-{name}")
    with pytest.raises(ClientError, match="No topic route info"):
        node.send(producer, name, 1)
    node.stop(producer)
