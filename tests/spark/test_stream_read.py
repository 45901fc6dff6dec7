"""Topics as streams: exact rows, restarts, limits, AvailableNow, lag, lost data."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from peers.aerobee_broker import AerobeeBroker
from peers.wire import Wire
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceStreamReader
from spark.helpers import create_topic, group_offsets, numbers, produce
from spark.trimming import trim_oldest_file

from aerobee.pipeline.options import OptionError, check_limit, source_options
from aerobee.pipeline.source.stream_reader import TopicStream

Stream = Callable[..., DataFrame]
HAS_LIMITS = hasattr(DataSourceStreamReader, "getDefaultReadLimit")


@pytest.fixture
def stream(spark: SparkSession, broker: AerobeeBroker) -> Stream:
    def load(**options: Any) -> DataFrame:
        given = {"namesrv": broker.namesrv, "startingOffsets": "earliest"} | options
        return spark.readStream.format("aerobee").options(**given).load()

    return load


class Sinkhole:
    """A foreachBatch target that remembers each batch's rows."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, list[bytes]]] = []

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        rows = [bytes(row.value) for row in frame.select("value").collect()]
        self.batches.append((batch_id, rows))

    def rows(self) -> list[bytes]:
        return sorted(row for _, batch in self.batches for row in batch)

    def sizes(self) -> list[int]:
        return [len(batch) for _, batch in self.batches]


def has_come_to(sink: Sinkhole, number: int) -> bool:
    return sink.rows()[-1:] >= numbers(1, number)


def run_available(frame: DataFrame, checkpoint: Path, sink: Any) -> Any:
    query = (
        frame.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(100)
    return query


def fill(broker: AerobeeBroker, topic: str, rows: list[bytes], queues: int = 3) -> None:
    for queue_id in range(queues):
        produce(broker.namesrv, topic, rows[queue_id::queues], queue_id=queue_id)


def test_available_now_reads_all_in_bounded_batches_and_shows_the_lag(
    stream: Stream, broker: AerobeeBroker, tmp_path: Path
) -> None:
    create_topic(broker.broker, "bounded", 3)
    fill(broker, "bounded", numbers(1000))
    sink = Sinkhole()
    frame = stream(subscribe="bounded", maxOffsetsPerTrigger=300, groupId="spark-bounded")
    if not HAS_LIMITS:  # Spark 4.1: such a run is one batch, and a limit would cut it off
        with pytest.raises(Exception, match="would end after maxOffsetsPerTrigger"):
            run_available(frame, tmp_path / "checkpoint", sink)
        run_available(stream(subscribe="bounded"), tmp_path / "checkpoint", sink)
        assert sink.sizes() == [1000] and sink.rows() == numbers(1000)
        return
    query = run_available(frame, tmp_path / "checkpoint", sink)
    assert sink.rows() == numbers(1000)
    assert sink.sizes() == [300, 300, 300, 100]
    assert sum(group_offsets(broker.broker, "spark-bounded", "bounded", 3)) == 1000
    latest = query.lastProgress["sources"][0]["latestOffset"]
    assert '"bounded"' in str(latest).replace("'", '"')


def test_a_running_stream_keeps_the_limit_from_its_first_batch_and_after_a_restart(
    stream: Stream, broker: AerobeeBroker, tmp_path: Path
) -> None:
    create_topic(broker.broker, "limited", 3)
    fill(broker, "limited", numbers(700))
    for upto in (300, 700):
        sink = Sinkhole()
        query = (
            stream(subscribe="limited", maxOffsetsPerTrigger=100, availableNow=False)
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(tmp_path / "c"))
            .start()
        )
        try:
            wait_until(partial(has_come_to, sink, upto - 50), query)
        finally:
            query.stop()
        assert max(sink.sizes()) <= 100


def test_a_restart_continues_from_the_checkpoint(
    stream: Stream, broker: AerobeeBroker, tmp_path: Path
) -> None:
    create_topic(broker.broker, "again", 3)
    checkpoint = tmp_path / "checkpoint"
    seen: list[bytes] = []
    for round_number in range(3):
        fill(broker, "again", numbers(100, round_number * 100))
        sink = Sinkhole()
        run_available(stream(subscribe="again"), checkpoint, sink)
        assert sink.rows() == numbers(100, round_number * 100)
        seen += sink.rows()
    assert seen == numbers(300)


