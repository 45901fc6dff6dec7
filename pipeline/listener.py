"""What Spark reports of streams that read topics, for Prometheus: lag per queue, rows, waits."""

import json
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server
from pyspark.sql.streaming import StreamingQueryListener

from aerobee.pipeline.source.stream_reader import WAITED

_QUERY: Final = ("query",)


class MetricsListener(StreamingQueryListener):  # type: ignore[misc]
    """`spark.streams.addListener(MetricsListener(registry))`; `export_metrics` does it all.

    The lag is what the brokers held beyond a batch when it ended. Spark 4.1 does not ask a Python
    source for that; there the other figures are shown.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, labels: tuple[str, ...]) -> Any:
            return Gauge(f"aerobee_stream_{name}", text, labels, registry=registry)

        self._rows = Counter("aerobee_stream_rows", "Rows read.", _QUERY, registry=registry)
        self._seconds = gauge("batch_seconds", "How long the last batch took.", _QUERY)
        self._rate = gauge("rows_per_second", "Rows per second of the last batch.", _QUERY)
        lag = ("query", "topic", "queue")
        self._lag = gauge("lag_messages", "Stored, not read yet.", lag)
        self._offset = gauge("next_offset", "Where the next batch begins.", lag)
        self._waited = Counter(
            "aerobee_stream_waited_seconds",
            "Waited for brokers that were away.",
            ("query", "address"),
            registry=registry,
        )

    def onQueryStarted(self, event: Any) -> None: ...

    def onQueryIdle(self, event: Any) -> None: ...

    def onQueryProgress(self, event: Any) -> None:
        progress = event.progress
        query = progress.name or str(progress.id)
        for source in progress.sources:
            ends, latest = _offsets(source.endOffset), _offsets(source.latestOffset)
            if ends is None:
                continue  # not one of ours
            self._rows.labels(query).inc(source.numInputRows)
            self._rate.labels(query).set(source.processedRowsPerSecond or 0.0)
            for address, waited_ms in ((latest or {}).pop(WAITED, {})).items():
                self._waited.labels(query, address).inc(waited_ms / 1000)
            for topic, queues in ends.items():
                for queue, end in queues.items():
                    self._offset.labels(query, topic, queue).set(end)
                    newest = (latest or {}).get(topic, {}).get(queue)
                    if newest is not None:
                        self._lag.labels(query, topic, queue).set(max(0, newest - end))
        self._seconds.labels(query).set((progress.batchDuration or 0) / 1000)

    def onQueryTerminated(self, event: Any) -> None: ...


def _offsets(text: str | None) -> dict[str, dict[str, int]] | None:
    """{"topic": {"broker:queue": offset}} of our source; None of another's."""
    try:
        table = json.loads(text or "null")
    except ValueError:
        return None
    ours = isinstance(table, dict) and all(isinstance(part, dict) for part in table.values())
    return table if ours else None


def export_metrics(spark: Any, port: int | None = None) -> CollectorRegistry:
    """Figures of all streams of the session; served at `port`, or in the registry it returns."""
    registry = CollectorRegistry()
    spark.streams.addListener(MetricsListener(registry))
    if port is not None:
        start_http_server(port, registry=registry)
    return registry
