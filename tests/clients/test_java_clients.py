"""Apache RocketMQ's Java clients, 4.9.8 and 5.5.0, send and consume in every way that they offer.

The message services (delay, retry, transactions and so on) have a file of their own.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clients.counted import bodies, numbered
from peers.java_client import ClientError, Event, JavaClient
from peers.tools import wait_for
from peers.under_test import Broker

pytestmark = pytest.mark.apache


def test_a_sync_send_is_answered_with_its_place_and_arrives_as_it_was(
    broker: Broker, java: JavaClient, name: str
) -> None:
    producer = java.producer(broker.namesrv, f"p-{name}")
    sent = java.send(
        producer,
        name,
        20,
        tags="red,blue",
        keys="key",
        prop__colour="wine\u00e9-{n}",
        prop__n="{n}",
    )
    assert {result["status"] for result in sent} == {"SEND_OK"}
    places = {(result["queue"], result["offset"]) for result in sent}
    assert len(places) == 20
    assert {queue for queue, _ in places} == {0, 1, 2, 3}
    assert len({result["id"] for result in sent}) == 20
    assert all(len(result["offsetId"]) == 32 for result in sent)

    consumer = java.consumer(broker.namesrv, f"c-{name}", f"g-{name}", name)
    messages = java.wait_messages(consumer, 20)
    java.stop(producer, consumer)
    assert bodies(messages) == numbered("m", 20)
    for message in messages:
        n = int(message["body"].removeprefix("m-"))
        result = sent[n]
        assert message["tag"] == ("red", "blue")[n % 2]
        assert message["keys"] == f"key-{n}"
        assert message["properties"]["colour"] == f"wine\u00e9-{n}"
        assert (message["queue"], message["offset"]) == (result["queue"], result["offset"])
        assert message["id"] == result["id"]
        assert message["physical"] == int(result["offsetId"][16:], 16)
        assert message["times"] == 0
        assert message["storeHost"].endswith(broker.broker)
        assert abs(message["stored"] - message["at"]) < 60_000


@pytest.mark.parametrize("mode", ["async", "oneway"])
def test_async_and_oneway_sends_all_arrive_once(
    broker: Broker, java: JavaClient, name: str, mode: str
) -> None:
    producer = java.producer(broker.namesrv, f"p-{name}")
    java.send(producer, name, 1, prefix="first")
    sent = java.send(producer, name, 200, mode=mode)
    assert [result["status"] for result in sent] == (["SEND_OK"] * 200 if mode == "async" else [])
    consumer = java.consumer(broker.namesrv, f"c-{name}", f"g-{name}", name)
    messages = java.wait_messages(consumer, 201)
    java.stop(producer, consumer)
    assert bodies(messages) == numbered("m", 200) + numbered("first", 1)


def test_a_batch_is_stored_as_single_messages_in_a_row(
    broker: Broker, java: JavaClient, name: str
) -> None:
    producer = java.producer(broker.namesrv, f"p-{name}")
    (result,) = java.send(producer, name, 25, mode="batch", tags="red", keys="key")
    assert result["status"] == "SEND_OK"
    assert len(result["offsetId"].split(",")) == 25
    consumer = java.consumer(broker.namesrv, f"c-{name}", f"g-{name}", name, tags="red")
    messages = java.wait_messages(consumer, 25)
    java.stop(producer, consumer)
    messages.sort(key=lambda message: int(message["offset"]))
    assert [message["body"] for message in messages] == [f"m-{n}" for n in range(25)]
    assert [message["offset"] for message in messages] == list(range(25))
    assert {message["queue"] for message in messages} == {result["queue"]}
    assert [message["keys"] for message in messages] == [f"key-{n}" for n in range(25)]


def test_a_large_message_and_the_other_port_work(
    broker: Broker, java: JavaClient, name: str
) -> None:
    producer = java.producer(broker.namesrv, f"p-{name}", vip=True)
    java.send(producer, name, 3, size=1_000_000)
    consumer = java.consumer(broker.namesrv, f"c-{name}", f"g-{name}", name)
    messages = java.wait_messages(consumer, 3)
    java.stop(producer, consumer)
    assert [message["size"] for message in messages] == [1_000_000] * 3


def test_an_idle_push_consumer_gets_a_new_message_at_once(
    broker: Broker, java: JavaClient, name: str
) -> None:
    producer = java.producer(broker.namesrv, f"p-{name}")
    java.send(producer, name, 1, prefix="first")
    consumer = java.consumer(broker.namesrv, f"c-{name}", f"g-{name}", name)
    java.wait_messages(consumer, 1)
    time.sleep(1)  # let all its queues enter the long poll
    java.send(producer, name, 40)
    messages = java.wait_messages(consumer, 41)[1:]
    java.stop(producer, consumer)
    late = max(message["at"] - message["born"] for message in messages)
    assert late < 2000, f"a message took {late} ms"


def test_a_broadcast_reaches_every_consumer(broker: Broker, java: JavaClient, name: str) -> None:
    producer = java.producer(broker.namesrv, f"p-{name}")
    java.send(producer, name, 10)
    consumers = [
        java.consumer(
            broker.namesrv, f"c{n}-{name}", f"g-{name}", name, model="BROADCASTING", instance=f"{n}"
        )
        for n in range(2)
    ]
    for consumer in consumers:
        assert bodies(java.wait_messages(consumer, 10)) == numbered("m", 10)
    java.send(producer, name, 10, first=10)
    for consumer in consumers:
        assert bodies(java.wait_messages(consumer, 20)) == numbered("m", 20)
    java.stop(producer, *consumers)


def test_a_pull_tells_found_none_filtered_and_out_of_range(
    broker: Broker, java: JavaClient, name: str
) -> None:
    producer = java.producer(broker.namesrv, f"p-{name}")
    java.send(producer, name, 10, queue=0, tags="red,blue")
    puller = f"c-{name}"
    java.call("puller", name=puller, namesrv=broker.namesrv)
    assert sorted(java.call("queues", name=puller, topic=name)["queues"]) == [0, 1, 2, 3]

    def pull(**options: Any) -> Event:
        return java.call("pull", name=puller, topic=name, **options)

    found = pull(offset=2, n=5)
    assert (found["status"], found["next"]) == ("FOUND", 7)
    assert [message["body"] for message in found["messages"]] == [f"m-{n}" for n in range(2, 7)]
    assert (found["min"], found["max"]) == (0, 10)
    red = pull(tags="red || green")
    assert [message["body"] for message in red["messages"]] == [f"m-{n}" for n in range(0, 10, 2)]
    assert pull(tags="green")["status"] == "NO_MATCHED_MSG"
    assert pull(tags="green")["next"] == 10
    assert pull(offset=10)["status"] == "NO_NEW_MSG"
    beyond = pull(offset=1000)
    assert (beyond["status"], beyond["next"]) == ("OFFSET_ILLEGAL", 10)
    java.call("commit", name=puller, topic=name, offset=7)
    assert java.call("offsets", name=puller, topic=name)["committed"] == 7
    java.stop(producer, puller)


def test_a_blocking_pull_is_woken_by_a_send(broker: Broker, java: JavaClient, name: str) -> None:
    producer = java.producer(broker.namesrv, f"p-{name}")
    java.send(producer, name, 1, queue=1)
    puller = f"c-{name}"
    java.call("puller", name=puller, namesrv=broker.namesrv)
    waiting = java.start("pull", name=puller, topic=name, queue=1, offset=1, block=True)
    time.sleep(1)
    java.send(producer, name, 1, queue=1, first=1)
    found = java.result(waiting)
    java.stop(producer, puller)
    assert [message["body"] for message in found["messages"]] == ["m-1"]
    assert 900 < found["ms"] < 3000


def test_lite_pull_by_subscription_keeps_its_place(
    broker: Broker, java: JavaClient, name: str
) -> None:
    producer = java.producer(broker.namesrv, f"p-{name}")
    java.send(producer, name, 20, tags="red,blue")
    lite = f"c-{name}"
    options: dict[str, Any] = {
        "namesrv": broker.namesrv,
        "group": f"g-{name}",
        "topic": name,
        "tags": "red",
    }
    java.call("lite", name=lite, **options)
    first = java.call("poll", name=lite, n=10, commit=True)["messages"]
    assert bodies(first) == Counter(f"m-{n}" for n in range(0, 20, 2))
    java.stop(lite)
    java.send(producer, name, 4, first=20, tags="red,blue")
    java.call("lite", name=lite, **options)
    again = java.call("poll", name=lite, n=2)["messages"]
    java.stop(producer, lite)
    assert bodies(again) == Counter(["m-20", "m-22"])


def test_lite_pull_by_assignment_seeks_and_commits(
    broker: Broker, java: JavaClient, name: str
) -> None:
    producer = java.producer(broker.namesrv, f"p-{name}")
    java.send(producer, name, 20)
    lite = f"c-{name}"
    java.call(
        "lite", name=lite, namesrv=broker.namesrv, group=f"g-{name}", assign=name, manual=True
    )
    first = java.call("poll", name=lite, n=20)["messages"]
    assert bodies(first) == numbered("m", 20)
    # The producer restarts its round-robin once it has the new topic's route: about five a queue.
    counts = Counter(message["queue"] for message in first)
    expected = {(queue, offset) for queue, count in counts.items() for offset in range(3, count)}
    java.call("seek", name=lite, topic=name, offset=3)
    # Not every version cancels a pull already held at the broker: up to 20 s.
    again = java.call("poll", name=lite, n=len(expected), commit=True, wait=35_000, timeout=40)[
        "messages"
    ]
    assert {(message["queue"], message["offset"]) for message in again} == expected
    committed = java.call("liteCommitted", name=lite, topic=name)["committed"]
    java.stop(producer, lite)
    assert committed == {str(queue): count for queue, count in counts.items()}


def test_a_tag_filter_lets_only_its_tags_through(
    broker: Broker, java: JavaClient, name: str
) -> None:
    producer = java.producer(broker.namesrv, f"p-{name}")
    java.send(producer, name, 30, tags="red,green,blue")
    some = java.consumer(broker.namesrv, f"some-{name}", f"some-{name}", name, tags="red || blue")
    none = java.consumer(broker.namesrv, f"none-{name}", f"none-{name}", name, tags="Red")
    every = java.consumer(broker.namesrv, f"all-{name}", f"all-{name}", name)
    assert bodies(java.wait_messages(every, 30)) == numbered("m", 30)
    messages = java.wait_messages(some, 20)
    java.stop(producer, some, none, every)
    assert Counter(message["tag"] for message in messages) == {"red": 10, "blue": 10}
    assert java.messages(none) == []


def test_two_consumers_share_the_queues_and_one_takes_over_when_the_other_leaves(
    broker: Broker, java: JavaClient, name: str
) -> None:
    producer = java.producer(broker.namesrv, f"p-{name}")
    java.send(producer, name, 8)
    one = java.consumer(broker.namesrv, f"one-{name}", f"g-{name}", name)
    java.wait_messages(one, 8)
    two = java.consumer(broker.namesrv, f"two-{name}", f"g-{name}", name)
    time.sleep(2)  # the broker notifies the first one, which gives up half of its queues

    def new(consumer: str, prefix: str) -> list[Event]:
        return [m for m in java.messages(consumer) if m["body"].startswith(prefix)]

    java.send(producer, name, 40, prefix="shared")
    # On a busy machine a client of 5.5 sometimes misses its first rebalance and shares 20 s later.
    wait_for(
        lambda: len(new(one, "shared")) + len(new(two, "shared")) >= 40,
        timeout=60,
        what="both consumers together got all",
    )
    assert bodies(new(one, "shared") + new(two, "shared")) == numbered("shared", 40)
    of_two = {message["queue"] for message in new(two, "shared")}
    assert of_two in ({0, 1}, {2, 3})
    assert {message["queue"] for message in new(one, "shared")} == {0, 1, 2, 3} - of_two

    java.stop(two)
    left = time.monotonic()
    java.send(producer, name, 40, prefix="alone")
    wait_for(lambda: len(new(one, "alone")) >= 40, timeout=15, what="the first one took over")
    taken_over = time.monotonic() - left
    java.stop(producer, one)
    assert bodies(new(one, "alone")) == numbered("alone", 40)
    assert taken_over < 5, f"the other one took over only after {taken_over:.1f} s"


def test_messages_are_found_by_key_by_id_and_by_time(
    broker: Broker, java: JavaClient, name: str
) -> None:
    producer = java.producer(broker.namesrv, f"p-{name}")
    before = java.send(producer, name, 10, queue=0, keys="order")
    time.sleep(0.3)
    middle = int(time.time() * 1000)
    time.sleep(0.3)
    java.send(producer, name, 10, queue=0, keys="order", first=10)
    puller = f"c-{name}"
    java.call("puller", name=puller, namesrv=broker.namesrv)
    time.sleep(0.5)  # the index is written a moment after the answer
    near = middle - 2000  # the index knows seconds only

    (found,) = java.call("byKey", name=puller, topic=name, key="order-3")["messages"]
    assert found["body"] == "m-3"
    (found,) = java.call("byKey", name=puller, topic=name, key="order-13", begin=near)["messages"]
    assert found["body"] == "m-13"
    with pytest.raises(ClientError, match="no message"):
        java.call("byKey", name=puller, topic=name, key="order-3", begin=middle + 60_000)
    with pytest.raises(ClientError, match="no message"):
        java.call("byKey", name=puller, topic=name, key="order")

    by_unique_id = java.call("byId", name=puller, topic=name, id=before[4]["id"])["message"]
    assert by_unique_id["body"] == "m-4"
    by_offset_id = java.call("byId", name=puller, topic=name, id=before[5]["offsetId"])["message"]
    assert by_offset_id["body"] == "m-5"

    offsets = java.call("offsets", name=puller, topic=name, time=middle)
    assert (offsets["min"], offsets["max"], offsets["byTime"]) == (0, 20, 10)
    assert abs(offsets["earliest"] - middle) < 30_000
    beyond = java.call("offsets", name=puller, topic=name, time=middle + 3_600_000)
    assert beyond["byTime"] == 20
    java.stop(producer, puller)


def test_a_topic_that_nobody_made_is_refused_where_topics_are_not_made_by_themselves(
    own_broker: Callable[..., Broker], java: JavaClient, name: str
) -> None:
    broker = own_broker(autoCreateTopicEnable="false")
    producer = java.producer(broker.namesrv, f"p-{name}")
    with pytest.raises(ClientError, match="No route info of this topic"):
        java.send(producer, name, 1)
    java.stop(producer)


def test_the_binary_header_works_as_well_as_json(
    broker: Broker, java: JavaClient, name: str, tmp_path: Path
) -> None:
    binary = JavaClient(java.version, tmp_path, rocketmq__serialize__type="ROCKETMQ")
    with binary:
        producer = binary.producer(broker.namesrv, "p")
        binary.send(producer, name, 50, tags="red,blue", keys="key")
        consumer = binary.consumer(broker.namesrv, "c", f"g-{name}", name, tags="red")
        messages = binary.wait_messages(consumer, 25)
        assert bodies(messages) == Counter(f"m-{n}" for n in range(0, 50, 2))


def test_a_heartbeat_by_fingerprint_keeps_the_consumer_known(
    broker: Broker, java: JavaClient, name: str
) -> None:
    if java.version.startswith("4."):
        pytest.skip("clients of 4.9 have no such heartbeat")
    producer = java.producer(broker.namesrv, f"p-{name}")
    java.send(producer, name, 1)
    consumer = java.consumer(
        broker.namesrv, f"c-{name}", f"g-{name}", name, heartbeatV2=True, heartbeat=1000
    )
    java.wait_messages(consumer, 1)
    time.sleep(3.5)  # a few heartbeats without the subscription in them
    java.send(producer, name, 8, first=1)
    messages = java.wait_messages(consumer, 9)
    java.stop(producer, consumer)
    assert bodies(messages) == numbered("m", 9)
