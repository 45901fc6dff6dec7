"""A session with the jars of Delta or Iceberg: reads our tables, and archives as was once done."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from spark.helpers import archive_as_before, numbers, produce, session_config
from spark.lake_readers import DELTA_CATALOG, EXTENSIONS, PACKAGES

from aerobee.pipeline.columns import DEFAULT_COLUMNS, spark_ddl
from aerobee.pipeline.jobs.archive import PARTITION_BY, archive_place, take_over
from aerobee.pipeline.jobs.session import open_session
from aerobee.pipeline.jobs.table import TableJob, keep_table


def main() -> None:
    settings = json.loads(sys.argv[1])
    table_format, topic = settings["format"], settings["topic"]
    namesrv, folder = settings["namesrv"], Path(settings["folder"])
    spark = session(table_format, folder)
    job = TableJob(namesrv, str(folder / "kept"), topic, table_format=table_format)
    keep_table(spark, job, print)
    found: dict[str, Any] = {"kept": count(spark, table_format, folder / "kept")}
    out, table = folder / "before", ""
    if table_format == "iceberg":
        table = "before.messages"
        columns = spark_ddl(DEFAULT_COLUMNS)
        spark.sql(
            f"CREATE TABLE {table} ({columns}, `date` date) USING iceberg "
            "PARTITIONED BY (topic, `date`)"
        )
    archive_as_before(spark, namesrv, topic, out, table_format, table)
    produce(namesrv, topic, numbers(30, 200))
    take_over(str(out), table_format)
    where = archive_place(str(out), table_format)
    job = TableJob(namesrv, where, topic, table_format=table_format, partition_by=PARTITION_BY)
    found["added to the archive of before"] = keep_table(spark, job, print)
    found["archive"] = count(spark, table_format, Path(where))
    print(json.dumps(found))


def session(table_format: str, folder: Path) -> Any:
    config = session_config() | {
        "spark.jars.packages": PACKAGES[table_format],
        "spark.sql.extensions": EXTENSIONS[table_format],
    }
    if table_format == "delta":
        config |= DELTA_CATALOG
    else:
        config |= {
            "spark.sql.catalog.before": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.before.type": "hadoop",
            "spark.sql.catalog.before.warehouse": str(folder / "before"),
        }
    return open_session("formats", "local[2]", config=config)


def count(spark: Any, table_format: str, where: Path) -> list[int]:
    rows = spark.read.format(table_format).load(str(where))
    today = rows.where("date > date'2020-01-01' and value is not null")
    return [today.count(), today.select("value").distinct().count()]


main()
