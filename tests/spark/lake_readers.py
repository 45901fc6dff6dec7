"""Reads kept tables with what people have: DuckDB, Polars, the formats' own libraries, Spark."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import duckdb
import pyspark
from duckdb_extensions import import_extension
from spark.helpers import session_config
from spark.warm import INTERPRETED

from aerobee.pipeline.jobs.session import open_session
from aerobee.pipeline.lake.opening import open_table

FORMATS = ("parquet", "delta", "iceberg")
# Spark's own sources of the formats, which have releases for Spark 4.1 only.
PACKAGES = {
    "delta": "io.delta:delta-spark_4.1_2.13:4.4.0",
    "iceberg": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
}
EXTENSIONS = {
    "delta": "io.delta.sql.DeltaSparkSessionExtension",
    "iceberg": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
}
DELTA_CATALOG = {
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog"
}
IS_41 = pyspark.__version__.startswith("4.1.")


def open_with_others(where: Path, table_format: str) -> dict[str, list[bytes]]:
    """The column `value` of every row, by reader."""
    return {name: read(where) for name, read in READERS[table_format].items()}


def _duckdb_files(where: Path) -> list[bytes]:
    if not any(where.rglob("part-*.parquet")):
        return []  # killed before its first rows; DuckDB takes that for an error
    return _values(duckdb.sql(f"select value from '{where}/**/part-*.parquet'"))


def _duckdb_committed(where: Path) -> list[bytes]:
    """Only what the newest commit has; after a kill the folder may be a moment behind it."""
    paths = [one.path for one in open_table(str(where), writing=True).files()]
    return _values(duckdb.sql(f"select value from read_parquet({paths!r})")) if paths else []


def _values(rows: duckdb.DuckDBPyRelation) -> list[bytes]:
    return [bytes(row[0]) for row in rows.fetchall()]


def _deltalake(where: Path) -> list[bytes]:
    from deltalake import DeltaTable

    return [bytes(v) for v in DeltaTable(str(where)).to_pyarrow_table()["value"].to_pylist()]


def _pyiceberg(where: Path) -> list[bytes]:
    from pyiceberg.table import StaticTable

    rows = StaticTable.from_metadata(str(where)).scan(selected_fields=("value",)).to_arrow()
    return [bytes(value) for value in rows["value"].to_pylist()]


@cache
def _duckdb_of_lakes() -> duckdb.DuckDBPyConnection:
    """DuckDB with its extensions for both formats, which pip has brought."""
    connection = duckdb.connect()
    for extension in ("avro", "iceberg", "delta"):
        import_extension(extension)
        connection.load_extension(extension)
    return connection


def _duckdb_delta(where: Path) -> list[bytes]:
    return _values(_duckdb_of_lakes().sql(f"select value from delta_scan('{where}')"))


def _duckdb_iceberg(where: Path) -> list[bytes]:
    return _values(_duckdb_of_lakes().sql(f"select value from iceberg_scan('{where}')"))


def _polars_delta(where: Path) -> list[bytes]:
    import polars

    rows = polars.scan_delta(str(where)).select("value").collect()
    return [bytes(value) for value in rows["value"].to_list()]


READERS = {
    "parquet": {"DuckDB": _duckdb_files, "DuckDB by commit": _duckdb_committed},
    "delta": {"deltalake": _deltalake, "Polars": _polars_delta, "DuckDB": _duckdb_delta},
    "iceberg": {"pyiceberg": _pyiceberg, "DuckDB": _duckdb_iceberg},
}


def with_spark() -> None:
    """From now on a warm session reads too what this Spark can read."""
    config = session_config() | INTERPRETED  # many small plans: compiling them is most of a read
    if IS_41:
        config |= DELTA_CATALOG | {
            "spark.jars.packages": ",".join(PACKAGES.values()),
            "spark.sql.extensions": ",".join(EXTENSIONS.values()),
            "spark.databricks.delta.snapshotPartitions": "1",  # 50 tasks for a log of a few lines
        }
    spark = open_session("reader", "local[2]", config=config)

    def read(where: Path, table_format: str) -> list[bytes]:
        if not any(where.rglob("part-*.parquet")):
            return []  # killed before its first rows: a Parquet folder has no schema yet
        spark.catalog.clearCache()
        rows = spark.read.format(table_format).load(str(where)).select("value").toArrow()
        return [bytes(value) for value in rows["value"].to_pylist()]

    for table_format in FORMATS if IS_41 else FORMATS[:1]:
        READERS[table_format]["Spark"] = lambda where, kind=table_format: read(where, kind)  # type: ignore[misc]
