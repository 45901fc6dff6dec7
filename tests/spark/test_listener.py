"""Streams show their lag, rows and bytes in Spark's progress, to Prometheus and OpenTelemetry."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from peers.aerobee_broker import AerobeeBroker
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamReader
from spark.helpers import create_topic, group_offsets, numbers, produce

from aerobee.pipeline.listener import MetricsListener
from aerobee.pipeline.source.readings import Readings, reported
from aerobee.spark import export_metrics

HAS_LAG = hasattr(DataSourceStreamReader, "getDefaultReadLimit")


class Notes:
    """An exporter that remembers."""

    def __init__(self) -> None:
        self.found: dict[str, float] = {}

    def add(self, name: str, amount: float, labels: Mapping[str, str]) -> None:
        self.found[f"{name} {labels.get('topic', '')}"] = amount

    set = add


def seen(end: str, latest: str) -> dict[str, float]:
    """The figures of a progress report of one source."""
    notes = Notes()
    source = SimpleNamespace(endOffset=end, latestOffset=latest, numInputRows=1)
    source.processedRowsPerSecond = 1.0
    progress = SimpleNamespace(name="q", id="1", batchDuration=1000, sources=[source])
    MetricsListener([notes]).onQueryProgress(SimpleNamespace(progress=progress))
    return notes.found


def test_figures_are_of_our_sources_and_no_lag_is_made_up() -> None:
    assert set(seen('{"orders": {"0": 5}}', '{"orders": {"0": 9}}')) == {"batch_seconds "}  # Kafka
    latest = '{"orders": {"b:0": 9}, "(lag seconds)": {"orders/b:0": 2.5}}'
    assert seen('{"orders": {"b:0": 5}}', latest)["lag_seconds orders"] == 2.5
    assert seen('{"orders": {"b:0": 9}}', latest)["lag_seconds orders"] == 0.0
    unknown = seen('{"orders": {"b:0": 5}}', '{"orders": {"b:0": 9}}')
    assert unknown["lag_messages orders"] == 4 and "lag_seconds orders" not in unknown


def until(check: Callable[[], bool], seconds: float = 200) -> bool:
    deadline = time.monotonic() + seconds
    while not check() and time.monotonic() < deadline:
        time.sleep(0.1)
    return check()


@pytest.mark.timeout(400)
def test_a_stream_shows_rows_bytes_offsets_and_the_lag_of_each_queue(
    spark: SparkSession, broker: AerobeeBroker, tmp_path: Path
) -> None:
    create_topic(broker.broker, "watched", 1)
    produce(broker.namesrv, "watched", numbers(50))
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    registry = export_metrics(spark, otel=provider)

    def value(name: str, **labels: str) -> float:
        found = registry.get_sample_value(f"aerobee_stream_{name}", {"query": "seen", **labels})
        return found or 0.0

    source = (
        spark.readStream.format("aerobee")
        .options(namesrv=broker.namesrv, subscribe="watched", startingOffsets="earliest")
        .options(maxOffsetsPerTrigger="20", availableNow="false", groupId="watchers")
        .load()
    )
    writer = source.writeStream.format("noop").queryName("seen")
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    try:
        assert until(lambda: value("rows_total") == 50)
        produce(broker.namesrv, "watched", numbers(1))  # bytes are told with the next batch
        assert until(lambda: value("rows_total") == 51)
        reports = [report.sources[0] for report in query.recentProgress]
    finally:
        query.stop()
    (queue,) = {
        sample.labels["queue"]
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == "aerobee_stream_next_offset"
    }
    assert value("next_offset", topic="watched", queue=queue) == 51
    assert group_offsets(broker.broker, "watchers", "watched", 1)[0] >= 50
    if HAS_LAG:
        assert value("lag_messages", topic="watched", queue=queue) == 0
        assert value("read_bytes_total") > 50 * 100
        lags = [json.loads(report.latestOffset).get("(lag seconds)") for report in reports]
        assert lags[0][f"watched/{queue}"] > 0 and lags[-1] is None
    assert _otel_sum(reader, "aerobee.stream.rows", "seen") == 51
    provider.shutdown()


def _otel_sum(reader: InMemoryMetricReader, name: str, query: str) -> float:
    data: Any = reader.get_metrics_data()
    return sum(
        float(point.value)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
        if metric.name == name and point.attributes["query"] == query
    )


def test_what_tasks_tell_is_summed_and_noise_is_passed_over() -> None:
    readings = Readings("127.0.0.1:9876")
    for count in (1, 2):
        with reported(readings.address, {"bytes": count, "retries": 1, "waited_ms": 5}):
            pass
    with reported(readings.address, {"hello": "there"}):
        pass
    assert readings.take() == {"bytes": 3, "retries": 2, "waited_ms": 10}
    assert readings.take() == {"bytes": 0, "retries": 0, "waited_ms": 0}
    readings.close()
    with reported(("127.0.0.1", 1), {"bytes": 1}):
        pass  # no listener: silently ignored
