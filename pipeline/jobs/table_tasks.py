"""What the tasks of a kept table do: read ranges of queues, or small files, and write files.

A task pulls, decodes and writes by itself. No row passes the JVM, whose transport costs more than
all the rest; Spark hands out the work, runs a failed task again and brings back the files' names.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from aerobee.pipeline.columns import DEFAULT_COLUMNS, arrow_schema
from aerobee.pipeline.lake.data_files import TIMES, Layout, read_rows, write_files
from aerobee.pipeline.lake.model import ASIDE, DataFile, Table
from aerobee.pipeline.source.puller import Range
from aerobee.pipeline.source.topic_ranges import TopicPlan, read_range

Work = Callable[[int], Iterable[DataFile]]


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
        schema = arrow_schema(DEFAULT_COLUMNS)
        rows = (batch for one in groups[at] for batch in read_range(one, plan, schema))
        return write_files(rows, layout)

    return run_tasks(spark, len(groups), work)


def merge_files(spark: Any, groups: Sequence[Sequence[DataFile]], table: Table) -> list[DataFile]:
    """A task for each group of files of one partition, which become one file."""
    layout, schema = layout_of(table), table.schema()
    columns = [name for name in schema.names if name not in TIMES]

    def work(at: int) -> Iterable[DataFile]:
        rows = (batch for one in groups[at] for batch in read_rows(one, columns, schema))
        return write_files(rows, layout)

    return run_tasks(spark, len(groups), work)


def run_tasks(spark: Any, count: int, work: Work) -> list[DataFile]:
    """`work` of each number below `count`, as a Spark task each."""
    numbers = spark.sparkContext.parallelize(range(count), count)
    found: list[DataFile] = numbers.flatMap(lambda at: list(work(at))).collect()
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