def test_a_batch_that_failed_is_run_again_with_the_same_rows(
    stream: Stream, broker: AerobeeBroker, tmp_path: Path
) -> None:
    create_topic(broker.broker, "failing", 3)
    fill(broker, "failing", numbers(200))
    sink = Sinkhole()

    def fail_once(frame: DataFrame, batch_id: int) -> None:
        sink(frame, batch_id)
        raise RuntimeError("on purpose")

    with pytest.raises(Exception, match="on purpose"):
        run_available(stream(subscribe="failing"), tmp_path / "c", fail_once)
    fill(broker, "failing", numbers(50, 200))
    for _ in range(2):  # Spark 4.1 ends the first run after the batch that it runs again
        run_available(stream(subscribe="failing"), tmp_path / "c", sink)
    first, again, rest = sink.batches
    assert first[0] == again[0] and sorted(first[1]) == sorted(again[1]) == numbers(200)
    assert sorted(rest[1]) == numbers(50, 200)


def test_a_running_stream_sees_new_messages_and_new_queues(
    stream: Stream, broker: AerobeeBroker, tmp_path: Path
) -> None:
    create_topic(broker.broker, "growing", 1)
    sink = Sinkhole()
    query = (
        stream(subscribe="growing")
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        produce(broker.namesrv, "growing", numbers(10), queue_id=0)
        wait_until(lambda: sink.rows() == numbers(10), query)
        produce(broker.namesrv, "growing", numbers(10, 10), queue_id=0)
        wait_until(lambda: sink.rows() == numbers(20), query)
    finally:
        query.stop()
    create_topic(broker.broker, "growing", 3)
    fill(broker, "growing", numbers(30, 20))
    # The stop may have come before the last batch was marked as done: then it is run again, and on
    # Spark 4.1 that is all that an AvailableNow run does.
    for _ in range(1 if HAS_LIMITS else 2):
        run_available(stream(subscribe="growing"), tmp_path / "c", sink)
    assert sorted(set(sink.rows())) == numbers(50)


def wait_until(check: Callable[[], bool], query: Any, seconds: float = 40) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.05)


def test_a_new_stream_begins_with_the_next_message_by_default(
    spark: SparkSession, broker: AerobeeBroker, tmp_path: Path
) -> None:
    create_topic(broker.broker, "late", 1)
    produce(broker.namesrv, "late", numbers(10))
    sink = Sinkhole()
    reader = spark.readStream.format("aerobee").option("namesrv", broker.namesrv)
    query = (
        reader.option("subscribe", "late")
        .load()
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(tmp_path / "c"))
        .start()
    )
    try:
        wait_until(lambda: query.lastProgress is not None, query)
        produce(broker.namesrv, "late", numbers(5, 10))
        wait_until(lambda: sink.rows() == numbers(5, 10), query)
    finally:
        query.stop()


def test_too_few_messages_wait_for_the_delay(
    stream: Stream, broker: AerobeeBroker, tmp_path: Path
) -> None:
    create_topic(broker.broker, "few", 1)
    produce(broker.namesrv, "few", numbers(5))
    sink = Sinkhole()
    query = (
        stream(subscribe="few", minOffsetsPerTrigger=10, maxTriggerDelay="1h")
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(processingTime="50 milliseconds")
        .start()
    )
    try:
        time.sleep(3)
        assert sink.rows() == []
        produce(broker.namesrv, "few", numbers(5, 5))
        wait_until(lambda: sink.rows() == numbers(10), query)
    finally:
        query.stop()


