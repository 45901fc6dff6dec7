"""A driver to be killed: copies topic `in` to `alo` (at least once) and `eo` (exactly once).

Rows pass slowly, so that a kill meets a batch in the middle. Ends when both copies are complete.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession
from spark.helpers import session_config


def main() -> None:
    settings = json.loads(sys.argv[1])
    builder = SparkSession.builder.master(settings["master"]).appName("sink driver")
    for key, value in (session_config() | settings.get("config", {})).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    pause = settings["pause"]

    def slowly(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for at in range(0, batch.num_rows, 20):
                time.sleep(pause)
                yield batch.slice(at, 20)

    queries = []
    for topic, guarantee in (("alo", "at-least-once"), ("eo", "exactly-once")):
        source = (
            spark.readStream.format("aerobee")
            .options(namesrv=settings["namesrv"], subscribe="in", startingOffsets="earliest")
            .option("maxOffsetsPerTrigger", settings["limit"])
            .load()
            .select("value", "tags")
        )
        writer = (
            source.mapInArrow(slowly, source.schema)
            .writeStream.format("aerobee")
            .options(namesrv=settings["namesrv"], topic=topic, deliveryGuarantee=guarantee)
            .option("maxBatchBytes", 2048)
            .option("checkpointLocation", f"{settings['checkpoints']}/{topic}")
        )
        queries.append(writer.trigger(availableNow=True).start())
    print("started", flush=True)
    for query in queries:
        query.awaitTermination()
    spark.stop()
    print("complete", flush=True)


main()
