"""archive: topics kept as a table partitioned by topic and date; older archives are taken over.

An archive used to be written by Spark's own sinks, with the offsets in a checkpoint beside it. The
first run on such a folder commits what it holds, files and offsets, and resumes there.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from aerobee.pipeline.columns import DEFAULT_COLUMNS, spark_ddl
from aerobee.pipeline.jobs.leftovers import committed_by_spark, remove_leftovers
from aerobee.pipeline.lake.data_files import hive_values, table_schema
from aerobee.pipeline.lake.model import ASIDE, OWN, DataFile, Held, Numbers, Table, TableError
from aerobee.pipeline.lake.opening import create_table, format_of, open_table, place

CHECKPOINT: Final = "_checkpoint"
SPARK_METADATA: Final = "_spark_metadata"
PARTITION_BY: Final = ("topic", "date")
ICEBERG_TABLE: Final = "messages"  # in the folder: a table of a `hadoop` catalog, as before


def archive_place(out: str, table_format: str) -> str:
    """Where in the folder the table is."""
    return f"{place(out)}/{ICEBERG_TABLE}" if table_format == "iceberg" else place(out)


def take_over(out: str, table_format: str) -> None:
    """Commits the content of an older archive; does nothing if that was done."""
    checkpoint = Path(place(out)) / CHECKPOINT
    if "://" in out or not checkpoint.is_dir():
        return
    where = archive_place(out, table_format)
    if table_format == "parquet":
        _take_over_parquet(Path(where), checkpoint)
        return
    if format_of(where) == table_format:
        table = open_table(where)
        table.append([], _held(checkpoint, _batch(table, checkpoint)), {})
    checkpoint.rename(checkpoint.with_name("_checkpoint.before"))


def _take_over_parquet(folder: Path, checkpoint: Path) -> None:
    metadata = folder / SPARK_METADATA
    if metadata.is_dir():
        if format_of(str(folder)) is None:
            create_table(str(folder), "parquet", table_schema(PARTITION_BY), PARTITION_BY)
        table = open_table(str(folder), writing=True)
        if not table.held(()).next:
            remove_leftovers(folder)
            batch = max(int(file.name.split(".")[0]) for file in metadata.glob("[0-9]*"))
            files = list(_spark_files(folder, table))
            table.append(files, _held(checkpoint, batch), {})
        metadata.rename(folder / OWN / "spark_metadata.before")  # Spark's readers would go by it
    checkpoint.rename(folder / OWN / "checkpoint.before")


def _spark_files(folder: Path, table: Table) -> Iterator[DataFile]:
    """The archive's files, as if tasks had just written them: they are in their places already."""
    for name in committed_by_spark(folder):
        for file in folder.glob(f"topic=*/date=*/{name}"):
            relative = str(file.relative_to(folder))
            about = pq.read_metadata(file)
            values = hive_values(relative, PARTITION_BY)
            path = f"{table.data_folder()}/{relative}{ASIDE}"
            yield DataFile(path, about.num_rows, file.stat().st_size, values)


def _batch(table: Table, checkpoint: Path) -> int:
    """The last batch of the checkpoint's query that the table has."""
    from aerobee.pipeline.lake.delta import DeltaFolder
    from aerobee.pipeline.lake.iceberg import IcebergTable

    query = json.loads((checkpoint / "metadata").read_text())["id"]
    assert isinstance(table, DeltaFolder | IcebergTable)
    found = table.batch_of_spark(query)
    if found is None:
        raise TableError(
            f"{table.where} has no commit of the query of {checkpoint}; use another folder"
        )
    return int(found)


def _held(checkpoint: Path, batch: int) -> Held:
    """What the batches of the checkpoint up to this one have read. Where the first one began is
    not written there; it is taken to be the beginning of each queue."""
    end = _offsets(checkpoint / "offsets" / str(batch))
    start = {topic: dict.fromkeys(queues, 0) for topic, queues in end.items()}
    return Held().extended(start, end)


def _offsets(file: Path) -> Numbers:
    """The third line: version, the batch's settings, the source's offsets."""
    numbers: Numbers = json.loads(file.read_text().splitlines()[2])
    return numbers


def read_archive(spark: Any, path: str) -> Any:
    """The messages of an archive or table as a DataFrame, by whatever means it was written; with
    the columns of their values where the table has them."""
    ddl = f"{spark_ddl(DEFAULT_COLUMNS)}, `date` date"  # else a topic named 007 would be 7
    empty = spark.createDataFrame([], ddl)
    for where in (place(path), f"{place(path)}/{ICEBERG_TABLE}"):
        if format_of(where) is not None:
            table = open_table(where)
            schema = _with_values(empty.schema, table.schema())
            return _read_files(spark.read.schema(schema), table) or spark.createDataFrame(
                [], schema
            )
    return spark.read.schema(empty.schema).parquet(path)


def _read_files(reader: Any, table: Table) -> Any | None:
    """The table's rows by Spark's own reader, which takes partition values from the folders' names;
    None when it has none."""
    files = table.files()
    paths = [one.path for one in files]
    if not files:
        return None
    if not all(f"/{name}=" in path for path in paths for name in table.partition_by):
        # An Iceberg table with values that are no names: its files hold all the columns.
        return reader.option("recursiveFileLookup", "true").parquet(*paths)
    rows = reader.option("basePath", table.where).parquet(*paths)
    for name in table.partition_by:
        if not all((one.partition[name] or "").isascii() for one in files):
            rows = rows.withColumn(name, _unescaped(name))
    return rows


def _unescaped(name: str) -> Any:
    """Spark takes each escaped byte of a folder's name for a character."""
    from pyspark.sql import functions as f

    return f.decode(f.encode(f.col(f"`{name}`"), "ISO-8859-1"), "UTF-8")


def _with_values(known: Any, schema: Any) -> Any:
    """Spark's schema with the fields that a typed table has besides."""
    from pyspark.sql.pandas.types import from_arrow_schema

    more = [one for one in schema if one.name not in (*known.names, "hour")]
    for field in from_arrow_schema(pa.schema(more)).fields:
        known = known.add(field)
    return known
