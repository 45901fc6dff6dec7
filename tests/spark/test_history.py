"""Option `history`: what retention has removed comes from a table, the rest from the broker."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from peers.aerobee_broker import AerobeeBroker
from pyspark.sql import SparkSession
from spark.helpers import create_topic, numbers, produce
from spark.lake_readers import FORMATS
from spark.trimming import trim_oldest_file

from aerobee.pipeline.jobs.table import Keeper, TableJob
from aerobee.pipeline.jobs.upkeep import Upkeep
from aerobee.pipeline.options import OptionError, source_options
from aerobee.pipeline.source.queues import DataLoss, QueueKey
from aerobee.pipeline.source.stream_reader import TopicStream
from aerobee.pipeline.source.topic_ranges import TopicPlan, plan_batch, read_joined

pytestmark = pytest.mark.timeout(400)  # a busy machine starts workers slowly
Start = Callable[..., AerobeeBroker]
SMALL = {"mappedFileSizeCommitLog": "65536", "brokerName": "broker-a"}
BODY = b"." * 1500


def bodies(count: int, start: int = 0) -> list[bytes]:
    return [number + BODY for number in numbers(count, start)]


def read(spark: SparkSession, namesrv: str, topic: str, **options: str) -> list[Any]:
    reader = spark.read.format("aerobee").options(namesrv=namesrv, subscribe=topic, **options)
    rows = reader.load().select("partition", "offset", "value", "timestamp")
    return list(rows.collect())


def values(rows: list[Any]) -> list[bytes]:
    return sorted(bytes(row.value) for row in rows)


def keep(spark: SparkSession, broker: AerobeeBroker, topic: str, where: Path, kind: str) -> Keeper:
    job = TableJob(broker.namesrv, str(where), topic, table_format=kind, fresh=1.0)
    return Keeper(spark, job)


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_batch_read_has_the_whole_topic_though_its_beginning_was_removed(
    spark: SparkSession, own_broker: Start, tmp_path: Path, table_format: str
) -> None:
    broker = own_broker(**SMALL)
    create_topic(broker.broker, "past", 1)
    produce(broker.namesrv, "past", bodies(200))
    where = str(tmp_path / "table")
    with closing(keep(spark, broker, "past", Path(where), table_format)) as keeper:
        assert keeper.trigger() is not None
    first_left = trim_oldest_file(broker, "past", 0)
    produce(broker.namesrv, "past", bodies(100, 200))
    assert 0 < first_left < 200
    assert len(read(spark, broker.namesrv, "past")) == 300 - first_left
    rows = read(spark, broker.namesrv, "past", history=where)
    assert values(rows) == bodies(300)
    assert sorted(row.offset for row in rows) == list(range(300))
    cut = '{"past":{"0":150}}'
    some = read(spark, broker.namesrv, "past", history=where, startingOffsets=cut)
    assert sorted(row.offset for row in some) == list(range(150, 300))
    some = read(spark, broker.namesrv, "past", history=where, endingOffsets=cut)
    assert sorted(row.offset for row in some) == list(range(150))
    at = sorted(rows, key=lambda row: row.offset)[20].timestamp
    later = [row.offset for row in rows if row.timestamp >= at]
    ms = str(round(at.timestamp() * 1000))
    some = read(spark, broker.namesrv, "past", history=where, startingTimestamp=ms)
    assert sorted(row.offset for row in some) == sorted(later)


def test_a_stream_from_the_earliest_begins_in_the_table(
    spark: SparkSession, own_broker: Start, tmp_path: Path
) -> None:
    broker = own_broker(**SMALL)
    create_topic(broker.broker, "flow", 1)
    produce(broker.namesrv, "flow", bodies(200))
    where = str(tmp_path / "table")
    with closing(keep(spark, broker, "flow", Path(where), "delta")) as keeper:
        assert keeper.trigger() is not None
    trim_oldest_file(broker, "flow", 0)
    produce(broker.namesrv, "flow", bodies(50, 200))

    def run() -> None:
        source = spark.readStream.format("aerobee").options(
            namesrv=broker.namesrv, subscribe="flow", startingOffsets="earliest", history=where
        )
        writer = source.load().writeStream.format("parquet").trigger(availableNow=True)
        places = {"path": str(tmp_path / "out"), "checkpointLocation": str(tmp_path / "check")}
        writer.options(**places).start().awaitTermination()

    run()
    produce(broker.namesrv, "flow", bodies(10, 250))
    run()
    found = spark.read.parquet(str(tmp_path / "out")).select("offset", "value").collect()
    assert sorted(row.offset for row in found) == list(range(260))
    assert values(found) == bodies(260)


def test_a_queue_that_is_new_to_a_stream_begins_in_the_table(
    spark: SparkSession, own_broker: Start, tmp_path: Path
) -> None:
    broker = own_broker(**SMALL)
    create_topic(broker.broker, "wider", 1)
    produce(broker.namesrv, "wider", bodies(5), queue_id=0)
    read_before = {QueueKey("wider", "broker-a", 0): 5}
    create_topic(broker.broker, "wider", 2)
    produce(broker.namesrv, "wider", bodies(200), queue_id=1)
    where = str(tmp_path / "table")
    with closing(keep(spark, broker, "wider", Path(where), "parquet")) as keeper:
        assert keeper.trigger() is not None
    assert trim_oldest_file(broker, "wider", 1) > 0
    given = {"namesrv": broker.namesrv, "subscribe": "wider", "history": where}
    with closing(TopicStream(source_options(given, streaming=True))) as stream:
        end = stream.next_end(read_before, None)
        plan = stream.planned(read_before, end)
    assert plan.past == {QueueKey("wider", "broker-a", 1): (0, 200)} and plan.ranges == []


def test_a_gap_between_table_and_broker_is_an_error(
    spark: SparkSession, own_broker: Start, tmp_path: Path
) -> None:
    broker = own_broker(**SMALL)
    create_topic(broker.broker, "gap", 1)
    produce(broker.namesrv, "gap", bodies(20))
    where = str(tmp_path / "table")
    with closing(keep(spark, broker, "gap", Path(where), "parquet")) as keeper:
        assert keeper.trigger() is not None
    produce(broker.namesrv, "gap", bodies(300, 20))
    first_left = trim_oldest_file(broker, "gap", 0)
    given = {"namesrv": broker.namesrv, "subscribe": "gap", "history": where}
    with pytest.raises(DataLoss, match=f"offsets 20 to {first_left - 1}"):
        plan_batch(source_options(given, streaming=False))
    rows = read(spark, broker.namesrv, "gap", history=where, failOnDataLoss="false")
    assert sorted(row.offset for row in rows) == [*range(20), *range(first_left, 320)]


def test_what_is_removed_after_the_plan_was_made_comes_from_the_table(
    spark: SparkSession, own_broker: Start, tmp_path: Path
) -> None:
    from aerobee.pipeline.columns import arrow_schema

    broker = own_broker(**SMALL)
    create_topic(broker.broker, "late", 1)
    produce(broker.namesrv, "late", bodies(20))
    where = str(tmp_path / "table")
    with closing(keep(spark, broker, "late", Path(where), "iceberg")) as keeper:
        assert keeper.trigger() is not None
        produce(broker.namesrv, "late", bodies(280, 20))
        given = {"namesrv": broker.namesrv, "subscribe": "late", "history": where}
        options = source_options(given, streaming=False)
        plan = plan_batch(options)
        assert [(one.start, one.end) for one in plan.ranges] == [(20, 300)]
        assert keeper.trigger() is not None
    assert trim_oldest_file(broker, "late", 0) > 20
    columns = ("offset", "value")
    batches = read_joined(plan.ranges[0], TopicPlan.of(options, columns), arrow_schema(columns))
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [row["offset"] for row in rows] == list(range(20, 300))
    assert [row["value"] for row in rows] == bodies(280, 20)


def test_options_that_a_table_cannot_serve_are_refused() -> None:
    given = {"namesrv": "h:1", "subscribe": "x", "history": "/lake/x"}
    with pytest.raises(OptionError, match="filter after the read"):
        source_options(given | {"sql": "a > 1"}, streaming=False)
    with pytest.raises(OptionError, match="no column bodyCrc"):
        TopicPlan.of(source_options(given, streaming=False), ("value", "bodyCrc"))


@pytest.mark.timeout(900)
def test_random_cuts_under_load_leave_no_gap_and_no_repeat(
    spark: SparkSession, own_broker: Start, tmp_path: Path
) -> None:
    """SEAMS=50 for the whole; each cut may take anything that the table has."""
    chance = random.Random(int(os.environ.get("SEED", "5")))
    broker = own_broker(**SMALL)
    create_topic(broker.broker, "seam", 2)
    where, sent = tmp_path / "table", 0
    job = TableJob(broker.namesrv, str(where), "seam", fresh=1.0, upkeep=Upkeep(small_files=3))
    with closing(Keeper(spark, job)) as keeper:
        for _ in range(int(os.environ.get("SEAMS", "4"))):
            for _ in range(chance.randint(2, 4)):
                count = chance.randint(1, 60)
                produce(broker.namesrv, "seam", bodies(count, sent), queue_id=chance.randint(0, 1))
                sent += count
            keeper.trigger()
            keeper.upkeep()
            count = chance.randint(1, 60)
            produce(broker.namesrv, "seam", bodies(count, sent), queue_id=0)  # not in the table yet
            sent += count
            files = sorted((broker.store / "commitlog").iterdir())
            kept = chance.randint(count * 2200 // 65536 + 2, len(files) + 4)
            trim(broker, files[: max(0, len(files) - kept)])
            rows = read(spark, broker.namesrv, "seam", history=str(where))
            assert values(rows) == bodies(sent)
            for queue in range(2):
                offsets = sorted(row.offset for row in rows if row.partition == queue)
                assert offsets == list(range(len(offsets)))
    deadline = time.monotonic() + 60  # cleaning takes its time
    alone = {"failOnDataLoss": "false"}  # files go while it is read
    while len(read(spark, broker.namesrv, "seam", **alone)) == sent:  # the broker has less
        assert time.monotonic() < deadline, "the broker kept its oldest files"
        trim(broker, [])


def trim(broker: AerobeeBroker, files: list[Path]) -> None:
    """Lets these log files expire at the broker's next cleaning; it may take its time."""
    from peers.wire import Wire

    for file in files:
        os.utime(file, (1, 1))
    with Wire(broker.broker) as wire:
        assert wire.request(329, {}).code == 0
