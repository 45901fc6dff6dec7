"""Topics as the tables of a catalog, and what of a query reaches the source."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from peers.aerobee_broker import AerobeeBroker
from pyspark.sql import DataFrame, SparkSession
from spark.helpers import create_topic, numbers, produce, topic_values

from aerobee.pipeline.catalog.register import PUSHDOWN
from aerobee.spark import catalog

TOPIC = "Order-events"  # with what a table of Spark's own catalog could not be named


@pytest.fixture(scope="module")
def shop(spark: SparkSession, broker: AerobeeBroker) -> SparkSession:
    """The session with the catalog; 500 messages in 4 queues."""
    create_topic(broker.broker, TOPIC, 4)
    for queue_id in range(4):
        bodies = numbers(500)[queue_id::4]
        produce(broker.namesrv, TOPIC, bodies[:75], tag="new", queue_id=queue_id)
        produce(broker.namesrv, TOPIC, bodies[75:], tag="paid", queue_id=queue_id)
    catalog(spark, broker.namesrv)
    return spark


def plan(frame: DataFrame) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        frame.explain("formatted")
    return said.getvalue()


def test_topics_are_tables(shop: SparkSession) -> None:
    found = shop.sql("SHOW TABLES IN aerobee").collect()
    assert TOPIC in {row.tableName for row in found}
    names = " ".join(row.tableName for row in found)
    assert not re.search(r"RMQ_SYS|%RETRY%|_REPLY_TOPIC|DefaultCluster|broker-a", names), names
    rows = shop.sql(f"SELECT * FROM aerobee.`{TOPIC}`").collect()
    assert sorted(bytes(row.value) for row in rows) == numbers(500)
    assert shop.table(f"aerobee.`{TOPIC}`").count() == 500
    counts = shop.sql(f"SELECT tags, count(*) n FROM aerobee.`{TOPIC}` GROUP BY 1 ORDER BY 1")
    assert [tuple(row) for row in counts.collect()] == [("new", 300), ("paid", 200)]


def test_a_topic_that_was_made_later_is_there(shop: SparkSession, broker: AerobeeBroker) -> None:
    with pytest.raises(Exception, match="topic later does not exist on this cluster; it has"):
        shop.sql("SELECT * FROM aerobee.later")
    produce(broker.namesrv, "later", numbers(3))
    assert shop.sql("SELECT count(*) FROM aerobee.later").collect()[0][0] == 3
    assert "later" in {row.tableName for row in shop.sql("SHOW TABLES IN aerobee").collect()}


QUERIES = [  # columns, condition, the columns that are read, a filter that was pushed
    ("count(*)", "tags = 'paid'", "tags:string", "EqualTo(tags,paid)"),
    ("offset", "partition IN (1, 2)", "partition:int,offset:bigint", "In(partition,"),
    ("value", "offset >= 70 AND offset < 90", "value:binary,offset:bigint", "LessThan(offset,90)"),
    ("value", "topic LIKE 'Ord%'", "value:binary,topic:string", "StringStartsWith(topic,Ord)"),
    ("value", "key = X'6B303030303037'", "key:binary,value:binary", "EqualTo(key,"),
    ("offset", "tags <> 'new'", "offset:bigint,tags:string", "Not(EqualTo(tags,new))"),
    ("tags", "timestamp > '2020-01-01'", "timestamp:timestamp,tags:string", "GreaterThan(timest"),
]


def test_columns_and_filters_reach_the_source_and_the_plan_tells(shop: SparkSession) -> None:
    shop.table(f"aerobee.`{TOPIC}`").localCheckpoint().createOrReplaceTempView("plain")
    for columns, where, read, pushed in QUERIES:
        query = f"SELECT {columns} FROM {{}} WHERE {where}"
        frame = shop.sql(query.format(f"aerobee.`{TOPIC}`"))
        shown = plan(frame)
        assert f"ReadSchema: struct<{read}>" in shown
        if pushed:
            assert pushed in shown.split("PushedFilters:")[1].splitlines()[0]
            assert "Filter (" not in shown  # Spark has nothing left to filter
        expected = shop.sql(query.format("plain")).collect()
        assert sorted(frame.collect()) == sorted(expected) != [], query


COUNTS = [  # a query's columns and its end; whether the offsets alone answer it
    ("count(*)", "", True),
    ("count(1) + 1", 'WITH (startingOffsets = \'{"Order-events": {"2": 5}}\')', True),
    ("count(*)", "WITH (tags = 'paid')", False),
    ("count(*)", "WITH (sql = 'TAGS = ''paid''')", False),
    ("count(*)", "WHERE partition = 2", False),
    ("count(tags)", "", False),
    ("count(*), max(offset)", "", False),
    ("count(*)", "GROUP BY partition", False),
    ("count(DISTINCT partition)", "", False),
]


def test_messages_are_counted_by_offsets_where_nothing_else_is_asked(shop: SparkSession) -> None:
    for columns, end, by_offsets in COUNTS:
        frame = shop.sql(f"SELECT {columns} FROM aerobee.`{TOPIC}` {end}")
        assert ("struct<messages:bigint>" in plan(frame)) == by_offsets, columns
        same = f"SELECT {columns} FROM rows {end if 'WITH' not in end else ''}"
        read = shop.read.option("pushdown", "false")
        for option in re.findall(r"(\w+) = '(.*)'\)", end):
            read = read.option(option[0], option[1].replace("''", "'"))
        read.table(f"aerobee.`{TOPIC}`").localCheckpoint().createOrReplaceTempView("rows")
        assert sorted(frame.collect()) == sorted(shop.sql(same).collect()), columns
    assert shop.table(f"aerobee.`{TOPIC}`").count() == 500


def test_an_empty_topic_counts_to_zero(shop: SparkSession, broker: AerobeeBroker) -> None:
    create_topic(broker.broker, "nothing-yet", 2)
    assert shop.table("aerobee.`nothing-yet`").count() == 0


def test_filters_leave_out_queues_and_times(shop: SparkSession) -> None:
    one = shop.sql(f"SELECT value FROM aerobee.`{TOPIC}` WHERE partition = 1")
    assert one.rdd.getNumPartitions() == 1
    assert one.count() == 125
    late = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    none = shop.sql(f"SELECT value FROM aerobee.`{TOPIC}` WHERE timestamp > '{late}'")
    assert none.count() == 0


def test_filters_are_pushed_without_an_option_and_only_where_spark_hands_them_over(
    shop: SparkSession, broker: AerobeeBroker, tmp_path: Path
) -> None:
    def frame(**options: str) -> DataFrame:
        reader = shop.read.format("aerobee").options(**options)
        return reader.load().where("partition = 1 AND tags = 'paid'").select("value")

    for given in (
        {"namesrv": broker.namesrv, "subscribe": TOPIC},
        {"path": str(broker.store), "subscribe": TOPIC},
    ):
        assert "EqualTo(tags,paid)" in plan(frame(**given))
        assert "PushedFilters" not in plan(frame(**given, pushdown="false"))
        shop.conf.set(PUSHDOWN, "false")
        try:
            assert "PushedFilters" not in plan(frame(**given))
            expected = sorted(frame(**given).collect())
        finally:
            shop.conf.set(PUSHDOWN, "true")
        assert sorted(frame(**given).collect()) == expected
        assert len(expected) == 50


def test_a_query_may_have_options_and_a_stream_reads_the_table(
    shop: SparkSession, tmp_path: Path
) -> None:
    some = shop.sql(f"SELECT value FROM aerobee.`{TOPIC}` WITH (tags = 'paid')")
    assert some.count() == 200
    query = (
        shop.readStream.option("startingOffsets", "earliest")
        .table(f"aerobee.`{TOPIC}`")
        .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "rows"), format="parquet")
    )
    query.awaitTermination()
    assert shop.read.parquet(str(tmp_path / "rows")).count() == 500


def test_rows_are_inserted_into_a_topic(shop: SparkSession, broker: AerobeeBroker) -> None:
    create_topic(broker.broker, "inserted", 2)
    shop.sql("INSERT INTO aerobee.inserted SELECT 'one' AS value, 'k' AS key")
    assert topic_values(broker.namesrv, "inserted") == {b"one": 1}


def test_what_a_catalog_of_topics_cannot_do_is_refused(shop: SparkSession) -> None:
    for statement in (f"DROP TABLE aerobee.`{TOPIC}`", "CREATE TABLE aerobee.x (value binary)"):
        with pytest.raises(Exception, match="make, change and delete them with"):
            shop.sql(statement)
    with pytest.raises(Exception, match="there is no option subscribe"):
        catalog(shop, "127.0.0.1:9876", subscribe="orders")


def test_a_second_catalog_is_of_another_cluster(
    shop: SparkSession, own_broker: Callable[..., AerobeeBroker]
) -> None:
    other = own_broker()
    produce(other.namesrv, "elsewhere", numbers(4))
    catalog(shop, other.namesrv, name="other")
    assert shop.sql("SELECT count(*) FROM other.elsewhere").collect()[0][0] == 4
    other.kill()
    with pytest.raises(Exception, match="cannot be reached"):
        shop.sql("SELECT count(*) FROM other.elsewhere")
