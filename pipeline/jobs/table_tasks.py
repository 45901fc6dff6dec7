"""What the tasks of a kept table do: read ranges of queues, or small files, and write files.

A task pulls, decodes and writes in Python. No row passes the JVM, whose transport costs more than
all the rest; Spark hands out the work, runs a failed task again and brings back the files' names.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from aerobee.pipeline.columns import DEFAULT_COLUMNS, arrow_schema
from aerobee.pipeline.lake.data_files import TIMES, FileWriter, Layout, read_rows, write_files
from aerobee.pipeline.lake.model import ASIDE, DataFile, Table
from aerobee.pipeline.reused import reused_process
from aerobee.pipeline.source.puller import Range
from aerobee.pipeline.source.topic_ranges import TopicPlan, read_range
from aerobee.pipeline.typed.columns import columns_of
from aerobee.pipeline.typed.decode import decode_values
from aerobee.pipeline.typed.shape import Shape

Found = TypeVar("Found")


def layout_of(table: Table) -> Layout:
    """How tasks write files of this table."""
    schema = table.file_schema().serialize().to_pybytes()
    readable = table.table_format != "iceberg"
    suffix = ASIDE if table.table_format == "parquet" else ""
    return Layout(table.data_folder(), schema, table.partition_by, readable, suffix)


def write_ranges(
    spark: Any, groups: Sequence[Sequence[Range]], plan: TopicPlan, layout: Layout
) -> list[DataFile]:
    """A task for each group of ranges; the files they wrote."""

    def work(at: int) -> Iterable[DataFile]:
        return write_files(_rows(groups[at], plan), layout)

    return run_tasks(spark, len(groups), work)


def _rows(ranges: Sequence[Range], plan: TopicPlan) -> Iterator[Any]:
    schema = arrow_schema(DEFAULT_COLUMNS)
    for one in ranges:
        yield from read_range(one, plan, schema)


@dataclass(frozen=True, slots=True)
class Sorting:
    """How tasks separate rows that fit a schema from those that do not."""

    shape: Shape
    fitting: Layout
    rejected: Layout
    done: frozenset[tuple[Any, ...]] = frozenset()  # the names of rows that are rejected already


def write_typed(
    spark: Any, groups: Sequence[Sequence[Range]], plan: TopicPlan, sorting: Sorting
) -> tuple[list[DataFile], list[DataFile]]:
    """The same for a typed table: the files of rows that fit, and of those that do not."""

    def work(at: int) -> Iterable[tuple[bool, DataFile]]:
        return sort_rows(_rows(groups[at], plan), sorting)

    return _both(run_tasks(spark, len(groups), work))


def retry_files(
    spark: Any, files: Sequence[DataFile], sorting: Sorting
) -> tuple[list[DataFile], list[DataFile]]:
    """Rejected rows tried again, a task for each file."""

    def work(at: int) -> Iterable[tuple[bool, DataFile]]:
        schema = arrow_schema(DEFAULT_COLUMNS)
        return sort_rows(read_rows(files[at], schema.names, schema), sorting)

    return _both(run_tasks(spark, len(files), work))


def _both(found: list[tuple[bool, DataFile]]) -> tuple[list[DataFile], list[DataFile]]:
    return [one for fits, one in found if fits], [one for fits, one in found if not fits]


def sort_rows(batches: Iterable[Any], sorting: Sorting) -> list[tuple[bool, DataFile]]:
    """Rows with the columns of their value, and those without, whole, with the reason."""
    fitting, rejected = FileWriter(sorting.fitting), FileWriter(sorting.rejected)
    columns = columns_of(sorting.shape)
    for batch in batches:
        rows = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        if sorting.done:
            rows = rows.filter(pa.array([name not in sorting.done for name in names_of(rows)]))
        arrays, reasons = decode_values(rows["value"], sorting.shape)
        reason = pa.array(reasons, pa.string())
        typed = rows
        for field, array in zip(columns, arrays, strict=True):
            typed = typed.append_column(field, array.cast(field.type))
        fitting.add(typed.filter(pc.is_null(reason)))
        rejected.add(rows.append_column("reason", reason).filter(pc.is_valid(reason)))
    return [(True, one) for one in fitting.finish()] + [(False, one) for one in rejected.finish()]


NAMED_BY: Final = ("topic", "broker", "partition", "offset", "timestamp")


def names_of(rows: Any) -> Iterator[tuple[Any, ...]]:
    """What tells a row from all others, also from those of a queue that was recreated."""
    return zip(*(rows[name].to_pylist() for name in NAMED_BY), strict=True)


def merge_files(spark: Any, groups: Sequence[Sequence[DataFile]], table: Table) -> list[DataFile]:
    """A task for each group of files of one partition, which become one file."""
    layout, schema = layout_of(table), table.schema()
    columns = [name for name in schema.names if name not in TIMES]

    def work(at: int) -> Iterable[DataFile]:
        rows = (batch for one in groups[at] for batch in read_rows(one, columns, schema))
        return write_files(rows, layout)

    return run_tasks(spark, len(groups), work)


def run_tasks(spark: Any, count: int, work: Callable[[int], Iterable[Found]]) -> list[Found]:
    """`work` of each number below `count`, as a Spark task each."""

    def task(at: int) -> list[Found]:
        with reused_process():
            return list(work(at))

    found: list[Found] = spark.sparkContext.parallelize(range(count), count).flatMap(task).collect()
    return found


def shared_out(ranges: Sequence[Range], tasks_max: int, rows_min: int) -> list[list[Range]]:
    """The ranges in groups of about the same size: few tasks for few rows, as each task makes a
    file of its own in each partition that it meets."""
    total = sum(one.end - one.start for one in ranges)
    count = max(1, min(tasks_max, -(-total // rows_min)))
    share = -(-total // count)
    groups: list[list[Range]] = [[]]
    room = share
    for one in sorted(ranges, key=lambda one: one.key):
        start = one.start
        while start < one.end:
            if room == 0:
                groups.append([])
                room = share
            end = min(one.end, start + room)
            groups[-1].append(Range(one.key, one.address, start, end))
            room -= end - start
            start = end
    return groups