@pytest.mark.parametrize("fail", [True, False])
def test_messages_trimmed_under_the_reader_fail_it_or_are_left_out(
    spark: SparkSession,
    own_broker: Callable[..., AerobeeBroker],
    tmp_path: Path,
    fail: bool,
) -> None:
    broker = own_broker(mappedFileSizeCommitLog="65536")
    create_topic(broker.broker, "trimmed", 1)
    rows = [b"%06d" % n + b"." * 500 for n in range(400)]
    produce(broker.namesrv, "trimmed", rows[:20])
    sink = Sinkhole()
    options = {"namesrv": broker.namesrv, "subscribe": "trimmed", "startingOffsets": "earliest"}

    def frame() -> DataFrame:
        reader = spark.readStream.format("aerobee").options(**options)
        return reader.option("failOnDataLoss", str(fail)).load()

    run_available(frame(), tmp_path / "c", sink)
    assert sink.rows() == rows[:20]
    produce(broker.namesrv, "trimmed", rows[20:])
    kept_from = trim_oldest_file(broker, "trimmed", 0)
    assert kept_from > 20
    if fail:
        with pytest.raises(Exception, match=r"are gone.*failOnDataLoss=false"):
            run_available(frame(), tmp_path / "c", sink)
    else:
        run_available(frame(), tmp_path / "c", sink)
        assert sink.rows() == rows[:20] + rows[kept_from:]


@pytest.mark.parametrize("fail", [True, False])
def test_a_topic_that_was_recreated_is_reported_and_then_read_from_its_beginning(
    stream: Stream, broker: AerobeeBroker, tmp_path: Path, fail: bool
) -> None:
    """Its offsets begin again, below those that the stream has read up to."""
    topic = f"remade-{fail}"
    create_topic(broker.broker, topic, 2)
    fill(broker, topic, numbers(20), 2)
    sink = Sinkhole()
    run_available(stream(subscribe=topic), tmp_path / "c", sink)
    assert sink.rows() == numbers(20)
    with Wire(broker.broker) as wire:
        assert wire.request(215, {"topic": topic}).code == 0
    create_topic(broker.broker, topic, 2)
    produce(broker.namesrv, topic, numbers(5, 20), queue_id=0)
    frame = stream(subscribe=topic, failOnDataLoss=fail)
    if fail:
        with pytest.raises(Exception, match=r"ends at 5, before 10.*failOnDataLoss=false"):
            run_available(frame, tmp_path / "c", sink)
        return
    for _ in range(1 if HAS_LIMITS else 2):  # Spark 4.1: such a run is one batch
        run_available(frame, tmp_path / "c", sink)
    assert sink.rows() == numbers(25)
    produce(broker.namesrv, topic, numbers(3, 25), queue_id=1)
    run_available(stream(subscribe=topic), tmp_path / "c", sink)
    assert sink.rows() == numbers(28)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"subscribe": "x", "endingOffsets": "latest"}, "a stream has no end"),
        ({"path": "/tmp"}, "option path reads files once"),
        ({"subscribe": "x", "maxOffsetsPerTrigger": "none"}, "a whole number of at least 1"),
        ({"subscribe": "x", "maxTriggerDelay": "soon"}, "a time like 500ms"),
    ],
)
def test_wrong_options_of_a_stream_are_refused(
    stream: Stream, tmp_path: Path, options: dict[str, str], complaint: str
) -> None:
    with pytest.raises(Exception) as raised:
        run_available(stream(**options), tmp_path / "c", Sinkhole())
    assert complaint in str(raised.value)


def test_a_limit_that_spark_does_not_keep_is_refused_unless_the_run_has_no_end() -> None:
    given = {"namesrv": "127.0.0.1:9876", "subscribe": "x", "maxOffsetsPerTrigger": "10"}
    options = source_options(given, streaming=True)
    check_limit(options, spark_keeps_limits=True)
    with pytest.raises(OptionError, match=r"Spark 4\.2 or newer"):
        check_limit(options, spark_keeps_limits=False)
    running = source_options(given | {"availableNow": "false"}, streaming=True)
    check_limit(running, spark_keeps_limits=False)


def test_a_stream_that_stops_closes_the_socket_for_its_tasks_reports() -> None:
    options = source_options({"namesrv": "127.0.0.1:9876", "subscribe": "x"}, streaming=True)
    stream = TopicStream(options)
    assert stream.readings() is not None
    readings = stream._readings
    assert readings is not None and readings._socket is not None
    stream.close()
    assert readings._socket is None and stream._readings is None
