"""The SparkSession of a job, and the table formats that need more than Spark itself."""

import os
import sys
from collections.abc import Mapping
from typing import Any, Final

from aerobee.pipeline.options import OptionError

# Spark's minor version: the releases that run on it.
PACKAGES: Final[dict[str, dict[str, str]]] = {
    "delta": {
        "4.1": "io.delta:delta-spark_4.1_2.13:4.4.0",
    },
    "iceberg": {
        "4.1": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    },
}
CATALOG: Final = "archive"


def open_session(
    name: str,
    master: str,
    *,
    config: Mapping[str, str] | None = None,
    table_format: str = "parquet",
    warehouse: str = "",
) -> Any:
    """A session in UTC whose workers run this same Python."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "8",
    }
    settings |= _format_settings(table_format, warehouse)
    settings |= config or {}
    builder = SparkSession.builder.master(master).appName(f"aerobee {name}")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _format_settings(table_format: str, warehouse: str) -> dict[str, str]:
    if table_format == "parquet":
        return {}
    import pyspark

    minor = ".".join(pyspark.__version__.split(".")[:2])
    package = PACKAGES[table_format].get(minor)
    if package is None:
        known = ", ".join(PACKAGES[table_format])
        raise OptionError(
            f"--format {table_format} has no release for Spark {minor} (there is one for {known}): "
            f"pip install 'pyspark=={next(iter(PACKAGES[table_format]))}.*', or use parquet"
        )
    if table_format == "delta":
        return {
            "spark.jars.packages": package,
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        }
    return {
        "spark.jars.packages": package,
        "spark.sql.extensions": (
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        ),
        f"spark.sql.catalog.{CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
        f"spark.sql.catalog.{CATALOG}.type": "hadoop",
        f"spark.sql.catalog.{CATALOG}.warehouse": warehouse,
    }
