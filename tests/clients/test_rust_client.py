"""The Rust client rocketmq-client-rust against the broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from clients import flows
from clients.counted import bodies
from peers.remote import ClientError
from peers.rust_client import RustClient
from peers.tools import wait_for
from peers.under_test import Broker

# The build, minutes long, is not the test's time.
pytestmark = [pytest.mark.rust, pytest.mark.timeout(120, func_only=True)]


@pytest.fixture(scope="module")
def rust(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RustClient]:
    with RustClient(tmp_path_factory.mktemp("rust")) as rust:
        yield rust


@pytest.mark.parametrize("mode", ["sync", "async", "oneway"])
def test_messages_sent_by_rust_arrive_once_at_a_rust_consumer(
    broker: Broker, rust: RustClient, name: str, mode: str
) -> None:
    flows.messages_arrive_once(rust, broker, name, mode)


def test_a_batch_by_rust_is_stored_as_single_messages(
    broker: Broker, rust: RustClient, name: str
) -> None:
    flows.batch_is_single_messages(rust, broker, name)


def test_a_large_body_that_rust_compresses_comes_back_whole(
    broker: Broker, rust: RustClient, name: str
) -> None:
    producer = rust.producer(broker.namesrv, f"p-{name}")
    rust.send(producer, name, 1, size=100_000)
    consumer = rust.consumer(broker.namesrv, f"c-{name}", f"g-{name}", name)
    (message,) = rust.wait_messages(consumer, 1)
    rust.stop(producer, consumer)
    assert message["size"] == 100_000
    assert message["storedSize"] < 10_000


def test_tag_and_sql_filters_work_for_rust(broker: Broker, rust: RustClient, name: str) -> None:
    producer = rust.producer(broker.namesrv, f"p-{name}")
    rust.send(producer, name, 12, tags="red,green,blue", properties={"price": "{n}"})
    # No blanks: the client would hash them with the tags, and Apache's broker takes its hashes.
    by_tag = rust.consumer(broker.namesrv, f"t-{name}", f"t-{name}", name, tags="red||blue")
    by_sql = rust.consumer(broker.namesrv, f"s-{name}", f"s-{name}", name, sql="price >= 10")
    assert Counter(m["tag"] for m in rust.wait_messages(by_tag, 8)) == {"red": 4, "blue": 4}
    assert bodies(rust.wait_messages(by_sql, 2)) == Counter(["m-10", "m-11"])
    rust.stop(producer, by_tag, by_sql)


def test_two_rust_consumers_share_the_queues_and_keep_their_place(
    broker: Broker, rust: RustClient, name: str
) -> None:
    messages = flows.two_share_the_queues(rust, broker, name)
    assert bodies(messages) == Counter(f"last-{n}" for n in range(8))


def test_broadcast_gives_each_rust_consumer_all(
    broker: Broker, rust: RustClient, name: str
) -> None:
    producer = rust.producer(broker.namesrv, f"p-{name}")
    rust.send(producer, name, 1, prefix="first")
    options: dict[str, Any] = {"group": f"g-{name}", "topic": name, "model": "BROADCASTING"}
    one = rust.consumer(broker.namesrv, f"one-{name}", **options)
    two = rust.consumer(broker.namesrv, f"two-{name}", **options)
    rust.send(producer, name, 8)
    wanted = Counter([*(f"m-{n}" for n in range(8)), "first-0"])
    assert bodies(rust.wait_messages(one, 9)) == wanted
    assert bodies(rust.wait_messages(two, 9)) == wanted
    rust.stop(producer, one, two)


def test_lite_pull_works_for_rust_and_keeps_its_place(
    broker: Broker, rust: RustClient, name: str
) -> None:
    producer = rust.producer(broker.namesrv, f"p-{name}")
    rust.send(producer, name, 20)

    def pulled(puller: str, count: int) -> Counter[str]:
        where: dict[str, Any] = {"namesrv": broker.namesrv, "topic": name, "group": f"g-{name}"}
        rust.call("puller", name=puller, **where)
        messages = rust.call("pull", name=puller, n=count, timeout=60)["messages"]
        rust.stop(puller)
        return bodies(messages)

    assert pulled(f"one-{name}", 20) == Counter(f"m-{n}" for n in range(20))
    rust.send(producer, name, 8, prefix="last")
    assert pulled(f"two-{name}", 8) == Counter(f"last-{n}" for n in range(8))
    rust.stop(producer)


def test_delay_and_retry_work_for_rust(broker: Broker, rust: RustClient, name: str) -> None:
    producer = rust.producer(broker.namesrv, f"p-{name}")
    rust.send(producer, name, 1, prefix="first", tags="first")
    consumer = rust.consumer(broker.namesrv, f"c-{name}", f"g-{name}", name, tags="late", fails=1)
    rust.send(producer, name, 1, delay=1, tags="late")
    first, again = rust.wait_messages(consumer, 2)
    rust.stop(producer, consumer)
    assert first["at"] - first["born"] >= 850
    assert (first["times"], again["times"]) == (0, 1)
    assert again["at"] - first["at"] >= 2850  # level 3


def test_a_message_that_rust_refuses_for_good_goes_to_the_dead_letters(
    broker: Broker, rust: RustClient, name: str
) -> None:
    producer = rust.producer(broker.namesrv, f"p-{name}")
    rust.send(producer, name)
    group = f"g-{name}"
    consumer = rust.consumer(broker.namesrv, f"c-{name}", group, name, fails=9, maxTimes=1)
    assert [m["times"] for m in rust.wait_messages(consumer, 2)] == [0, 1]
    dead = rust.consumer(broker.namesrv, f"d-{name}", f"dead-{name}", f"%DLQ%{group}")
    assert bodies(rust.wait_messages(dead, 1)) == Counter(["m-0"])
    rust.stop(producer, consumer, dead)


def test_orderly_consumption_works_for_rust(broker: Broker, rust: RustClient, name: str) -> None:
    flows.order_of_queues_is_kept(rust, broker, name)


def test_what_rust_refuses_in_order_comes_again_before_the_next(
    broker: Broker, rust: RustClient, name: str
) -> None:
    producer = rust.producer(broker.namesrv, f"p-{name}")
    sent = rust.send(producer, name, 8)
    consumer = rust.consumer(broker.namesrv, f"c-{name}", f"g-{name}", name, orderly=True, fails=1)
    messages = rust.wait_messages(consumer, 16)
    rust.stop(producer, consumer)
    for queue in range(4):
        bodies_sent = [f"m-{n}" for n, result in enumerate(sent) if result["queue"] == queue]
        wanted = [(body, times) for body in bodies_sent for times in (0, 1)]
        assert [(m["body"], m["times"]) for m in messages if m["queue"] == queue] == wanted


def test_transactions_work_for_rust(broker: Broker, rust: RustClient, name: str) -> None:
    producer = flows.transactions_work(rust, broker, name)
    checks = [event["message"]["body"] for event in rust.events("check", producer)]
    assert set(checks) == {"later-0"}


def test_rust_clients_find_the_broker_again_after_its_kill(
    own_broker: Callable[..., Broker], rust: RustClient, name: str
) -> None:
    broker = own_broker()
    producer = rust.producer(broker.namesrv, f"p-{name}")
    rust.send(producer, name, 8, prefix="before")
    consumer = rust.consumer(broker.namesrv, f"c-{name}", f"g-{name}", name)
    rust.wait_messages(consumer, 8)
    broker.kill()
    broker.start()

    def sent_again() -> bool:
        try:
            rust.send(producer, name, 8, prefix="after")
        except ClientError:
            return False
        return True

    wait_for(sent_again, timeout=40, what="the producer sends again", interval=1)

    def got() -> set[str]:
        return {m["body"] for m in rust.messages(consumer) if m["body"].startswith("after")}

    wait_for(lambda: len(got()) == 8, timeout=60, what="the consumer gets what was sent after")
    rust.stop(producer, consumer)
