"""The figures of a kept table for Prometheus."""

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server


class TableMetrics:
    """Served at `port` while the process lives; without a port nothing is served."""

    def __init__(self, port: int | None, title: str) -> None:
        registry = CollectorRegistry()

        def gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Any:
            return Gauge(f"aerobee_table_{name}", text, labels, registry=registry)

        self._rows = Counter("aerobee_table_rows", "Rows added by this run.", registry=registry)
        self._commits = Counter("aerobee_table_commits", "Commits of this run.", registry=registry)
        self._fresh = gauge("freshness_seconds", "Age of a commit's oldest message when visible.")
        self._seconds = gauge("trigger_seconds", "How long the last trigger took.")
        self._complete = gauge(
            "complete_until_timestamp_seconds",
            "All that was stored before is in the table; grows old when the job is stuck.",
        )
        self._small = gauge("small_files", "Small files that wait for a merge.")
        self._lag = gauge("lag_messages", "Stored, not in the table yet.", ("topic", "queue"))
        if port is not None:
            start_http_server(port, registry=registry)

    def complete(self, at: float) -> None:
        self._complete.set(at)

    def show(self, commit: Any) -> None:
        self._rows.inc(commit.rows)
        self._commits.inc()
        self._fresh.set(commit.fresh)
        self._seconds.set(commit.seconds)
        self._small.set(commit.small_files)
        for topic, queues in commit.lag.items():
            for queue, count in queues.items():
                self._lag.labels(topic, queue).set(count)
