"""A query's batches are committed by one broker, and by no other while that one is missing."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from peers.aerobee_broker import AerobeeBroker
from pyspark.sql import SparkSession
from spark.helpers import create_topic, numbers, produce, topic_values
from spark.test_batch_ledger import Sink, run_ledger
from waiting import until

from aerobee.pipeline.sink.homes import QueryLedgers, all_homes, homes_of
from aerobee.pipeline.wire import Access, BrokerError, Cluster, Unreachable

OwnBroker = Callable[..., AerobeeBroker]


def wait_until(condition: Callable[[], object]) -> None:
    asyncio.run(until(condition))


class Brokers:
    """A name server, and brokers that register with it; all of them have the topic `out`."""

    def __init__(self, own_broker: OwnBroker, names: list[str]) -> None:
        self._own_broker = own_broker
        self.first = own_broker(brokerName="with-the-name-server", autoCreateTopicEnable="false")
        self.namesrv = self.first.namesrv
        self.by_name = {name: self.add(name) for name in names}

    def add(self, name: str) -> AerobeeBroker:
        added = self._own_broker(
            brokerName=name, namesrvAddr=self.namesrv, autoCreateTopicEnable="false"
        )
        create_topic(added.broker, "out", 1)
        self.await_route(name)
        return added

    def await_route(self, name: str, *, is_there: bool = True) -> None:
        with self.cluster() as cluster:
            wait_until(
                lambda: (name in {one.broker for one in cluster.route("out") or ()}) == is_there
            )

    def kill(self, name: str) -> None:
        self.by_name[name].kill()
        self.await_route(name, is_there=False)

    def start(self, name: str) -> None:
        self.by_name[name].start()
        self.await_route(name)

    def cluster(self, patience: float = 20) -> Cluster:
        return Cluster(Access((self.namesrv,), patience=patience))

    def ledgers(self, cluster: Cluster, query: str = "q-1") -> QueryLedgers:
        return QueryLedgers(cluster, query, homes_of(cluster, "out"))

    def run_batch(self, batch: int, query: str = "q-1") -> str | None:
        """As the sink does, without Spark: the home that commits; None: committed before."""
        with self.cluster() as cluster:
            ledgers = self.ledgers(cluster, query)
            if ledgers.newest_batch >= batch:
                return None
            sink = Sink(self.by_name[ledgers.home.name], query)
            try:
                chunk = sink.prepare(batch, 0, [b"%d" % batch])
                ledgers.note_home(batch, "out")
                sink.commit(batch, [chunk])
            finally:
                sink.cluster.close()
            return ledgers.home.name


@pytest.fixture
def brokers(own_broker: OwnBroker) -> Brokers:
    return Brokers(own_broker, ["a", "b", "c"])


def other_than(name: str) -> str:
    return next(other for other in "abc" if other != name)


def test_no_other_broker_takes_over_while_the_home_is_missing(brokers: Brokers) -> None:
    home = brokers.run_batch(0)
    assert home is not None
    brokers.kill(home)
    with brokers.cluster(patience=1.0) as cluster:
        with pytest.raises(
            Unreachable, match=f"the broker {home} commits the batches of query q-1"
        ):
            brokers.ledgers(cluster)
        assert brokers.ledgers(cluster, "another").home.name != home
    brokers.start(home)
    assert brokers.run_batch(0) is None, "its ledger knows the batch"
    assert brokers.run_batch(1) == home


def test_the_ledgers_know_the_home_after_they_were_killed_and_for_brokers_that_came_later(
    brokers: Brokers,
) -> None:
    home = brokers.run_batch(0)
    assert home is not None
    brokers.by_name["d"] = brokers.add("d")
    assert brokers.run_batch(1) == home
    for name in "abcd":
        brokers.by_name[name].kill_and_start()
        brokers.await_route(name)
    with brokers.cluster() as cluster:
        states = {one.name: one.state("q-1") for one in all_homes(cluster)}
    assert {states[name].home for name in "abcd"} == {home}
    assert states[home].batch == 1 and states[other_than(home)].batch == -1


def test_a_home_that_takes_no_rows_any_more_hands_the_query_over(brokers: Brokers) -> None:
    home = brokers.run_batch(0)
    assert home is not None
    create_topic(brokers.by_name[home].broker, "out", 1, perm=4)
    with brokers.cluster() as cluster:
        wait_until(lambda: home not in {one.name for one in homes_of(cluster, "out")})
    assert brokers.run_batch(0) is None, "the former home is asked, too"
    second = brokers.run_batch(1)
    assert second not in (None, home)
    late = Sink(brokers.by_name[home])
    chunk = late.prepare(1, 0, [b"1"])
    with pytest.raises(BrokerError, match=f"are committed by the broker {second}"):
        late.commit(1, [chunk])
    late.cluster.close()
    assert topic_values(brokers.namesrv, "out") == Counter([b"0", b"1"])


def test_of_two_drivers_with_different_routes_one_gets_the_query(brokers: Brokers) -> None:
    """They began before either had told a ledger."""
    with brokers.cluster() as cluster:
        homes = homes_of(cluster, "out")
        first = QueryLedgers(cluster, "q-1", homes[:2])
        second = QueryLedgers(cluster, "q-1", homes[1:])
        second.home = homes[2] if first.home is homes[1] else homes[1]
        first.note_home(0, "out")
        with pytest.raises(BrokerError, match="are committed by the broker"):
            second.note_home(0, "out")
        agreed = brokers.ledgers(cluster)
        agreed.note_home(0, "out")
        assert {one.state("q-1").home for one in homes} == {agreed.home.name}


def test_a_query_is_forgotten_by_every_ledger(brokers: Brokers) -> None:
    home = brokers.run_batch(0)
    assert home is not None
    lines = run_ledger(brokers.first, "list").splitlines()
    assert len(lines) == 3 and all(f"home {home}" in line for line in lines)
    brokers.kill(home)
    assert run_ledger(brokers.first, "forget", "q-1").count("q-1 forgotten by") == 2
    assert brokers.run_batch(1) not in (None, home)


@pytest.mark.timeout(300)
def test_a_stream_that_starts_again_without_its_home_fails_with_the_reason_and_doubles_nothing(
    spark: SparkSession, brokers: Brokers, tmp_path: Path
) -> None:
    create_topic(brokers.first.broker, "in", 1)
    produce(brokers.namesrv, "in", numbers(100))
    checkpoint = tmp_path / "checkpoint"

    def copy(patience: str) -> None:
        rows = spark.readStream.format("aerobee").options(
            namesrv=brokers.namesrv, subscribe="in", startingOffsets="earliest"
        )
        query = (
            rows.load()
            .select("value")
            .writeStream.format("aerobee")
            .options(namesrv=brokers.namesrv, topic="out", deliveryGuarantee="exactly-once")
            .option("timeout.broker", patience)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)

    copy("20s")
    # The driver was killed after the sink's commit, and before it noted that itself.
    for file in (checkpoint / "commits").iterdir():
        file.unlink()
    query_id = json.loads((checkpoint / "metadata").read_text())["id"]
    with brokers.cluster() as cluster:
        home = brokers.ledgers(cluster, query_id).home.name
    brokers.kill(home)
    with pytest.raises(
        Exception, match=f"the broker {home} commits the batches of query {query_id}"
    ):
        copy("2s")
    brokers.start(home)
    copy("20s")
    produce(brokers.namesrv, "in", numbers(50, start=100))
    copy("20s")
    assert topic_values(brokers.namesrv, "out") == Counter(numbers(150))
