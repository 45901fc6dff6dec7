"""Streams show their lag and rows to Prometheus, by a listener."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from peers.aerobee_broker import AerobeeBroker
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamReader
from spark.helpers import create_topic, numbers, produce

from aerobee.spark import export_metrics

HAS_LAG = hasattr(DataSourceStreamReader, "getDefaultReadLimit")


@pytest.mark.timeout(400)
def test_a_stream_shows_rows_offsets_and_the_lag_of_each_queue(
    spark: SparkSession, broker: AerobeeBroker, tmp_path: Path
) -> None:
    create_topic(broker.broker, "watched", 1)
    produce(broker.namesrv, "watched", numbers(50))
    registry = export_metrics(spark)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"aerobee_stream_{name}", {"query": "seen", **labels})

    source = (
        spark.readStream.format("aerobee")
        .options(namesrv=broker.namesrv, subscribe="watched", startingOffsets="earliest")
        .options(maxOffsetsPerTrigger="20", availableNow="false")
        .load()
    )
    writer = source.writeStream.format("noop").queryName("seen")
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    try:
        deadline = time.monotonic() + 200
        while value("rows_total") != 50 and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        query.stop()
    assert value("rows_total") == 50
    (queue,) = {
        sample.labels["queue"]
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == "aerobee_stream_next_offset"
    }
    assert value("next_offset", topic="watched", queue=queue) == 50
    if HAS_LAG:
        assert value("lag_messages", topic="watched", queue=queue) == 0
