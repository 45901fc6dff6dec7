"""DataFrames written to topics: rows as messages, at least once and exactly once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from peers.aerobee_broker import AerobeeBroker
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceStreamReader
from spark.helpers import (
    create_topic,
    numbers,
    produce,
    start_script,
    topic_rows,
    topic_values,
)
from spark.kills import kill_group, kill_worker, wait_until

from aerobee.protocol.files.java_hash import java_hash

DRIVER = Path(__file__).with_name("sink_driver.py")


def save(frame: DataFrame, broker: AerobeeBroker, **options: str) -> None:
    frame.write.format("aerobee").option("namesrv", broker.namesrv).options(**options).mode(
        "append"
    ).save()


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_rows_become_messages_with_keys_tags_and_properties(
    spark: SparkSession, broker: AerobeeBroker, guarantee: str
) -> None:
    topic = f"written-{guarantee}"
    frame = spark.range(100).selectExpr(
        "lpad(id, 6, '0') as value",
        "concat('k', id) as key",
        "if(id % 2 = 0, 'even', null) as tags",
        "map('color', 'red', 'WAIT', 'false', 'CLUSTER', 'other') as properties",
        "cast(id % 2 as int) as partition",
        "cast(id as int) as flag",
    )
    save(frame, broker, topic=topic, deliveryGuarantee=guarantee)
    rows = topic_rows(
        broker.namesrv, topic, ["value", "key", "tags", "properties", "partition", "flag"]
    )
    assert len(rows) == 100
    for row in rows:
        number = int(row["value"])
        assert row["key"] == b"k%d" % number and row["flag"] == number
        assert row["tags"] == ("even" if number % 2 == 0 else None)
        assert row["partition"] == number % 2
        assert row["properties"]["color"] == "red" and "UNIQ_KEY" in row["properties"]
        assert "WAIT" not in row["properties"]
        assert row["properties"].get("CLUSTER") != "other"


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_a_key_has_one_queue_the_sdks_and_its_rows_keep_their_order(
    spark: SparkSession, broker: AerobeeBroker, guarantee: str
) -> None:
    topic = f"keyed-{guarantee}"
    create_topic(broker.broker, topic, 4)
    frame = (
        spark.range(4000)
        .coalesce(1)
        .selectExpr("lpad(id, 6, '0') as value", "concat('order-', id % 50) as key")
    )
    save(frame, broker, topic=topic, deliveryGuarantee=guarantee, maxBatchBytes="4096")
    seen: dict[bytes, list[int]] = {}
    rows = topic_rows(broker.namesrv, topic, ["value", "key", "partition", "offset"])
    for row in sorted(rows, key=lambda row: (row["partition"], row["offset"])):
        assert row["partition"] == abs(java_hash(row["key"].decode())) % 4
        seen.setdefault(row["key"], []).append(int(row["value"]))
    assert len(seen) == 50
    assert all(order == sorted(order) and len(order) == 80 for order in seen.values())


@pytest.mark.skipif(
    not hasattr(DataSourceStreamReader, "getDefaultReadLimit"), reason="Spark 4.1 has no batches"
)
def test_small_batches_without_keys_fill_the_queues_evenly(
    spark: SparkSession, broker: AerobeeBroker, tmp_path: Path
) -> None:
    create_topic(broker.broker, "even-in", 1)
    create_topic(broker.broker, "even-out", 4)
    produce(broker.namesrv, "even-in", numbers(80))
    source = (
        spark.readStream.format("aerobee")
        .options(namesrv=broker.namesrv, subscribe="even-in", startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", 10)
        .load()
        .select("value")
    )
    writer = (
        source.writeStream.format("aerobee")
        .options(namesrv=broker.namesrv, topic="even-out", deliveryGuarantee="exactly-once")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    writer.trigger(availableNow=True).start().awaitTermination()
    rows = topic_rows(broker.namesrv, "even-out", ["partition"])
    assert Counter(row["partition"] for row in rows) == dict.fromkeys(range(4), 20)


def test_a_column_says_the_topic_unless_the_option_does(
    spark: SparkSession, broker: AerobeeBroker
) -> None:
    frame = spark.range(10).selectExpr(
        "cast(id as string) as value", "concat('split-', id % 2) as topic"
    )
    save(frame, broker)
    assert topic_values(broker.namesrv, "split-0") == Counter(b"%d" % n for n in range(0, 10, 2))
    assert topic_values(broker.namesrv, "split-1") == Counter(b"%d" % n for n in range(1, 10, 2))


def test_topics_by_column_are_written_exactly_once_where_no_broker_makes_topics(
    spark: SparkSession, own_broker: Callable[..., AerobeeBroker]
) -> None:
    broker = own_broker(autoCreateTopicEnable="false")
    create_topic(broker.broker, "made", 1)
    frame = spark.range(3).selectExpr("cast(id as string) as value", "'made' as topic")
    save(frame, broker, deliveryGuarantee="exactly-once")
    assert topic_values(broker.namesrv, "made") == Counter([b"0", b"1", b"2"])
    unmade = frame.selectExpr("value", "'unmade' as topic")
    with pytest.raises(Exception, match="unmade"):
        save(unmade, broker, deliveryGuarantee="exactly-once")


def test_what_was_read_can_be_written_as_it_is(spark: SparkSession, broker: AerobeeBroker) -> None:
    produce(broker.namesrv, "origin", numbers(50), tag="t")
    origin = spark.read.format("aerobee").options(namesrv=broker.namesrv, subscribe="origin").load()
    save(origin, broker, topic="copied")
    names = ["value", "key", "tags", "properties"]
    ignored = ("UNIQ_KEY", "MSG_REGION", "TRACE_ON", "CLUSTER")

    def plain(topic: str) -> list[str]:
        rows = topic_rows(broker.namesrv, topic, names)
        for row in rows:
            row["properties"] = {k: v for k, v in row["properties"].items() if k not in ignored}
        return sorted(map(str, rows))

    assert plain("copied") == plain("origin") and len(plain("copied")) == 50


@pytest.mark.parametrize(
    ("columns", "options", "complaint"),
    [
        ("id as value", {"topic": "t"}, "column value is a bigint, expected binary or string"),
        ("'x' as body", {"topic": "t"}, "no column value"),
        ("'x' as value", {}, "which topic to write to is missing"),
        ("'x' as value, 1 as color", {"topic": "t"}, "column color cannot be written"),
        ("'x' as value", {"topic": "t", "deliveryGuarantee": "twice"}, "at-least-once or exactly"),
        ("'x' as value", {"topic": "t", "acks": "all"}, "there is no option acks"),
        ("'x' as value", {"topic": "t", "txnAppId": "a"}, "txnAppId and txnVersion go together"),
        ("'x' as value", {"topic": "t", "txnAppId": "a b"}, "expected letters, digits and dashes"),
        ("'x' as value, 9 as partition", {"topic": "t"}, "no queue 9"),
        ("cast(null as string) as value", {"topic": "t"}, "a row's value is null"),
        ("'x' as value", {"topic": "SCHEDULE_TOPIC_XXXX"}, "forbidden"),
    ],
)
def test_every_wrong_write_is_refused_with_a_sentence(
    spark: SparkSession,
    broker: AerobeeBroker,
    columns: str,
    options: dict[str, str],
    complaint: str,
) -> None:
    frame = spark.range(1).selectExpr(*columns.split(", "))
    with pytest.raises(Exception) as raised:
        save(frame, broker, **options)
    assert complaint in str(raised.value)


def test_a_write_that_is_done_again_under_its_name_and_number_is_published_once(
    spark: SparkSession, broker: AerobeeBroker
) -> None:
    frame = spark.range(20).selectExpr("cast(id as string) as value")
    for version in ("0", "0", "1", "0"):
        options = {"txnAppId": "totals-v1", "txnVersion": version}
        save(frame, broker, topic="totals", deliveryGuarantee="exactly-once", **options)
    assert topic_values(broker.namesrv, "totals") == Counter([b"%d" % n for n in range(20)] * 2)


def test_overwriting_a_topic_is_refused(spark: SparkSession, broker: AerobeeBroker) -> None:
    frame = spark.range(1).selectExpr("'x' as value")
    writer = frame.write.format("aerobee").options(namesrv=broker.namesrv, topic="t")
    with pytest.raises(Exception, match="cannot be overwritten"):
        writer.mode("overwrite").save()


def test_a_failed_exactly_once_write_leaves_nothing_visible(
    spark: SparkSession, broker: AerobeeBroker
) -> None:
    create_topic(broker.broker, "whole", 2)
    frame = spark.range(0, 1000, 1, 4).selectExpr(
        "if(id = 999, raise_error('on purpose'), cast(id as string)) as value"
    )
    for guarantee in ("at-least-once", "exactly-once"):
        with pytest.raises(Exception, match="on purpose"):
            save(frame, broker, topic=f"whole-{guarantee}", deliveryGuarantee=guarantee)
    assert topic_values(broker.namesrv, "whole-exactly-once") == Counter()
    assert sum(topic_values(broker.namesrv, "whole-at-least-once").values()) > 0


@pytest.mark.timeout(900)  # it starts Spark again and again
def test_every_row_is_there_once_after_kills_of_driver_worker_and_broker(
    own_broker: Callable[..., AerobeeBroker], tmp_path: Path
) -> None:
    """At least once in the same run: nothing is missing there, but rows come twice."""
    broker = own_broker()
    for topic in ("in", "alo", "eo"):
        create_topic(broker.broker, topic, 2)
    rows = numbers(1600)
    for queue_id in range(2):
        produce(broker.namesrv, "in", rows[queue_id::2], queue_id=queue_id)
    settings = {
        "master": "local[2,4]",  # a task may fail three times
        "namesrv": broker.namesrv,
        "checkpoints": str(tmp_path / "checkpoints"),
        "limit": 400,
        "pause_ms": 3,
    }

    def written() -> int:
        return sum(topic_values(broker.namesrv, "alo").values())

    driver = start_script(DRIVER, settings)
    try:
        assert wait_until(lambda: written() >= 150, driver, 300)  # in the middle of a batch
    finally:
        kill_group(driver)
    for _ in range(3):
        driver = start_script(DRIVER, settings)
        try:
            assert wait_until(lambda: written() >= 550, driver, 300)
            assert kill_worker(driver), "there was no worker to kill"
            assert wait_until(lambda: written() >= 1000, driver, 300)
            broker.kill_and_start()
            output, _ = driver.communicate(timeout=300)
        finally:
            if driver.poll() is None:
                kill_group(driver)
        if "Python worker failed to connect back" not in output:  # Spark waits 10 s, no longer
            break
    assert "complete" in output, output[-3000:]
    assert topic_values(broker.namesrv, "eo") == Counter(rows)
    at_least = topic_values(broker.namesrv, "alo")
    assert set(at_least) == set(rows) and sum(at_least.values()) > len(rows)
