"""A store's files as a table: a stopped broker's, a running one's, and folders that are none."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from peers.aerobee_broker import AerobeeBroker
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from spark.helpers import create_topic, numbers, produce, topic_rows

from aerobee.pipeline import arrow
from aerobee.pipeline.options import source_options
from aerobee.pipeline.source.batch_readers import PathReader
from aerobee.pipeline.source.topic_filter import topic_filter


@pytest.fixture
def filled(own_broker: Callable[..., AerobeeBroker]) -> AerobeeBroker:
    """Two topics over several log files."""
    broker = own_broker(mappedFileSizeCommitLog="65536")
    for topic in ("red", "blue"):
        create_topic(broker.broker, topic, 2)
        produce(broker.namesrv, topic, [row + b"." * 200 for row in numbers(500)], tag=topic)
    return broker


def load(spark: SparkSession, **options: Any) -> DataFrame:
    return spark.read.format("aerobee").options(**options).load()


def test_the_files_hold_what_the_broker_gives_and_more_splits_change_nothing(
    spark: SparkSession, filled: AerobeeBroker
) -> None:
    columns = ["value", "topic", "partition", "offset", "tags", "messageId", "storeHost"]
    expected = sorted(
        str(row) for t in ("red", "blue") for row in topic_rows(filled.namesrv, t, columns)
    )
    filled.stop()
    for more in ({}, {"minPartitions": 20}, {"splitBytes": 10_000}):
        frame = load(spark, path=str(filled.store), **more).select(*columns)
        rows = [row.asDict() | {"value": bytes(row.value)} for row in frame.collect()]
        assert sorted(map(str, rows)) == expected
    assert load(spark, path=str(filled.store), minPartitions=20).rdd.getNumPartitions() >= 20


def test_topics_tags_and_times_prune_what_is_read(
    spark: SparkSession, filled: AerobeeBroker
) -> None:
    time.sleep(0.05)
    middle = round(time.time() * 1000)
    produce(filled.namesrv, "red", numbers(70), tag="late")
    filled.kill()
    path = str(filled.store)
    assert load(spark, path=path, subscribe="red").count() == 570
    assert load(spark, path=path, subscribePattern="b.*").count() == 500
    assert load(spark, path=path, subscribePattern=".*").count() == 1070
    wanted = topic_filter(None, ".*")
    assert not any(map(wanted, ("RMQ_SYS_TRANS_HALF_TOPIC", "%RETRY%g", "c_REPLY_TOPIC")))
    assert topic_filter(None, "%RETRY%.*")("%RETRY%g")
    assert load(spark, path=path, tags="late || blue").count() == 570
    assert load(spark, path=path, startingTimestamp=middle).count() == 70
    assert load(spark, path=path, endingTimestamp=middle).count() == 1000
    whole = load(spark, path=path).rdd.getNumPartitions()
    assert load(spark, path=path, startingTimestamp=middle).rdd.getNumPartitions() < whole
    pushed = load(spark, path=path, pushdown=True).where("topic = 'red' and tags = 'late'")
    assert pushed.count() == 70


def test_a_null_among_the_topics_of_a_filter_is_no_topic(
    spark: SparkSession, filled: AerobeeBroker
) -> None:
    frame = spark.read.format("aerobee").options(path=str(filled.store), pushdown=True).load()
    topic = frame.select("topic").first()
    assert topic is not None
    count = frame.where(f"topic = '{topic.topic}'").count()
    assert frame.where(f"topic in ('{topic.topic}', null)").count() == count > 0


def test_a_running_brokers_files_can_be_read(spark: SparkSession, filled: AerobeeBroker) -> None:
    assert load(spark, path=str(filled.store)).count() == 1000
    sealed = load(spark, path=str(filled.store), sealedOnly=True).count()
    assert 0 < sealed < 1000


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "holds no commitlog file"),
        ({"startingOffsets": "earliest"}, "startingOffsets has no meaning for a read by path"),
        ({"namesrv": "h:1"}, "namesrv has no meaning for a read by path"),
        ({"sql": "a = 1"}, "sql has no meaning for a read by path"),
        ({"subscribe": "a", "subscribePattern": "a"}, "not both"),
    ],
)
def test_wrong_options_are_refused(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], complaint: str
) -> None:
    with pytest.raises(Exception) as raised:
        load(spark, path=str(tmp_path), **options).count()
    assert complaint in str(raised.value)


def test_a_topic_that_the_store_does_not_have_is_an_error_as_over_tcp(
    spark: SparkSession, filled: AerobeeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    filled.stop()
    path = str(filled.store)
    with pytest.raises(Exception, match=r"topic green does not exist in the store .* blue, red"):
        load(spark, path=path, subscribe="red,green").count()
    with pytest.raises(Exception, match=r"matches gr\.\*; leave failOnNoMatch out"):
        load(spark, path=path, subscribePattern="gr.*", failOnNoMatch=True).count()
    assert load(spark, path=path, subscribePattern="gr.*").count() == 0
    options = source_options({"path": path, "subscribePattern": "gr.*"}, streaming=False)
    PathReader(options, ("value",), StructType()).partitions()
    assert "matches gr.*; set failOnNoMatch=true" in caplog.text


def test_what_a_light_queue_points_to_is_read_once(filled: AerobeeBroker) -> None:
    filled.stop()
    queues = filled.store / "consumequeue"
    shutil.copytree(queues / "red", queues / "%LMQ%light")

    def count(**topics: Any) -> int:
        return sum(batch.num_rows for batch in arrow.read_store(str(filled.store), **topics))

    assert count() == 1000
    assert count(topics=["%LMQ%light"]) == 500


def test_a_topic_without_a_message_yet_is_no_error(
    spark: SparkSession, own_broker: Callable[..., AerobeeBroker]
) -> None:
    broker = own_broker()
    create_topic(broker.broker, "empty", 1)
    produce(broker.namesrv, "full", numbers(10))
    broker.stop()
    assert load(spark, path=str(broker.store), subscribe="empty").count() == 0
