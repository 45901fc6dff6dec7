"""A broker that is down for seconds: reads and writes wait for it, and time out."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from peers.aerobee_broker import AerobeeBroker
from peers.tools import free_port
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamReader
from spark.helpers import create_topic, numbers, produce, topic_values

from aerobee.pipeline import arrow
from aerobee.pipeline.options import source_options
from aerobee.pipeline.outage import Unreachable
from aerobee.pipeline.sink.encode import BulkIds, encode_rows
from aerobee.pipeline.sink.homes import Home, homes_of
from aerobee.pipeline.sink.sender import BatchSender
from aerobee.pipeline.source import stream_reader
from aerobee.pipeline.source.puller import PullPlan, Range, pull_range
from aerobee.pipeline.source.queues import DataLoss, QueueKey, ends, latest
from aerobee.pipeline.source.stream_reader import TopicStream
from aerobee.pipeline.wire import Access, Cluster

AWAY_SECONDS = 5.0  # well above what a query's start waits for

OwnBroker = Callable[..., AerobeeBroker]


@contextmanager
def away(broker: AerobeeBroker, seconds: float = AWAY_SECONDS) -> Iterator[None]:
    """Kills the broker now and starts it again after `seconds`; leaving waits for that."""
    broker.kill()
    timer = threading.Timer(seconds, broker.start)
    timer.start()
    try:
        yield
    finally:
        timer.join()


def test_a_read_waits_for_a_killed_broker_and_resumes_where_it_was(
    own_broker: OwnBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker = own_broker(maxTransferCountOnMessageInMemory="50")
    create_topic(broker.broker, "in", 1)
    rows = numbers(2000)
    produce(broker.namesrv, "in", rows)
    seen: list[bytes] = []
    plan = PullPlan("reader", ("TAG", "*"), True)
    with Cluster(Access((broker.namesrv,))) as cluster:
        route = cluster.route("in")
        assert route is not None
        wanted = Range(QueueKey("in", route[0].broker, 0), broker.broker, 0, len(rows))
        bodies = pull_range(cluster, wanted, plan, pytest.fail)
        seen += arrow.decode(next(bodies), ["value"]).column(0).to_pylist()
        with away(broker):
            for body in bodies:
                seen += arrow.decode(body, ["value"]).column(0).to_pylist()
        assert cluster.waited[broker.broker] > AWAY_SECONDS / 2
    assert seen == rows
    assert "timeout.broker" in caplog.text
    assert "answered again" in caplog.text


def test_a_write_waits_for_a_killed_broker_and_loses_nothing(own_broker: OwnBroker) -> None:
    broker = own_broker()
    create_topic(broker.broker, "out", 2)
    rows = numbers(3000)
    with Cluster(Access((broker.namesrv,))) as cluster:
        sender = BatchSender(cluster, "writer", 1024)

        def add(some: list[bytes]) -> None:
            sender.add(encode_rows(pa.record_batch({"value": some}), "out", BulkIds()))

        add(rows[:1500])
        with away(broker):
            add(rows[1500:])
            assert sender.finish() == len(rows)
    assert set(topic_values(broker.namesrv, "out")) == set(rows)


def test_a_read_continues_at_the_address_that_the_master_has_by_now(own_broker: OwnBroker) -> None:
    broker = own_broker()
    create_topic(broker.broker, "in", 1)
    produce(broker.namesrv, "in", numbers(10))
    nobody = f"127.0.0.1:{free_port()}"
    plan = PullPlan("reader", ("TAG", "*"), True)
    with Cluster(Access((broker.namesrv,), patience=20)) as cluster:
        route = cluster.route("in")
        assert route is not None
        key = QueueKey("in", route[0].broker, 0)
        assert latest(cluster, {key: nobody}) == {key: 10}
        bodies = list(pull_range(cluster, Range(key, nobody, 0, 10), plan, pytest.fail))
    rows = [row for body in bodies for row in arrow.decode(body, ["value"]).column(0).to_pylist()]
    assert rows == numbers(10)


def test_a_replica_that_lags_ends_no_read(own_broker: OwnBroker) -> None:
    """An old master that came back as a replica, at the address that the query still has."""
    master, replica = own_broker(), own_broker()
    for broker, count in ((master, 10), (replica, 3)):
        create_topic(broker.broker, "in", 1)
        produce(broker.namesrv, "in", numbers(count))
    plan = PullPlan("reader", ("TAG", "*"), True)
    with Cluster(Access((master.namesrv,), patience=20)) as cluster:
        route = cluster.route("in")
        assert route is not None
        key = QueueKey("in", route[0].broker, 0)
        assert ends(cluster, {key: replica.broker}, {key: 8}) == {key: 10}
        bodies = list(pull_range(cluster, Range(key, replica.broker, 0, 10), plan, pytest.fail))
        with pytest.raises(DataLoss, match="the queue ends at 10"):
            list(pull_range(cluster, Range(key, replica.broker, 0, 11), plan, pytest.fail))
    rows = [row for body in bodies for row in arrow.decode(body, ["value"]).column(0).to_pylist()]
    assert rows == numbers(10)


def test_a_replica_that_lags_when_a_run_of_a_stream_begins_loses_nothing(
    own_broker: OwnBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Trigger.AvailableNow the end is asked for once, maybe while there is no master."""
    master, replica = own_broker(), own_broker()
    for broker, count in ((master, 10), (replica, 3)):
        create_topic(broker.broker, "in", 1)
        produce(broker.namesrv, "in", numbers(count))
    given = {"namesrv": master.namesrv, "subscribe": "in", "failOnDataLoss": "false"}
    with closing(TopicStream(source_options(given, streaming=True))) as stream:
        (key,) = stream.addresses()
        monkeypatch.setattr(stream_reader, "discover", lambda *_: {key: replica.broker})
        stream.freeze()
        assert stream.next_end({key: 8}, None) == {key: 10}


