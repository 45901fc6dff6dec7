"""A driver to be killed: copies topic `in` to `alo` (at least once) and `eo` (exactly once).

Rows pass slowly, so that a kill meets a batch in the middle. Ends when both copies are complete; on
Spark 4.1, where an AvailableNow run is one batch, after a run that found nothing more. With the
setting `done` it copies exactly once only, without an end until that file is there.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming import StreamingQuery
from spark.helpers import await_turn, session_config

SMALL_BATCHES = {"spark.sql.execution.arrow.maxRecordsPerBatch": "20"}


def main() -> None:
    settings = json.loads(sys.argv[1])
    builder = SparkSession.builder.master(settings["master"]).appName("sink driver")
    for key, value in (session_config() | SMALL_BATCHES | settings.get("config", {})).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    if "turn" in settings:
        warm_up(spark, settings["namesrv"])
    await_turn(settings)
    if "done" in settings:
        follow(spark, settings)
    else:
        while copy(spark, settings) and not hasattr(DataSourceStreamReader, "getDefaultReadLimit"):
            pass
    spark.stop()
    print("complete", flush=True)


def warm_up(spark: SparkSession, namesrv: str) -> None:
    """Start the Python processes that every query needs."""
    with suppress(PySparkException):  # the broker may be away
        rows = spark.read.format("aerobee").options(namesrv=namesrv, subscribe="in")
        rows.option("columns", "offset").load().write.format("noop").mode("overwrite").save()


def follow(spark: SparkSession, settings: dict[str, Any]) -> None:
    """Copies what comes until the file `done` is there, and then what has come."""
    query = start(spark, settings, "eo", "exactly-once", processingTime="0 seconds")
    while not Path(settings["done"]).exists():
        query.awaitTermination(1)
    query.processAllAvailable()
    query.stop()


def copy(spark: SparkSession, settings: dict[str, Any]) -> int:
    """Runs both queries to their end; how many rows they read."""
    queries = [
        start(spark, settings, topic, guarantee, availableNow=True)
        for topic, guarantee in (("alo", "at-least-once"), ("eo", "exactly-once"))
    ]
    for query in queries:
        query.awaitTermination()
    return sum(progress.numInputRows for query in queries for progress in query.recentProgress)


def start(
    spark: SparkSession, settings: dict[str, Any], topic: str, guarantee: str, **trigger: Any
) -> StreamingQuery:
    nap = f"reflect('java.lang.Thread', 'sleep', {settings['pause_ms']}L)"
    source = (
        spark.readStream.format("aerobee")
        .options(namesrv=settings["namesrv"], subscribe="in", startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", settings["limit"])
        .option("availableNow", "false")
        .load()
        .selectExpr(f"element_at(array(value, cast({nap} as binary)), 1) as value", "tags")
    )
    writer = (
        source.writeStream.format("aerobee")
        .options(namesrv=settings["namesrv"], topic=topic, deliveryGuarantee=guarantee)
        .option("maxBatchBytes", 2048)
        .option("checkpointLocation", f"{settings['checkpoints']}/{topic}")
    )
    return writer.trigger(**trigger).start()


main()
