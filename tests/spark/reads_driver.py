"""Reads topic `in` as a batch, from the store's files and as a stream, and says what it saw."""

from __future__ import annotations

import json
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceStreamReader
from spark.helpers import session_config

# From 4.2 on Spark tells a reader its limits; before, one would end the run and not the batch.
LIMITS_KNOWN = hasattr(DataSourceStreamReader, "getDefaultReadLimit")


def main() -> None:
    settings = json.loads(sys.argv[1])
    builder = SparkSession.builder.master(settings["master"]).appName("reads driver")
    for key, value in (session_config() | settings["config"]).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    namesrv = settings["namesrv"]

    def counts(frame: DataFrame) -> str:
        return f"{frame.count()} {frame.select('value').distinct().count()}"

    batch = spark.read.format("aerobee").options(namesrv=namesrv, subscribe="in").load()
    files = spark.read.format("aerobee").options(path=settings["store"], subscribe="in").load()
    said = [f"batch {counts(batch)}", f"files {counts(files)}"]
    query = (
        spark.readStream.format("aerobee")
        .options(namesrv=namesrv, subscribe="in", startingOffsets="earliest")
        .options(**({"maxOffsetsPerTrigger": 700} if LIMITS_KNOWN else {}))
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", settings["folder"] + "/checkpoint")
        .trigger(availableNow=True)
        .start(settings["folder"] + "/rows")
    )
    query.awaitTermination()
    said.append(f"stream {counts(spark.read.parquet(settings['folder'] + '/rows'))}")
    executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1  # not the driver
    print(", ".join([*said, f"hosts {executors}"]), flush=True)
    spark.stop()


main()
