"""Tables cut by columns with odd values: each reader finds the values that were written."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from peers.aerobee_broker import AerobeeBroker
from pyspark.sql import SparkSession
from spark.helpers import Run, create_topic, numbers, produce
from spark.lake_readers import FORMATS

from aerobee.pipeline.columns import DEFAULT_COLUMNS, arrow_schema
from aerobee.pipeline.jobs.archive import read_archive
from aerobee.pipeline.jobs.table_tasks import layout_of
from aerobee.pipeline.lake.data_files import read_rows, table_schema, write_files
from aerobee.pipeline.lake.model import Held, Table, TableError
from aerobee.pipeline.lake.opening import create_table, open_table

pytestmark = pytest.mark.timeout(400)  # a busy machine starts workers slowly
BY = ("date", "tags")


def messages(tags: list[str | None]) -> Any:
    """Messages with these tags, and little else."""
    count, at = len(tags), datetime(2026, 1, 31, 8, tzinfo=UTC)
    known: dict[str, list[Any]] = {
        "topic": ["orders"] * count,
        "broker": ["broker-a"] * count,
        "partition": [0] * count,
        "offset": list(range(count)),
        "timestamp": [at] * count,
        "tags": tags,
    }
    columns = [
        pa.array(known.get(one.name, [None] * count), one.type)
        for one in arrow_schema(DEFAULT_COLUMNS)
    ]
    return pa.table(columns, names=list(DEFAULT_COLUMNS))


def kept(where: Path, table_format: str, tags: list[str | None]) -> Table:
    table = create_table(str(where), table_format, table_schema(BY), BY)
    table.append(write_files([messages(tags)], layout_of(table)), Held(), {})
    return open_table(str(where), writing=True)


def by_offset(rows: Iterable[Any]) -> list[str | None]:
    return [row["tags"] for row in sorted(rows, key=lambda row: row["offset"])]


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_job_reads_the_partition_values_that_were_written(
    spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    tags = ["plain", "a b", None, "ü", "a/b", "a=b", "%20", "..", "007", "漢字"]
    table = kept(tmp_path / "t", table_format, tags)
    own = (
        row
        for one in table.files()
        for rows in read_rows(one, ("offset", "tags"), table.schema())
        for row in rows.to_pylist()
    )
    assert by_offset(own) == tags
    found = read_archive(spark, str(tmp_path / "t"))
    assert by_offset(found.collect()) == tags
    assert found.where("tags = 'ü' and date = date'2026-01-31'").count() == 1
    if table_format == "parquet":
        folder = (
            f"read_parquet('{tmp_path}/t/date=*/tags=*/*.parquet', hive_types_autocast = false)"
        )
        rows = duckdb.sql(f'select tags from {folder} order by "offset"').fetchall()
        assert [row[0] for row in rows] == tags


@pytest.mark.parametrize("table_format", FORMATS)
def test_an_empty_text_as_a_partition_value_does_not_keep_spark_from_reading(
    spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    kept(tmp_path / "t", table_format, ["", "x"])
    first, second = by_offset(read_archive(spark, str(tmp_path / "t")).collect())
    assert not first and second == "x"


@pytest.mark.parametrize("value", ["x" * 300, "漢" * 60], ids=["long", "long when it is escaped"])
@pytest.mark.parametrize("table_format", FORMATS)
def test_a_value_that_is_too_long_for_a_folder_has_another_or_is_named(
    spark: SparkSession, tmp_path: Path, table_format: str, value: str
) -> None:
    if table_format == "iceberg":
        kept(tmp_path / "t", table_format, [value, "x"])
        assert by_offset(read_archive(spark, str(tmp_path / "t")).collect()) == [value, "x"]
    else:
        with pytest.raises(TableError, match="tags has a value that is too long"):
            kept(tmp_path / "t", table_format, [value, "x"])


@pytest.mark.parametrize("name", ["a/b", "a=b", "100%"])
def test_a_column_whose_name_no_folder_can_have_is_no_partition(name: str) -> None:
    with pytest.raises(TableError, match="a folder's name cannot hold"):
        table_schema((name,), [pa.field(name, pa.string())])


def test_a_partition_that_is_named_twice_counts_once(
    run: Run, broker: AerobeeBroker, tmp_path: Path
) -> None:
    create_topic(broker.broker, "named-twice", 1)
    produce(broker.namesrv, "named-twice", numbers(3))
    words = ("table", "named-twice", "--namesrv", broker.namesrv, "--to", tmp_path / "t", "--once")
    run(*words, "--partition", "date", "--partition", "tags", "--partition", "tags")
    assert open_table(str(tmp_path / "t")).partition_by == BY
