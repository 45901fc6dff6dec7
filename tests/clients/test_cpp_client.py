"""The C++ client of Apache RocketMQ against the broker, by its C API."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from peers.cpp_client import CppClient
from peers.remote import ClientError, Event
from peers.tools import wait_for
from peers.under_test import BROKER, Broker

pytestmark = pytest.mark.cpp


@pytest.fixture(scope="module")
def cpp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CppClient]:
    with CppClient(tmp_path_factory.mktemp("cpp")) as cpp:
        yield cpp


def bodies(messages: list[Event]) -> Counter[str]:
    return Counter(message["body"] for message in messages)


@pytest.mark.parametrize("mode", ["sync", "async", "oneway"])
def test_messages_sent_by_cpp_arrive_once_at_a_cpp_consumer(
    broker: Broker, cpp: CppClient, name: str, mode: str
) -> None:
    producer = cpp.producer(broker.namesrv, f"p-{name}")
    (first,) = cpp.send(producer, name, 1, prefix="first")
    assert (first["status"], first["offset"], len(first["id"])) == ("SEND_OK", 0, 32)
    sent = cpp.send(
        producer, name, 30, mode=mode, tags="red,blue", keys="key", properties={"colour": "é"}
    )
    assert [result["status"] for result in sent] == ["SEND_OK"] * (0 if mode == "oneway" else 30)
    consumer = cpp.consumer(
        broker.namesrv, f"c-{name}", f"g-{name}", name, properties=["colour", "UNIQ_KEY"]
    )
    messages = cpp.wait_messages(consumer, 31)
    cpp.stop(producer, consumer)
    assert bodies(messages) == Counter([*(f"m-{n}" for n in range(30)), "first-0"])
    assert Counter(message["tag"] for message in messages) == {"red": 15, "blue": 15, "": 1}
    assert {message["keys"] for message in messages} == {"", *(f"key-{n}" for n in range(30))}
    assert Counter(m["properties"]["colour"] for m in messages) == {"é": 30, "": 1}
    ids = {message["properties"]["UNIQ_KEY"] for message in messages}
    assert ids >= {first["id"], *(result["id"] for result in sent)}
    assert len({(message["queue"], message["offset"]) for message in messages}) == 31


def test_an_orderly_cpp_consumer_gets_each_queue_in_the_order_of_its_sends(
    broker: Broker, cpp: CppClient, name: str
) -> None:
    producer = cpp.producer(broker.namesrv, f"p-{name}")
    sent = cpp.send(producer, name, 30, mode="orderly", shards=3)
    assert [result["offset"] for result in sent] == [n // 3 for n in range(30)]
    consumer = cpp.consumer(broker.namesrv, f"c-{name}", f"g-{name}", name, orderly=True)
    messages = cpp.wait_messages(consumer, 30)
    cpp.stop(producer, consumer)
    for shard in range(3):
        wanted = [f"m-{n}" for n in range(shard, 30, 3)]
        assert [m["body"] for m in messages if m["queue"] == shard] == wanted


def test_an_orderly_cpp_consumer_that_fails_holds_its_queue(
    broker: Broker, cpp: CppClient, name: str
) -> None:
    producer = cpp.producer(broker.namesrv, f"p-{name}")
    cpp.send(producer, name, 3, mode="orderly", shards=1)
    consumer = cpp.consumer(broker.namesrv, f"c-{name}", f"g-{name}", name, orderly=True, fails=1)
    messages = cpp.wait_messages(consumer, 6)
    cpp.stop(producer, consumer)
    assert [m["body"] for m in messages] == [f"m-{n // 2}" for n in range(6)]


@pytest.mark.skipif(BROKER != "aerobee", reason='Apache takes batch:"1" for no batch')
def test_a_batch_by_cpp_is_stored_as_single_messages(
    broker: Broker, cpp: CppClient, name: str
) -> None:
    producer = cpp.producer(broker.namesrv, f"p-{name}")
    (result,) = cpp.send(producer, name, 10, mode="batch", tags="red,blue")
    assert result["status"] == "SEND_OK"
    consumer = cpp.consumer(broker.namesrv, f"c-{name}", f"g-{name}", name, tags="red")
    messages = cpp.wait_messages(consumer, 5)
    cpp.stop(producer, consumer)
    messages.sort(key=lambda message: int(message["offset"]))
    assert [m["body"] for m in messages] == [f"m-{n}" for n in range(0, 10, 2)]


def test_tags_filter_for_cpp(broker: Broker, cpp: CppClient, name: str) -> None:
    producer = cpp.producer(broker.namesrv, f"p-{name}")
    cpp.send(producer, name, 12, tags="red,green,blue")
    consumer = cpp.consumer(broker.namesrv, f"c-{name}", f"g-{name}", name, tags="red || blue")
    assert Counter(m["tag"] for m in cpp.wait_messages(consumer, 8)) == {"red": 4, "blue": 4}
    cpp.send(producer, name, 3, tags="red,green,blue", prefix="late")
    messages = cpp.wait_messages(consumer, 10)[8:]
    cpp.stop(producer, consumer)
    assert bodies(messages) == Counter(["late-0", "late-2"])


def test_an_idle_cpp_consumer_gets_new_and_large_messages_at_once(
    broker: Broker, cpp: CppClient, name: str
) -> None:
    producer = cpp.producer(broker.namesrv, f"p-{name}")
    cpp.send(producer, name, 4, prefix="first")
    consumer = cpp.consumer(broker.namesrv, f"c-{name}", f"g-{name}", name)
    cpp.wait_messages(consumer, 4)
    cpp.send(producer, name, 4, size=100_000)  # compressed by the client, as from 4 KB on
    messages = cpp.wait_messages(consumer, 8)[4:]
    cpp.stop(producer, consumer)
    assert {(message["body"][:4], message["size"]) for message in messages} == {
        (f"m-{n}.", 100_000) for n in range(4)
    }
    assert max(message["at"] - message["stored"] for message in messages) < 2000


def test_delay_and_retry_work_for_cpp(broker: Broker, cpp: CppClient, name: str) -> None:
    producer = cpp.producer(broker.namesrv, f"p-{name}")
    cpp.send(producer, name, 1, prefix="first", tags="first")
    consumer = cpp.consumer(broker.namesrv, f"c-{name}", f"g-{name}", name, tags="late", fails=1)
    cpp.send(producer, name, 1, delay=1, tags="late", keys="key")
    first, again = cpp.wait_messages(consumer, 2)
    cpp.stop(producer, consumer)
    assert first["at"] - first["born"] >= 850
    assert (first["times"], again["times"]) == (0, 1)
    assert again["at"] - first["at"] >= 3000 - 150  # the delay of level 3
    assert (again["topic"], again["body"], again["keys"]) == (name, "m-0", "key-0")


def test_two_cpp_consumers_share_the_queues_and_keep_their_place(
    broker: Broker, cpp: CppClient, name: str
) -> None:
    producer = cpp.producer(broker.namesrv, f"p-{name}")
    cpp.send(producer, name, 4, prefix="first")
    one = cpp.consumer(broker.namesrv, f"one-{name}", f"g-{name}", name)
    cpp.wait_messages(one, 4)
    two = cpp.consumer(broker.namesrv, f"two-{name}", f"g-{name}", name)
    sends = iter(range(1000))

    def both_got_some() -> bool:
        cpp.send(producer, name, 4, prefix=f"round-{next(sends)}")
        return bool(cpp.messages(two))

    wait_for(both_got_some, timeout=30, what="the second consumer got a queue", interval=0.2)
    cpp.send(producer, name, 40)

    def got() -> set[str]:
        return {m["body"] for m in cpp.messages(one) + cpp.messages(two) if m["body"][0] == "m"}

    wait_for(lambda: len(got()) == 40, timeout=30, what="both consumers together got all")
    cpp.stop(one, two)
    cpp.send(producer, name, 8, prefix="last")
    three = cpp.consumer(broker.namesrv, f"three-{name}", f"g-{name}", name)
    messages = cpp.wait_messages(three, 8)
    cpp.stop(producer, three)
    assert bodies(messages) == Counter(f"last-{n}" for n in range(8))


def test_every_broadcast_consumer_of_cpp_gets_all(
    broker: Broker, cpp: CppClient, name: str
) -> None:
    producer = cpp.producer(broker.namesrv, f"p-{name}")
    cpp.send(producer, name, 1, prefix="first")
    options = {"group": f"g-{name}", "topic": name, "model": "BROADCASTING"}
    every = [cpp.consumer(broker.namesrv, f"{n}-{name}", **options) for n in "ab"]
    cpp.send(producer, name, 8)

    def got(consumer: str) -> set[str]:
        return {m["body"] for m in cpp.messages(consumer) if m["body"] != "first-0"}

    wait_for(
        lambda: [len(got(consumer)) for consumer in every] == [8, 8],
        timeout=30,
        what="each broadcast consumer got all",
    )
    cpp.stop(producer, *every)


def test_a_cpp_pull_consumer_reads_every_queue_to_its_end(
    broker: Broker, cpp: CppClient, name: str
) -> None:
    producer = cpp.producer(broker.namesrv, f"p-{name}")
    cpp.send(producer, name, 40, tags="red,blue")
    cpp.call("puller", namesrv=broker.namesrv, name=f"c-{name}")
    everything = cpp.call("pull", name=f"c-{name}", topic=name, max=3)
    red = cpp.call("pull", name=f"c-{name}", topic=name, tags="red")
    cpp.stop(producer, f"c-{name}")
    assert bodies(everything["messages"]) == Counter(f"m-{n}" for n in range(40))
    assert bodies(red["messages"]) == Counter(f"m-{n}" for n in range(0, 40, 2))
    for end in (*everything["ends"], *red["ends"]):
        assert (end["status"], end["offset"]) == ("NO_NEW_MSG", 10)


def test_cpp_clients_find_a_broker_that_was_restarted(
    own_broker: Callable[..., Broker], cpp: CppClient, name: str
) -> None:
    """With a new consumer: one held in a pull notices only after half a minute, with any broker."""
    broker = own_broker()
    producer = cpp.producer(broker.namesrv, f"p-{name}")
    cpp.send(producer, name, 4)
    one = cpp.consumer(broker.namesrv, f"one-{name}", f"g-{name}", name)
    cpp.wait_messages(one, 4)
    cpp.stop(one)
    broker.stop()
    broker.start()
    cpp.send(producer, name, 4, first=4)
    two = cpp.consumer(broker.namesrv, f"two-{name}", f"g-{name}", name)
    messages = cpp.wait_messages(two, 4)
    cpp.stop(producer, two)
    assert bodies(messages) == Counter(f"m-{n}" for n in range(4, 8))


def test_cpp_learns_that_the_broker_refuses_a_message(
    broker: Broker, cpp: CppClient, name: str
) -> None:
    producer = cpp.producer(broker.namesrv, f"p-{name}")
    cpp.send(producer, name, 1)
    with pytest.raises(ClientError, match="No route"):  # its error for every failure
        cpp.send(producer, name, 1, keys="k" * 40_000)
    (after,) = cpp.send(producer, name, 1)
    cpp.stop(producer)
    assert after["status"] == "SEND_OK"
