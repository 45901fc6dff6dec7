"""stats: messages, sizes, rates and latency per topic and hour, and the groups' lag."""

import json
from dataclasses import dataclass, field
from datetime import UTC
from typing import Any

from rich.console import Console
from rich.table import Table

from aerobee.pipeline.jobs.progress import task_progress
from aerobee.pipeline.options import CONNECTION, OptionError, Options
from aerobee.pipeline.source.queue_files import QueueReader
from aerobee.pipeline.source.store_files import StoreFiles
from aerobee.pipeline.wire import Access, Cluster
from aerobee.protocol.files.config_files import read_config
from aerobee.protocol.json import fastjson
from aerobee.protocol.json.fastjson import MessageQueue
from aerobee.protocol.wire.codes import RequestCode, ResponseCode


@dataclass(frozen=True, slots=True)
class Stats:
    """What to look at: a store's files, or topics of a running cluster."""

    store: str | None = None
    namesrv: str | None = None
    topics: str | None = None
    options: dict[str, str] = field(default_factory=dict)  # of the connection


def hourly(spark: Any, job: Stats) -> list[Any]:
    """A row per topic and hour, in that order. A rate is over the part of the hour between the
    topic's first and last message, at least a second."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    reader = spark.read.format("aerobee").option(
        "columns", "topic,timestamp,bornTimestamp,storeSize"
    )
    if job.store:
        reader = reader.option("path", job.store)
    else:
        reader = reader.options(**job.options | {"namesrv": job.namesrv})
    if job.topics:
        reader = reader.option("subscribe", job.topics)
    elif not job.store:
        reader = reader.option("subscribePattern", ".*")
    latency_ms = (f.col("timestamp").cast("double") - f.col("bornTimestamp").cast("double")) * 1000
    whole = Window.partitionBy("topic")
    covered = f.least(f.col("hour").cast("double") + 3600, f.max("last").over(whole)) - f.greatest(
        f.col("hour").cast("double"), f.min("first").over(whole)
    )
    table = (
        reader.load()
        .groupBy("topic", f.date_trunc("hour", "timestamp").alias("hour"))
        .agg(
            f.count("*").alias("messages"),
            f.min(f.col("timestamp").cast("double")).alias("first"),
            f.max(f.col("timestamp").cast("double")).alias("last"),
            f.sum("storeSize").alias("bytes"),
            f.percentile_approx(latency_ms, 0.5).alias("latency_ms_p50"),
            f.percentile_approx(latency_ms, 0.99).alias("latency_ms_p99"),
        )
        .withColumn("messages_per_second", f.col("messages") / f.greatest(f.lit(1.0), covered))
        .drop("first", "last")
        .orderBy("topic", "hour")
    )
    with task_progress(spark, "stats"):
        return [_in_utc(row) for row in table.collect()]


def _in_utc(row: Any) -> Any:
    """The row with its hour in UTC: Spark gives times without a zone, in that of the machine."""
    return type(row)(**row.asDict() | {"hour": row["hour"].astimezone(UTC)})


def store_lag(store: str) -> list[tuple[str, str, int]]:
    """(group, topic, messages behind) of a store at rest."""
    try:
        offsets = read_config(store, "consumerOffset.json").get("offsetTable", {})
    except FileNotFoundError:
        return []
    ends = {
        (queue.topic, queue.queue_id): QueueReader(queue.folder).end_offset()
        for queue in StoreFiles(store).queues
    }
    lags = []
    for name, queues in offsets.items():
        topic, _, group = name.partition("@")
        behind = sum(max(0, ends.get((topic, int(q)), 0) - int(at)) for q, at in queues.items())
        lags.append((group, topic, behind))
    return sorted(lags)


def cluster_lag(connection: dict[str, str], topics: list[str]) -> list[tuple[str, str, int]]:
    """(group, topic, messages behind) of a running cluster."""
    lags: dict[tuple[str, str], int] = {}
    with Cluster(Access.of(Options(CONNECTION, connection))) as cluster:
        for topic in topics:
            for share in cluster.route(topic) or ():
                for group in _groups(cluster, share.address, topic):
                    key = group, topic
                    lags[key] = lags.get(key, 0) + _behind(cluster, share.address, group, topic)
    return sorted((group, topic, behind) for (group, topic), behind in lags.items())


def _groups(cluster: Cluster, address: str, topic: str) -> list[str]:
    code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
    answer = cluster.request(f"asking who reads {topic}", address, code, {"topic": topic})
    return list(fastjson.loads(answer.body).get("groupList") or ()) if answer.body else []


def _behind(cluster: Cluster, address: str, group: str, topic: str) -> int:
    ext = {"consumerGroup": group, "topic": topic}
    code = RequestCode.GET_CONSUME_STATS
    what = "asking for lag"
    answer = cluster.retrying(what, (address,), lambda link: link.request(code, dict(ext)))
    if answer.code != ResponseCode.SUCCESS:
        return 0
    table = fastjson.loads(answer.body).get("offsetTable") or {}
    return sum(
        max(0, int(state["brokerOffset"]) - int(state["consumerOffset"]))
        for queue, state in table.items()
        if isinstance(queue, MessageQueue) and queue.topic == topic
    )


def lag_of(job: Stats, rows: list[Any]) -> list[tuple[str, str, int]]:
    if job.store:
        return store_lag(job.store)
    topics = sorted({row["topic"] for row in rows})
    return cluster_lag(job.options | {"namesrv": job.namesrv or ""}, topics)


def show(rows: list[Any], lags: list[tuple[str, str, int]], console: Console) -> None:
    """Two tables for people."""
    table = Table(title="messages per topic and hour (UTC)")
    for name in ("topic", "hour", "messages", "per s", "MB", "p50 ms", "p99 ms"):
        table.add_column(name, justify="left" if name in ("topic", "hour") else "right")
    for row in rows:
        table.add_row(
            row["topic"],
            f"{row['hour']:%Y-%m-%d %H:00}",
            str(row["messages"]),
            f"{row['messages_per_second']:.2f}",
            f"{row['bytes'] / 1e6:.2f}",
            _whole(row["latency_ms_p50"]),
            _whole(row["latency_ms_p99"]),
        )
    console.print(table)
    if lags:
        behind = Table(title="groups")
        behind.add_column("group")
        behind.add_column("topic")
        behind.add_column("messages behind", justify="right")
        for group, topic, count in lags:
            behind.add_row(group, topic, str(count))
        console.print(behind)


def _whole(number: float | None) -> str:
    return "-" if number is None else f"{number:.0f}"  # none has a time of birth that can be


def as_json(rows: list[Any], lags: list[tuple[str, str, int]]) -> str:
    hours = [row.asDict() | {"hour": row["hour"].isoformat()} for row in rows]
    groups = [{"group": g, "topic": t, "behind": n} for g, t, n in lags]
    return json.dumps({"hours": hours, "groups": groups}, indent=1)


def plot(rows: list[Any], path: str) -> None:
    """Messages and latency over the hours, a line per topic, as a PNG."""
    if not rows:
        raise OptionError("there is no message to plot")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (counts, latencies) = pyplot.subplots(2, 1, sharex=True, figsize=(10, 7))
    for topic in sorted({row["topic"] for row in rows}):
        own = [row for row in rows if row["topic"] == topic]
        hours = [row["hour"] for row in own]
        counts.plot(hours, [row["messages"] for row in own], marker="o", label=topic)
        latencies.plot(hours, [row["latency_ms_p99"] for row in own], marker="o", label=topic)
    counts.set_ylabel("messages per hour")
    latencies.set_ylabel("p99 born to stored, ms")
    counts.legend(loc="upper left", fontsize="small")
    figure.autofmt_xdate()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
