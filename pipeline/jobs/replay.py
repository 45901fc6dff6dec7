"""replay: archived messages sent again, by time range, at a rate, in the order they had."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

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


def replay(spark: Any, job: Replay) -> int:
    """How many messages were sent."""
    messages = selected(spark, job)
    if job.rate:  # one writer keeps the pace and the order of time
        messages = messages.orderBy("timestamp", "topic", "partition", "offset").coalesce(1)
    else:
        by_queue = messages.repartition("topic", "broker", "partition")
        messages = by_queue.sortWithinPartitions("topic", "broker", "partition", "offset")
    columns = ["value", "topic", "key", "tags", "properties", "flag"]
    if job.same_queues:
        columns.append("partition")
    writer = messages.select(*columns).write.format("aerobee").option("namesrv", job.namesrv)
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


def selected(spark: Any, job: Replay) -> Any:
    """The archive's messages of the topics and times; whole days outside them are not read."""
    from pyspark.sql import functions

    messages = read_archive(spark, job.source)
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
