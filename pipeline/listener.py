"""Metrics of streams that read topics, from Spark's progress reports: lag, rows, bytes, waits."""

import json
from collections.abc import Sequence
from typing import Any

from pyspark.sql.streaming import StreamingQueryListener

from aerobee.pipeline.figures import Exporter, OpenTelemetry, Prometheus
from aerobee.pipeline.source.stream_reader import LAG_SECONDS, READ, WAITED

Table = dict[str, dict[str, Any]]


class MetricsListener(StreamingQueryListener):  # type: ignore[misc]
    """`spark.streams.addListener(MetricsListener([Prometheus(registry), OpenTelemetry()]))`;
    `export_metrics` does it all.

    The lag is what the brokers held beyond a batch when it was planned. Spark 4.1 does not ask a
    Python source for that; there the other figures are shown.
    """

    def __init__(self, exporters: Sequence[Exporter]) -> None:
        self._exporters = exporters

    def onQueryStarted(self, event: Any) -> None: ...

    def onQueryIdle(self, event: Any) -> None: ...

    def onQueryTerminated(self, event: Any) -> None: ...

    def onQueryProgress(self, event: Any) -> None:
        progress = event.progress
        query = progress.name or str(progress.id)
        self._set("batch_seconds", (progress.batchDuration or 0) / 1000, query=query)
        for source in progress.sources:
            ends = _table(source.endOffset)
            if ends is None or not _is_ours(ends):
                continue
            self._add("rows", source.numInputRows, query=query)
            self._set("rows_per_second", source.processedRowsPerSecond or 0.0, query=query)
            self._reported(query, ends, _table(source.latestOffset) or {})

    def _reported(self, query: str, ends: Table, latest: Table) -> None:
        for address, waited_ms in latest.pop(WAITED, {}).items():
            self._add("waited_seconds", waited_ms / 1000, query=query, address=address)
        read = latest.pop(READ, {})
        self._add("read_bytes", read.get("bytes", 0), query=query)
        self._add("retries", read.get("retries", 0), query=query)
        ages = latest.pop(LAG_SECONDS, {})
        for topic, queues in ends.items():
            for queue, end in queues.items():
                labels = {"query": query, "topic": topic, "queue": queue}
                self._set("next_offset", end, **labels)
                newest = latest.get(topic, {}).get(queue)
                if newest is not None:
                    self._set("lag_messages", max(0, newest - end), **labels)
                    age = ages.get(f"{topic}/{queue}") if newest > end else 0.0
                    if age is not None:  # else the broker did not say
                        self._set("lag_seconds", age, **labels)

    def _add(self, name: str, amount: float, **labels: str) -> None:
        for exporter in self._exporters:
            exporter.add(name, amount, labels)

    def _set(self, name: str, value: float, **labels: str) -> None:
        for exporter in self._exporters:
            exporter.set(name, value, labels)


def _table(text: str | None) -> Table | None:
    """{"topic": {"queue": offset}}, as our source and Kafka's have it; None of others."""
    try:
        table = json.loads(text or "null")
    except ValueError:
        return None
    fits = isinstance(table, dict) and all(isinstance(part, dict) for part in table.values())
    return table if fits else None


def _is_ours(ends: Table) -> bool:
    """Our queues have their broker's name before their number; Kafka's partitions have none."""
    return all(":" in queue for queues in ends.values() for queue in queues)


def export_metrics(spark: Any, port: int | None = None, *, otel: Any = None) -> Any:
    """Figures of all streams of the session.

    Args:
        port: where to serve them for Prometheus; None: only in the registry that is returned.
        otel: True, or a MeterProvider: also by OpenTelemetry (aerobee[otel]).
    """
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    exporters: list[Exporter] = [Prometheus(registry)]
    if otel:
        exporters.append(OpenTelemetry(None if otel is True else otel))
    spark.streams.addListener(MetricsListener(exporters))
    if port is not None:
        start_http_server(port, registry=registry)
    return registry
