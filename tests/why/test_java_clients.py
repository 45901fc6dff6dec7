"""Half of the verdicts by flows of Apache's Java client: on Aerobee, and on Apache's own broker.

Apache's keeps no history and tells less: there some are `unknown`, and none is another verdict.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from peers.aerobee_broker import AerobeeBroker
from peers.apache import ApacheBroker
from peers.java_client import JavaClient
from peers.under_test import SETTINGS

from aerobee import Why, sync
from why.group_verdicts import verdict_for

pytestmark = pytest.mark.apache

VERSION = "5.5.0"
LEVELS = {"messageDelayLevel": "1s 5m 5m 5m 5m 5m 5m 5m 5m 5m 5m 5m 5m 5m 20m 30m 1h 2h"}
Broker = AerobeeBroker | ApacheBroker
Expect = Callable[..., Why]


@pytest.fixture(scope="module", params=["aerobee", VERSION])
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("broker")
    settings = SETTINGS | LEVELS | {"transactionCheckInterval": "600000"}
    make = (
        AerobeeBroker(folder, **settings)
        if request.param == "aerobee"
        else (ApacheBroker(VERSION, folder, **settings, enableConsumeQueueExt="false"))
    )
    with make as running:
        yield running


@pytest.fixture(scope="module")
def java(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClient]:
    with JavaClient(VERSION, Path(tmp_path_factory.mktemp("java"))) as java:
        yield java


@pytest.fixture
def mq(broker: Broker) -> Iterator[sync.Client]:
    with sync.connect(f"mq://{broker.namesrv}", timeout=10) as mq:
        yield mq


@pytest.fixture
def expect(broker: Broker, mq: sync.Client) -> Expect:
    """Wait for the verdict; `apache`: what Apache's broker can tell of it."""

    def wait(message_id: str, group: str, wanted: str, apache: str | None = None) -> Why:
        mine = wanted if isinstance(broker, AerobeeBroker) else apache or wanted
        deadline = time.monotonic() + 60
        while True:
            answer = mq.why(message_id, group=group)
            found = answer.of(group)
            assert found is not None
            if found.verdict == mine:
                return answer
            assert time.monotonic() < deadline, f"not {mine}: {answer.as_dict()}"
            time.sleep(0.2)

    return wait


def test_consumed_filtered_and_offline_are_reported(
    broker: Broker, java: JavaClient, mq: sync.Client, expect: Expect
) -> None:
    mq.admin.create_topic("tags", queues=1)
    producer = java.producer(broker.namesrv, "p-tags")
    consumer = java.consumer(broker.namesrv, "c-tags", "g-tags", "tags", tags="a")
    (small,) = java.send(producer, "tags", 1, tags="b")
    (large,) = java.send(producer, "tags", 1, tags="a")
    java.wait_messages(consumer, 1)
    expect(large["id"], "g-tags", "consumed")  # it commits every 5 s
    java.stop(consumer)
    # Apache keeps nothing of a group that left: only that its offset passed.
    expect(small["id"], "g-tags", "filtered", apache="consumed")
    (late,) = java.send(producer, "tags", 1, tags="a")
    java.stop(producer)
    expect(late["id"], "g-tags", "offline")
    expect(late["id"], "nobody", "no_group")


def test_sql_behind_and_sent_are_reported(
    broker: Broker, java: JavaClient, mq: sync.Client, expect: Expect
) -> None:
    mq.admin.create_topic("sql", queues=1)
    producer = java.producer(broker.namesrv, "p-sql")
    consumer = java.consumer(broker.namesrv, "c-sql", "g-sql", "sql", sql="price > 3")
    (cheap,) = java.send(producer, "sql", 1, prop__price="1")
    (dear,) = java.send(producer, "sql", 1, prop__price="9")
    java.wait_messages(consumer, 1)
    # Apache leaves SQL92 evaluation to the caller, and we do not guess.
    expect(dear["id"], "g-sql", "consumed", apache="unknown")
    java.stop(consumer)
    answer = expect(cheap["id"], "g-sql", "filtered", apache="consumed")
    if isinstance(broker, AerobeeBroker):
        assert "price > 3 is false (price = 1)" in verdict_for(answer, "g-sql").text
    mq.admin.create_topic("slow", queues=1)
    slow = {"pause": 20_000, "threads": 1, "pull": 1}
    java.consumer(broker.namesrv, "c-slow", "g-slow", "slow", **slow)
    (first,) = java.send(producer, "slow", 1)
    answer = expect(first["id"], "g-slow", "sent")
    if isinstance(broker, AerobeeBroker):
        assert verdict_for(answer, "g-slow").facts["client_online"] is True
    java.stop(producer)


