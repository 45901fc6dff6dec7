"""Apache's Java clients over restarts of the broker."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest
from clients.counted import bodies, numbered
from peers.aerobee_broker import AerobeeBroker
from peers.java_client import JavaClient
from peers.tools import wait_for
from peers.under_test import Broker

pytestmark = pytest.mark.apache


def test_offsets_are_kept_over_a_restart_of_the_broker(
    own_broker: Callable[..., Broker], java: JavaClient, name: str
) -> None:
    broker = own_broker()
    producer = java.producer(broker.namesrv, f"p-{name}")
    java.send(producer, name, 20)
    consumer = java.consumer(broker.namesrv, f"c-{name}", f"g-{name}", name)
    java.wait_messages(consumer, 20)
    time.sleep(1)  # until its threads have acknowledged the last ones
    java.stop(consumer)

    broker.stop()
    broker.start()
    java.send(producer, name, 20, first=20)
    again = java.consumer(broker.namesrv, f"again-{name}", f"g-{name}", name)
    messages = java.wait_messages(again, 20)
    time.sleep(1)
    java.stop(producer, again)
    assert bodies(messages) == numbered("m", 20, first=20)
    assert len(java.messages(again)) == 20


def test_a_clean_restart_of_the_broker_delivers_nothing_again_to_a_group(
    own_broker: Callable[..., Broker], java: JavaClient, name: str
) -> None:
    """Before 5.x a restart does not hasten a client's heartbeat: one returns before the other."""
    broker = own_broker()
    producer = java.producer(broker.namesrv, f"p-{name}")
    java.send(producer, name, 8)
    consumers = []
    for which, pause in (("one", 0), ("two", 100)):  # the first could take more queues
        options = {"pause": pause, "heartbeat": 12_000}
        consumers += [java.consumer(broker.namesrv, which + name, f"g-{name}", name, **options)]
        time.sleep(5)  # keeps their heartbeats that far apart

    def got() -> Counter[str]:
        messages = [m for consumer in consumers for m in java.messages(consumer)]
        return bodies([m for m in messages if m["body"].startswith("work")])

    sent = 1200
    java.send(producer, name, sent, prefix="work")
    wait_for(lambda: len(got()) > sent // 2, timeout=60, what="the first is nearly done")
    broker.stop()
    broker.start()
    if isinstance(broker, AerobeeBroker):
        log = broker.log
        wait_for(lambda: log().count("consumer joined") >= 4, timeout=60, what="both came back")
    wait_for(lambda: len(got()) >= sent, timeout=120, what="all came")
    java.stop(producer, *consumers)
    assert got() == numbered("work", sent)
