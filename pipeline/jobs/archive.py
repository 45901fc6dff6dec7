"""archive: topics to a table partitioned by topic and date; goes on where it stopped."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aerobee.pipeline.columns import DEFAULT_COLUMNS, spark_ddl
from aerobee.pipeline.jobs.leftovers import cleaned
from aerobee.pipeline.jobs.progress import follow_query
from aerobee.pipeline.jobs.session import CATALOG

CHECKPOINT: Final = "_checkpoint"  # Spark's readers pass over names that begin with _
TABLE: Final = f"{CATALOG}.messages"


@dataclass(frozen=True, slots=True)
class Archive:
    """What to keep, where and how."""

    namesrv: str
    out: str
    topics: str | None = None
    pattern: str | None = None
    table_format: str = "parquet"
    starting: str = "earliest"
    rows_per_batch: int = 500_000
    every: str | None = None  # None: all there is now, then end
    group: str | None = None
    fail_on_data_loss: bool = True


def archive(spark: Any, job: Archive) -> int:
    """How many messages this run added."""
    reader = (
        spark.readStream.format("aerobee")
        .option("namesrv", job.namesrv)
        .option("startingOffsets", job.starting)
        .option("failOnDataLoss", str(job.fail_on_data_loss).lower())
    )
    if job.every or stream_limits_known():  # else the limit would end the run, not the batch
        reader = reader.option("maxOffsetsPerTrigger", job.rows_per_batch)
        reader = reader.option("availableNow", str(job.every is None).lower())
    if job.group:
        reader = reader.option("groupId", job.group)
    chosen = ("subscribe", job.topics) if job.topics else ("subscribePattern", job.pattern or ".*")
    messages = reader.option(*chosen).load().selectExpr("*", "to_date(timestamp) as date")
    writer = messages.writeStream.option("checkpointLocation", os.path.join(job.out, CHECKPOINT))
    if job.every:
        writer = writer.trigger(processingTime=job.every)
    else:
        writer = writer.trigger(availableNow=True)
    if job.table_format != "parquet" or "://" in job.out:  # others name their files in a commit
        return follow_query(_start(spark, writer, job), "archive")
    with cleaned(Path(job.out)):
        return follow_query(_start(spark, writer, job), "archive")


def stream_limits_known() -> bool:
    """Whether Spark tells a reader its limits: from 4.2 on."""
    from pyspark.sql.datasource import DataSourceStreamReader

    return hasattr(DataSourceStreamReader, "getDefaultReadLimit")


def _start(spark: Any, writer: Any, job: Archive) -> Any:
    if job.table_format == "iceberg":
        columns = spark_ddl(DEFAULT_COLUMNS)
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {TABLE} ({columns}, `date` date) USING iceberg "
            "PARTITIONED BY (topic, `date`)"
        )
        return writer.format("iceberg").option("fanout-enabled", "true").toTable(TABLE)
    return writer.format(job.table_format).partitionBy("topic", "date").start(job.out)


def read_archive(spark: Any, path: str, table_format: str) -> Any:
    """The archived messages as a DataFrame."""
    if table_format == "iceberg":
        return spark.table(TABLE)
    reader = spark.read.format(table_format)
    if table_format == "parquet":  # else Spark would take a topic named 007 for the number 7
        reader = reader.schema(f"{spark_ddl(DEFAULT_COLUMNS)}, `date` date")
    return reader.load(path)