def test_retries_and_dead_letters_are_reported(
    broker: Broker, java: JavaClient, mq: sync.Client, expect: Expect
) -> None:
    producer = java.producer(broker.namesrv, "p-bad")
    java.send(producer, "bad", 1, tags="ready")
    java.consumer(broker.namesrv, "c-bad", "g-bad", "bad", tags="bad", fails=-1)
    (poison,) = java.send(producer, "bad", 1, tags="bad")
    answer = expect(poison["id"], "g-bad", "in_retry")
    facts = verdict_for(answer, "g-bad").facts
    assert facts["attempt"] == 1 and 290_000 < facts["due_at"] - facts["given_back_at"] < 310_000
    java.consumer(broker.namesrv, "c-dead", "g-dead", "bad", tags="bad", fails=-1, maxTimes=0)
    answer = expect(poison["id"], "g-dead", "dead")
    assert [event.event for event in answer.life] == ["stored", "given_back", "dead"]
    java.stop(producer, "c-bad", "c-dead")


def test_timers_and_recalls_are_reported(
    broker: Broker, java: JavaClient, mq: sync.Client, expect: Expect
) -> None:
    producer = java.producer(broker.namesrv, "p-late")
    java.send(producer, "late", 1)
    (level,) = java.send(producer, "late", 1, delay=2)
    kept, taken = java.send(producer, "late", 2, prop__TIMER_DELAY_SEC="600")
    expect(level["id"], "g", "waiting_timer")
    expect(kept["id"], "g", "waiting_timer")
    java.call("recall", name=producer, topic="late", handle=taken["recall"])
    expect(taken["id"], "g", "recalled")
    java.stop(producer)


def test_transactions_and_broadcasting_are_reported(
    broker: Broker, java: JavaClient, mq: sync.Client, expect: Expect
) -> None:
    java.send(java.producer(broker.namesrv, "p-deal"), "deal", 1)
    producer = java.producer(broker.namesrv, "t-deal", transactions=True)

    def transact(local: str) -> str:
        sent = java.call("transaction", name=producer, topic="deal", local=local)["sent"]
        return str(sent[0]["id"])

    java.consumer(broker.namesrv, "c-all", "g-all", "deal", model="BROADCASTING")
    expect(transact("commit"), "g-all", "broadcast")
    # Apache does not tell whether a half message is open.
    expect(transact("rollback"), "g-all", "rolled_back", apache="unknown")
    expect(transact("unknown"), "g-all", "half_open", apache="unknown")
    java.stop("p-deal", producer, "c-all")


def test_a_group_that_is_paused_or_was_moved_is_reported(
    broker: Broker, java: JavaClient, mq: sync.Client, expect: Expect
) -> None:
    mq.admin.create_topic("moved", queues=1)
    producer = java.producer(broker.namesrv, "p-moved")
    consumer = java.consumer(broker.namesrv, "c-moved", "g-moved", "moved")
    (before,) = java.send(producer, "moved", 1)
    expect(before["id"], "g-moved", "consumed")
    java.stop(consumer)
    (skipped,) = java.send(producer, "moved", 1)
    mq.admin.create_group("g-moved", consume_enabled=False)
    expect(skipped["id"], "g-moved", "paused")
    mq.admin.create_group("g-moved")
    java.admin(
        *("resetOffsetByTime", "-n", broker.namesrv, "-g", "g-moved", "-t", "moved", "-s", "-1")
    )
    expect(skipped["id"], "g-moved", "skipped_by_reset", apache="consumed")
    java.stop(producer)
