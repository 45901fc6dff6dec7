"""Topics as tables: rows, offsets, times, filters, partitions, and an error for every mistake."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from peers.aerobee_broker import AerobeeBroker
from pyspark.sql import DataFrame, SparkSession
from spark.helpers import create_topic, numbers, produce, topic_rows

from aerobee.pipeline.columns import arrow_schema
from aerobee.pipeline.options import OptionError, source_options
from aerobee.pipeline.source.queues import DataLoss, discover
from aerobee.pipeline.source.readings import Readings
from aerobee.pipeline.source.topic_ranges import TopicPlan, plan_batch, read_range
from aerobee.pipeline.wire import Access, Cluster

Read = Callable[..., DataFrame]


@pytest.fixture
def read(spark: SparkSession, broker: AerobeeBroker) -> Read:
    def load(**options: Any) -> DataFrame:
        reader = spark.read.format("aerobee").option("namesrv", broker.namesrv)
        return reader.options(**options).load()

    return load


def values(frame: DataFrame) -> list[bytes]:
    return sorted(bytes(row.value) for row in frame.select("value").collect())


@pytest.fixture(scope="module")
def orders(broker: AerobeeBroker) -> str:
    create_topic(broker.broker, "orders", 4)
    for queue_id in range(4):
        produce(broker.namesrv, "orders", numbers(300)[queue_id::4], tag="new", queue_id=queue_id)
        paid = numbers(200, 300)[queue_id::4]
        produce(broker.namesrv, "orders", paid, tag="paid", queue_id=queue_id)
    return "orders"


def test_a_batch_read_gives_every_row_with_every_column(
    read: Read, broker: AerobeeBroker, orders: str
) -> None:
    frame = read(subscribe=orders)
    expected = {
        (row["partition"], row["offset"]): row
        for row in topic_rows(broker.namesrv, orders, frame.columns[:-1])
    }
    rows = frame.collect()
    assert len(rows) == len(expected) == 500
    for row in rows:
        plain = expected[row.partition, row.offset]
        for name, value in row.asDict().items():
            if name == "broker":
                continue
            if isinstance(value, bytearray):
                value = bytes(value)
            if isinstance(value, datetime):
                value = value.astimezone(UTC)
            assert value == plain[name], name
    assert {row.broker for row in rows} == {rows[0].broker} != {None}


def test_offsets_bound_a_read_queue_by_queue(read: Read, orders: str) -> None:
    whole = {
        r.partition: r["count"]
        for r in read(subscribe=orders).groupBy("partition").count().collect()
    }
    frame = read(
        subscribe=orders,
        startingOffsets='{"orders":{"0":10,"1":-2}}',
        endingOffsets='{"orders":{"0":20,"1":-1,"2":0}}',
    )
    counts = {row.partition: row["count"] for row in frame.groupBy("partition").count().collect()}
    expected = {0: 10, 1: whole.get(1, 0), 3: whole.get(3, 0)}
    assert counts == {queue: count for queue, count in expected.items() if count}
    assert {r.offset for r in frame.where("partition = 0").collect()} == set(range(10, 20))


def test_assign_and_patterns_choose_queues_and_topics(read: Read, orders: str) -> None:
    assigned = read(assign='{"orders":[1,2]}').select("partition").distinct().collect()
    assert {row.partition for row in assigned} <= {1, 2}
    assert read(subscribePattern="ord.*").count() == 500
    assert read(subscribePattern="nothing.*").count() == 0


def test_a_pattern_matches_the_topics_that_people_are_shown(
    broker: AerobeeBroker, orders: str
) -> None:
    for topic in ("%DLQ%billing", "%RETRY%billing"):
        create_topic(broker.broker, topic, 1)

    def matched(pattern: str) -> set[str]:
        given = {"namesrv": broker.namesrv, "subscribePattern": pattern}
        return {key.topic for key in discover(cluster, source_options(given, streaming=False))}

    with Cluster(Access((broker.namesrv,))) as cluster:
        shown = cluster.users_topics()
        assert orders in shown
        assert len(shown) < len(cluster.topics())
        assert matched(".*") == set(shown)
        assert matched("%DLQ%bill.*") == {"%DLQ%billing"}
        assert all(topic.startswith("%DLQ%") for topic in matched("%DLQ%.*"))


def test_times_bound_a_read(read: Read, broker: AerobeeBroker) -> None:
    produce(broker.namesrv, "timed", numbers(50), queue_id=0)
    time.sleep(0.05)
    middle = round(time.time() * 1000)
    time.sleep(0.05)
    produce(broker.namesrv, "timed", numbers(50, 50), queue_id=0)
    assert values(read(subscribe="timed", startingTimestamp=middle)) == numbers(50, 50)
    assert values(read(subscribe="timed", endingTimestamp=middle)) == numbers(50)
    by_queue = f'{{"timed":{{"0":{middle}}}}}'
    assert values(read(subscribe="timed", startingOffsetsByTimestamp=by_queue)) == numbers(50, 50)
    late = middle + 3_600_000
    with pytest.raises(Exception, match="startingOffsetsByTimestampStrategy=latest"):
        read(subscribe="timed", startingTimestamp=late).count()
    options = {"startingOffsetsByTimestampStrategy": "latest"}
    assert read(subscribe="timed", startingTimestamp=late, **options).count() == 0


def test_tags_and_sql_are_filtered_by_the_broker(read: Read, orders: str) -> None:
    assert values(read(subscribe=orders, tags="paid")) == numbers(200, 300)
    assert read(subscribe=orders, tags="paid || new").count() == 500
    assert values(read(subscribe=orders, sql="TAGS = 'paid'")) == numbers(200, 300)


def test_long_queues_are_cut_into_more_partitions(read: Read, orders: str) -> None:
    assert read(subscribe=orders, minPartitions=10).rdd.getNumPartitions() >= 10
    frame = read(subscribe=orders, maxRecordsPerPartition=40)
    assert frame.rdd.getNumPartitions() >= 12
    assert values(frame) == numbers(500)


def test_columns_headers_and_a_schema_can_be_chosen(
    spark: SparkSession, read: Read, broker: AerobeeBroker, orders: str
) -> None:
    assert read(subscribe=orders, columns="offset,keys").columns == ["offset", "keys"]
    row = read(subscribe=orders, includeHeaders=True, tags="new").first()
    assert row is not None and ("TAGS", b"new") in [(h.key, bytes(h.value)) for h in row.headers]
    reader = spark.read.format("aerobee").schema("physicalOffset bigint, topic string")
    frame = reader.options(namesrv=broker.namesrv, subscribe=orders).load()
    assert frame.distinct().count() == 500


def test_filters_are_pushed_down_and_still_exact(read: Read, orders: str) -> None:
    frame = read(subscribe=orders, pushdown=True)
    assert frame.where("partition = 1 and offset >= 5 and offset < 9").count() == 4
    assert frame.where("topic = 'other'").count() == 0
    assert frame.where("topic in ('orders', null) and partition in (1, null)").count() > 4
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    assert frame.where(f"timestamp < timestamp'{now}'").count() == 500
    assert frame.where(f"timestamp >= timestamp'{now}'").count() == 0


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "give one of subscribe, subscribePattern and assign; none was given"),
        ({"subscribe": "a", "assign": '{"a":[0]}'}, "subscribe and assign was given"),
        ({"subscribe": "no-such"}, "topic no-such does not exist on this cluster; it has"),
        ({"subscrib": "orders"}, "there is no option subscrib; did you mean subscribe?"),
        ({"kafka.bootstrap.servers": "h:1"}, "use namesrv"),
        ({"namesrv": "nowhere"}, "namesrv is 'nowhere', expected host:port"),
        ({"subscribe": "orders", "startingOffsets": "first"}, "expected earliest, latest or JSON"),
        ({"subscribe": "orders", "startingOffsets": '{"x":{"0":1}}'}, "for x, which this read"),
        (
            {"subscribe": "orders", "startingOffsets": '{"orders":{"9":1}}'},
            "queue 9 of orders does",
        ),
        ({"subscribe": "orders", "startingOffsets": "latest"}, "makes an empty batch read"),
        ({"subscribe": "orders", "maxOffsetsPerTrigger": "5"}, "is for streams"),
        ({"subscribe": "orders", "minPartitions": "0"}, "a whole number of at least 1"),
        ({"subscribe": "orders", "failOnDataLoss": "maybe"}, "expected true or false"),
        ({"subscribe": "orders", "tags": "a", "sql": "b = 1"}, "tags and sql exclude each other"),
        ({"subscribe": "orders", "sql": "a = = 1"}, "SUBSCRIPTION_PARSE_FAILED"),
        ({"subscribe": "orders", "columns": "body"}, "no column 'body'"),
        ({"subscribe": "orders", "accessKey": "a"}, "accessKey and secretKey go together"),
        ({"subscribePattern": "("}, "expected a regular expression"),
        ({"subscribe": "orders", "splitBytes": "5"}, "are for reads by path"),
        (
            {"subscribe": "orders", "startingTimestamp": "1", "startingOffsets": "earliest"},
            "exclude",
        ),
    ],
)
def test_every_wrong_option_is_refused_with_a_sentence(
    read: Read, orders: str, options: dict[str, str], complaint: str
) -> None:
    with pytest.raises(Exception) as raised:
        read(**options).collect()
    assert complaint in str(raised.value)


def test_a_schema_with_a_wrong_type_is_refused(
    spark: SparkSession, broker: AerobeeBroker, orders: str
) -> None:
    reader = spark.read.format("aerobee").schema("value string")
    with pytest.raises(Exception, match="column value is a binary, the schema says string"):
        reader.options(namesrv=broker.namesrv, subscribe=orders).load().count()


def test_a_name_server_that_does_not_answer_is_named(read: Read) -> None:
    options = {"subscribe": "x", "fetchOffset.numRetries": "0"}
    with pytest.raises(Exception, match=r"127\.0\.0\.1:1 cannot be reached"):
        read(namesrv="127.0.0.1:1", **options).count()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("startingOffsets", '{"a":{"0":-3}}'),  # -1 and -2 have a meaning, others have none
        ("endingOffsets", '{"a":{"0":1.5}}'),
        ("startingOffsets", '{"a":{"0":true}}'),
        ("startingOffsets", '{"a":{"0":9223372036854775808}}'),
        ("startingOffsetsByTimestamp", '{"a":{"0":-1}}'),
        ("endingTimestamp", "9223372036854775808"),
        ("assign", '{"a":"01"}'),
        ("minPartitions", "\u00b2"),
        ("namesrv", "127.0.0.1:98760"),
    ],
)
def test_numbers_that_cannot_be_meant_are_refused(name: str, text: str) -> None:
    given = {"namesrv": "127.0.0.1:9876"} | ({} if name == "assign" else {"subscribe": "a"})
    with pytest.raises(OptionError, match=f"^option {name} is .* expected (?!invalid)"):
        source_options(given | {name: text}, streaming=False)


def test_a_read_that_covers_nothing_says_so(
    broker: AerobeeBroker, orders: str, caplog: pytest.LogCaptureFixture
) -> None:
    behind = {"subscribe": orders, "startingOffsets": f'{{"{orders}":{{"0":9999}}}}'}
    for given, text in (
        (behind, f"of {orders} queue 0 on .* begins at 9999, behind its end"),
        ({"subscribePattern": "no-such-.*"}, "no topic of this cluster matches no-such-"),
    ):
        caplog.clear()
        given = {"namesrv": broker.namesrv} | given
        plan_batch(source_options(given, streaming=False))
        assert re.search(text, caplog.text)
        with pytest.raises(OptionError, match=text):
            plan_batch(source_options(given | {"failOnNoMatch": "true"}, streaming=False))


def test_a_table_whose_options_spark_would_lose_is_refused_when_it_is_made(
    spark: SparkSession, broker: AerobeeBroker, orders: str
) -> None:
    options = f"USING aerobee OPTIONS (namesrv '{broker.namesrv}', subscribe '{orders}')"
    with pytest.raises(Exception, match="Use CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE kept {options}")
    assert not spark.catalog.tableExists("kept")
    spark.sql(f"CREATE TEMPORARY VIEW shown {options}")
    assert spark.table("shown").count() == spark.sql("SELECT value FROM shown").count() > 0


def test_a_table_with_columns_of_its_own_says_when_read_why_it_cannot_be(
    spark: SparkSession, orders: str
) -> None:
    spark.sql(
        f"CREATE TABLE columns_kept (value binary) USING aerobee OPTIONS (subscribe '{orders}')"
    )
    try:
        with pytest.raises(Exception, match="Use CREATE TEMPORARY VIEW"):
            spark.table("columns_kept").count()
    finally:
        spark.sql("DROP TABLE columns_kept")


@pytest.mark.parametrize("columns", ["offset", "broker,offset,topic,partition", "offset,tags"])
def test_places_of_messages_are_reported_without_reading_one(
    broker: AerobeeBroker, orders: str, columns: str
) -> None:
    readings = Readings(broker.namesrv)
    given = {"namesrv": broker.namesrv, "subscribe": orders, "columns": columns}
    options = source_options(given, streaming=False)
    names = tuple(columns.split(","))
    plan = replace(TopicPlan.of(options, names), report_to=readings.address)
    asked = plan_batch(options).ranges
    found = [
        row
        for one in asked
        for batch in read_range(one, plan, arrow_schema(names))
        for row in batch.to_pylist()
    ]
    expected = topic_rows(broker.namesrv, orders, names)
    for row in expected:
        row |= {"broker": asked[0].key.broker} if "broker" in names else {}
    assert sorted(map(repr, found)) == sorted(map(repr, expected)) and len(found) == 500
    assert (readings.take()["bytes"] > 0) == ("tags" in names)
    readings.close()


@pytest.mark.parametrize("columns", [("offset",), ("offset", "tags")])
def test_places_that_a_queue_does_not_have_are_data_loss_as_in_any_read(
    broker: AerobeeBroker, orders: str, columns: tuple[str, ...]
) -> None:
    options = source_options({"namesrv": broker.namesrv, "subscribe": orders}, streaming=False)
    plan = TopicPlan.of(options, columns)
    wanted = replace(plan_batch(options).ranges[0], start=120, end=130)
    with pytest.raises(DataLoss, match=r"offsets 125 to 129 .* the queue ends at 125"):
        list(read_range(wanted, plan, arrow_schema(columns)))
    tolerant = replace(plan, pull=replace(plan.pull, fail_on_data_loss=False))
    batches = list(read_range(wanted, tolerant, arrow_schema(columns)))
    assert [row["offset"] for one in batches for row in one.to_pylist()] == list(range(120, 125))
