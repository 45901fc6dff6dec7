"""replay: messages of a table or a store sent again, by time range, at a rate, in their order."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from aerobee.pipeline.errors import OptionError
from aerobee.pipeline.jobs.archive import read_archive
from aerobee.pipeline.jobs.progress import task_progress


@dataclass(frozen=True, slots=True)
class Replay:
    """Which messages go where."""

    source: str
    namesrv: str
    topic: str | None = None  # None: each to the topic it came from
    only: str | None = None  # of these topics, separated by commas
    start: datetime | None = None
    end: datetime | None = None
    rate: int | None = None  # messages per second
    same_queues: bool = False
    exactly_once: bool = False
    sql: str | None = None  # over the view `messages`; what it selects is sent
    dry_run: bool = False


def replay(spark: Any, job: Replay) -> int:
    """How many messages were sent; of a dry run: would be."""
    messages = selected(spark, job)
    if job.sql:
        messages = transformed(spark, messages, job.sql)
    if job.dry_run:
        with task_progress(spark, "replay"):
            return int(messages.count())
    messages = _ordered(messages, job)
    columns = ["value", "topic", "key", "tags", "properties", "flag"]
    if job.same_queues:
        columns.append("partition")
    there = [name for name in columns if name in messages.columns]
    writer = messages.select(*there).write.format("aerobee").option("namesrv", job.namesrv)
    if job.topic:
        writer = writer.option("topic", job.topic)
    if job.rate:
        writer = writer.option("rowsPerSecond", job.rate)
    if job.exactly_once:
        writer = writer.option("deliveryGuarantee", "exactly-once")
    with task_progress(spark, "replay"):
        count = messages.count()
        writer.mode("append").save()
    return int(count)


def transformed(spark: Any, messages: Any, sql: str) -> Any:
    """What the query makes of the view `messages`."""
    messages.createOrReplaceTempView("messages")
    rows = spark.sql(sql)
    if "value" not in rows.columns:
        raise OptionError(
            f"--sql selects {', '.join(rows.columns)}: a message needs a value, e.g. "
            "SELECT *, ... FROM messages"
        )
    return rows


def _ordered(messages: Any, job: Replay) -> Any:
    """In the order of time by one writer that keeps the pace, or of each queue; as far as the
    columns are still there that tell it."""
    if job.rate:
        order = _among(messages, "timestamp", "topic", "partition", "offset")
        return (messages.orderBy(*order) if order else messages).coalesce(1)
    queue = _among(messages, "topic", "broker", "partition")
    order = _among(messages, "topic", "broker", "partition", "offset")
    if "offset" not in order:
        return messages
    return messages.repartition(*queue).sortWithinPartitions(*order)


def _among(messages: Any, *names: str) -> list[str]:
    return [name for name in names if name in messages.columns]


def selected(spark: Any, job: Replay) -> Any:
    """The archive's messages of the topics and times; whole days outside them are not read."""
    from pyspark.sql import functions

    messages = _source(spark, job.source)
    column = functions.col("timestamp")
    if job.only:
        topics = [name.strip() for name in job.only.split(",")]
        messages = messages.where(functions.col("topic").isin(topics))
    # Days are counted in the zone of the archive's session, which may be a day off from UTC.
    if job.start:
        first = job.start.astimezone(UTC).date() - timedelta(days=1)
        messages = messages.where((column >= job.start) & (functions.col("date") >= first))
    if job.end:
        last = job.end.astimezone(UTC).date() + timedelta(days=1)
        messages = messages.where((column < job.end) & (functions.col("date") <= last))
    return messages


def _source(spark: Any, path: str) -> Any:
    """A table or an archive, or the files of a broker's store."""
    if not (Path(path) / "commitlog").is_dir():
        return read_archive(spark, path)
    rows = spark.read.format("aerobee").option("path", path).load()
    return rows.selectExpr("*", "to_date(timestamp) as date")
