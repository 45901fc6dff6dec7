"""Delay, timers, retry, dead letters, transactions, order, filters, request and reply, trace.

Each with Apache's Java clients. What a SIGKILL in the middle leaves is in ``test_services_killed``.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from peers.java_client import ClientError, Event, JavaClient
from peers.under_test import Broker

pytestmark = pytest.mark.apache

EARLY_MS = 150  # how early a delivery may be: the precision


def waited(message: Event) -> int:
    """Milliseconds from the producer's making of the message to the consumer's getting it."""
    return int(message["at"] - message["born"])


def start(java: JavaClient, broker: Broker, name: str, **consumer: Any) -> tuple[str, str]:
    """A producer and a consumer of the topic, which is made first so that both find it."""
    producer = java.producer(broker.namesrv, f"p-{name}")
    java.send(producer, name, 1, prefix="ready", tags="ready")
    options: dict[str, Any] = {"group": f"g-{name}", "topic": name, **consumer}
    java.call("consumer", namesrv=broker.namesrv, name=f"c-{name}", **options)
    return producer, f"c-{name}"


def test_a_delay_level_holds_a_message_back_for_its_time(
    broker: Broker, java: JavaClient, name: str
) -> None:
    producer, consumer = start(java, broker, name, tags="late")
    java.send(producer, name, 4, delay=1, tags="late", prefix="one")
    java.send(producer, name, 4, delay=3, tags="late", prefix="three")
    messages = java.wait_messages(consumer, 8)
    java.stop(producer, consumer)
    assert len(messages) == 8
    for message in messages:
        delay = 1000 if message["body"].startswith("one") else 3000
        assert delay - EARLY_MS <= waited(message) < delay + 3000, message
        assert message["topic"] == name


def test_a_timer_delivers_at_its_time(broker: Broker, java: JavaClient, name: str) -> None:
    producer, consumer = start(java, broker, name, tags="late")
    at = int(time.time() * 1000) + 3500
    java.send(producer, name, 1, prefix="ms", tags="late", prop__TIMER_DELAY_MS="2500")
    java.send(producer, name, 1, prefix="sec", tags="late", prop__TIMER_DELAY_SEC="3")
    java.send(producer, name, 1, prefix="at", tags="late", prop__TIMER_DELIVER_MS=at)
    java.send(producer, name, 1, prefix="past", tags="late", prop__TIMER_DELIVER_MS=at - 60_000)
    messages = {message["body"]: message for message in java.wait_messages(consumer, 4)}
    java.stop(producer, consumer)
    assert waited(messages["past-0"]) < 2300
    assert 2500 - EARLY_MS <= waited(messages["ms-0"]) < 5500
    assert 3000 - EARLY_MS <= waited(messages["sec-0"]) < 6000
    assert at - EARLY_MS <= messages["at-0"]["at"] < at + 3000


def test_a_recalled_timer_is_never_delivered(broker: Broker, java: JavaClient, name: str) -> None:
    if java.version.startswith("4."):
        pytest.skip("clients of 4.9 cannot recall")
    producer, consumer = start(java, broker, name, tags="late")
    sent = java.send(producer, name, 2, tags="late", prop__TIMER_DELAY_SEC="4")
    assert all(result["recall"] for result in sent)
    java.call("recall", name=producer, topic=name, handle=sent[0]["recall"])
    (message,) = java.wait_messages(consumer, 1)
    time.sleep(1)
    java.stop(producer, consumer)
    assert [m["body"] for m in java.messages(consumer)] == ["m-1"]
    assert message["topic"] == name


def test_a_timer_beyond_the_horizon_is_refused(broker: Broker, java: JavaClient, name: str) -> None:
    producer = java.producer(broker.namesrv, f"p-{name}", retries=0)
    century = 100 * 366 * 24 * 3600
    with pytest.raises(ClientError, match=r"(?i)CODE: 13"):
        java.send(producer, name, 1, prop__TIMER_DELAY_SEC=century)
    java.stop(producer)


def test_a_refused_message_comes_again_and_then_goes_to_the_dead_letters(
    broker: Broker, java: JavaClient, name: str
) -> None:
    producer, consumer = start(java, broker, name, tags="bad", fails=-1, maxTimes=2, level=1)
    (sent,) = java.send(producer, name, 1, prefix="poison", tags="bad", keys="k")
    tries = java.wait_messages(consumer, 3)
    assert [message["times"] for message in tries] == [0, 1, 2]
    assert {message["topic"] for message in tries} == {name}
    assert {message["body"] for message in tries} == {"poison-0"}
    for earlier, later in pairwise(tries):
        assert 1000 - EARLY_MS <= later["at"] - earlier["at"] < 4000

    time.sleep(1)
    dead = java.consumer(broker.namesrv, f"d-{name}", f"dead-{name}", f"%DLQ%g-{name}")
    (message,) = java.wait_messages(dead, 1)
    java.stop(producer, consumer, dead)
    assert message["body"] == "poison-0"
    assert message["keys"] == "k-0"
    assert message["properties"]["ORIGIN_MESSAGE_ID"] == sent["offsetId"]
    assert message["properties"]["RETRY_TOPIC"] == name
    assert len(java.messages(consumer)) == 3


def test_the_broker_chooses_the_delay_of_a_retry_when_the_consumer_does_not(
    broker: Broker, java: JavaClient, name: str
) -> None:
    producer, consumer = start(java, broker, name, tags="bad", fails=1)
    java.send(producer, name, 1, tags="bad")
    first, second = java.wait_messages(consumer, 2)
    java.stop(producer, consumer)
    assert 3000 - EARLY_MS <= second["at"] - first["at"] < 6000  # level 3 + 0
    assert second["times"] == 1


def test_a_transaction_is_seen_after_its_commit_and_never_after_a_rollback(
    broker: Broker, java: JavaClient, name: str
) -> None:
    _, consumer = start(java, broker, name, tags="deal")
    producer = java.producer(broker.namesrv, f"t-{name}", transactions=True)
    options: dict[str, Any] = {"name": producer, "topic": name, "tags": "deal"}
    committed = java.call("transaction", prefix="yes", n=3, local="commit", **options)["sent"]
    java.call("transaction", prefix="no", n=3, local="rollback", **options)
    java.call("transaction", prefix="later", local="unknown", check="commit", **options)
    java.call("transaction", prefix="never", local="unknown", check="rollback", **options)
    messages = java.wait_messages(consumer, 4)
    time.sleep(3)  # a few more rounds of checks
    java.stop(producer, f"p-{name}", consumer)
    assert Counter(message["body"] for message in java.messages(consumer)) == Counter(
        ["yes-0", "yes-1", "yes-2", "later-0"]
    )
    by_body = {message["body"]: message for message in messages}
    assert by_body["yes-0"]["transaction"] == committed[0]["id"]
    checks = [event["message"] for event in java.events("check", producer)]
    assert {message["body"] for message in checks} == {"later-0", "never-0"}
    assert {message["topic"] for message in checks} == {name}


def test_a_transaction_committed_while_it_is_checked_is_delivered_once(
    broker: Broker, java: JavaClient, name: str
) -> None:
    _, consumer = start(java, broker, name, tags="deal")
    producer = java.producer(broker.namesrv, f"t-{name}", transactions=True)
    options: dict[str, Any] = {"name": producer, "topic": name, "tags": "deal", "local": "unknown"}
    java.call("transaction", n=20, check="commit", **options)
    java.wait_messages(consumer, 20)
    time.sleep(4)
    java.stop(producer, f"p-{name}", consumer)
    assert Counter(message["body"] for message in java.messages(consumer)) == Counter(
        f"m-{n}" for n in range(20)
    )


def test_orderly_consumers_keep_the_order_of_each_queue_even_when_they_fail(
    broker: Broker, java: JavaClient, name: str
) -> None:
    producer, one = start(java, broker, name, tags="step", mode="orderly", fails=1)
    two = java.consumer(
        broker.namesrv, f"two-{name}", f"g-{name}", name, tags="step", mode="orderly", fails=1
    )
    time.sleep(2)  # both have their queues locked by now
    java.send(producer, name, 40, tags="step", shards=4)
    deadline = time.monotonic() + 60  # 4.9 tries for a lock that it missed only every 20 s
    accepted: list[Event] = []
    while len(accepted) < 40 and time.monotonic() < deadline:
        time.sleep(0.2)
        events = java.events("message", one) + java.events("message", two)
        accepted = [event["message"] for event in events if event["accepted"]]
    java.stop(producer, one, two)
    assert len(accepted) == 40
    assert java.messages(one) and java.messages(two)
    for queue in range(4):
        steps = [message["body"] for message in accepted if message["queue"] == queue]
        assert steps == [f"m-{n}" for n in range(queue, 40, 4)]


def test_sql_filters_choose_by_the_properties(broker: Broker, java: JavaClient, name: str) -> None:
    producer, consumer = start(
        java,
        broker,
        name,
        sql="(price BETWEEN 3 AND 6 OR TAGS = 'gift') AND city IS NOT NULL AND city <> 'x''y'",
    )
    java.send(producer, name, 10, prop__price="{n}", prop__city="Oslo")
    java.send(producer, name, 10, prefix="none", prop__price="{n}")
    java.send(producer, name, 1, prefix="gift", tags="gift", prop__city="Rome", prop__price="99")
    java.send(producer, name, 1, prefix="quote", prop__price="4", prop__city="x'y")
    messages = java.wait_messages(consumer, 5)
    time.sleep(0.5)
    java.stop(producer, consumer)
    assert Counter(message["body"] for message in java.messages(consumer)) == Counter(
        ["m-3", "m-4", "m-5", "m-6", "gift-0"]
    )
    assert len(messages) == 5


def test_a_bad_sql_filter_is_refused_when_the_consumer_starts(
    broker: Broker, java: JavaClient, name: str
) -> None:
    producer = java.producer(broker.namesrv, f"p-{name}")
    java.send(producer, name, 1)
    with pytest.raises(ClientError, match=r"CODE: 23"):
        java.consumer(broker.namesrv, f"c-{name}", f"g-{name}", name, sql="price >")
    java.stop(producer)


def test_a_request_gets_its_reply(broker: Broker, java: JavaClient, name: str) -> None:
    producer, consumer = start(java, broker, name, tags="ask", reply=True)
    # A producer that already knows the route would register only with its next heartbeat.
    asker = java.producer(broker.namesrv, f"a-{name}")
    java.call("request", name=asker, topic=name, tags="ask", prefix="warm-up")
    answer = java.call("request", name=asker, topic=name, tags="ask", prefix="question")
    java.stop(producer, asker, consumer)
    assert answer["reply"] == "reply to question-0"
    assert answer["ms"] < 3000


def test_compressed_bodies_arrive_as_they_were(broker: Broker, java: JavaClient, name: str) -> None:
    kinds = ["ZLIB"] if java.version.startswith("4.") else ["ZLIB", "LZ4", "ZSTD"]
    producer, consumer = start(java, broker, name, tags="big")
    for kind in kinds:
        options: dict[str, Any] = {} if java.version.startswith("4.") else {"compress": kind}
        packer = java.producer(broker.namesrv, f"{kind}-{name}", **options)
        (sent,) = java.send(packer, name, 1, size=100_000, tags="big", prefix=kind)
        (after,) = java.send(packer, name, 1, tags="ready", queue=sent["queue"])
        stored = int(after["offsetId"][16:], 16) - int(sent["offsetId"][16:], 16)
        assert stored < 20_000, "the body is not stored as the client compressed it"
        java.stop(packer)
    messages = java.wait_messages(consumer, len(kinds))
    java.stop(producer, consumer)
    assert {(m["body"][:10], m["size"]) for m in messages} == {
        (f"{kind}-0".ljust(10, "."), 100_000) for kind in kinds
    }


def _traced(java: JavaClient, reader: str, message_id: str, wanted: set[str]) -> set[str]:
    """The kinds of traces of a message, once the wanted ones are among them."""
    kinds: set[str] = set()
    deadline = time.monotonic() + 15
    while not wanted <= kinds and time.monotonic() < deadline:
        time.sleep(0.3)  # tracers send in batches, a while later
        with suppress(ClientError):  # none found yet
            found = java.call("byKey", name=reader, topic="RMQ_SYS_TRACE_TOPIC", key=message_id)
            kinds = {message["body"].split("\x01")[0] for message in found["messages"]}
    return kinds


def test_the_trace_of_a_message_is_kept(broker: Broker, java: JavaClient, name: str) -> None:
    producer = java.producer(broker.namesrv, f"p-{name}", trace=True)
    (sent,) = java.send(producer, name, 1, keys="traced")
    consumer = java.consumer(broker.namesrv, f"c-{name}", f"g-{name}", name, trace=True)
    java.wait_messages(consumer, 1)
    reader = f"r-{name}"
    java.call("puller", name=reader, namesrv=broker.namesrv)
    kinds = _traced(java, reader, sent["id"], {"Pub", "SubBefore"})
    java.stop(producer, consumer, reader)
    assert {"Pub", "SubBefore"} <= kinds


def test_the_trace_of_a_recall_is_kept(broker: Broker, java: JavaClient, name: str) -> None:
    if java.version.startswith("4."):
        pytest.skip("clients of 4.9 cannot recall")
    producer = java.producer(broker.namesrv, f"p-{name}")
    (sent,) = java.send(producer, name, 1, prop__TIMER_DELAY_SEC="60")
    traced = java.producer(broker.namesrv, f"t-{name}", trace=True)
    java.call("recall", name=traced, topic=name, handle=sent["recall"])
    reader = f"r-{name}"
    java.call("puller", name=reader, namesrv=broker.namesrv)
    kinds = _traced(java, reader, sent["id"], {"Recall"})
    java.stop(producer, traced, reader)
    assert kinds == {"Recall"}