def test_a_ledger_is_asked_at_the_address_that_the_master_has_by_now(own_broker: OwnBroker) -> None:
    broker = own_broker()
    create_topic(broker.broker, "out", 1)
    nobody = f"127.0.0.1:{free_port()}"
    with Cluster(Access((broker.namesrv,), patience=20)) as cluster:
        for topic in ("out", None):
            (home,) = homes_of(cluster, topic)
            assert Home(cluster, home.name, nobody, topic).state("q").batch == -1


def test_a_topic_is_found_by_the_name_server_that_knows_it(own_broker: OwnBroker) -> None:
    fresh, broker = own_broker(), own_broker()
    create_topic(broker.broker, "in", 1)
    with Cluster(Access((fresh.namesrv, broker.namesrv))) as cluster:
        assert [share.address for share in cluster.route("in") or ()] == [broker.broker]
        assert cluster.route("nowhere") is None


def test_a_broker_that_stays_away_ends_the_read_after_the_deadline(own_broker: OwnBroker) -> None:
    broker = own_broker()
    create_topic(broker.broker, "in", 1)
    broker.kill()
    began = time.monotonic()
    wanted = Range(QueueKey("in", "b", 0), broker.broker, 0, 1)
    access = Access((broker.namesrv,), patience=1.0)
    with Cluster(access) as cluster, pytest.raises(Unreachable, match="is it up"):
        next(pull_range(cluster, wanted, PullPlan("g", ("TAG", "*"), True), pytest.fail))
    assert 0.9 < time.monotonic() - began < 8


@pytest.mark.timeout(300)
def test_a_running_query_continues_after_the_broker_was_killed_and_rows_are_there_once(
    spark: SparkSession, own_broker: OwnBroker, tmp_path: Path
) -> None:
    broker = own_broker()
    for topic in ("in", "out"):
        create_topic(broker.broker, topic, 2)
    rows = numbers(3000)
    produce(broker.namesrv, "in", rows[:1000])
    source = (
        spark.readStream.format("aerobee")
        .options(namesrv=broker.namesrv, subscribe="in", startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", 100)
        .option("availableNow", "false")
        .load()
        .select("value")
    )
    query = (
        source.writeStream.format("aerobee")
        .options(namesrv=broker.namesrv, topic="out", deliveryGuarantee="exactly-once")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )

    def await_rows(count: int) -> None:
        deadline = time.monotonic() + 100
        while sum(topic_values(broker.namesrv, "out").values()) < count:
            assert query.isActive, query.exception()
            assert time.monotonic() < deadline, "the rows did not come"
            time.sleep(0.2)

    try:
        for round_number in range(2):
            await_rows(300 + 1000 * round_number)
            with away(broker):
                pass
            produce(
                broker.namesrv, "in", rows[1000 * (round_number + 1) : 1000 * (round_number + 2)]
            )
        await_rows(len(rows))
        assert topic_values(broker.namesrv, "out") == Counter(rows)
        if hasattr(DataSourceStreamReader, "getDefaultReadLimit"):  # Spark 4.2 and newer
            shown = [str(progress) for progress in query.recentProgress]
            assert any("(waited ms)" in text for text in shown)
    finally:
        query.stop()
