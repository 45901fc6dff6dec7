"""reprocess: a user's function over the history of topics, into a topic or a table, exactly once.

Into a topic it is a replay with the function in the place of a query. A table says itself which
offsets of its source it holds, as kept tables do, so there is no other state: a run after a kill,
or after the source has grown, does what is missing.
"""

import importlib.util
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from aerobee.pipeline.errors import OptionError
from aerobee.pipeline.jobs.messages import Chosen
from aerobee.pipeline.jobs.progress import rows_progress, task_progress
from aerobee.pipeline.jobs.replay import ROWS_PER_BATCH, Change
from aerobee.pipeline.jobs.row_by_row import is_row_by_row
from aerobee.pipeline.jobs.slices import Batch, cut_batches
from aerobee.pipeline.jobs.table_sink import Step, append_frame
from aerobee.pipeline.lake.data_files import check_partitions
from aerobee.pipeline.lake.model import Table, TableError
from aerobee.pipeline.lake.opening import create_table, format_of, open_table, place
from aerobee.pipeline.source.partitions import arrow_schema_of
from aerobee.pipeline.source.queues import Offsets, QueueKey, from_json, to_json

_START: Final = QueueKey("(start)", "ms", 0)  # beside the queues: the --start of all runs


@dataclass(frozen=True, slots=True)
class TableReprocess:
    """What is made of which messages, and where it is kept."""

    chosen: Chosen
    to: str
    table_format: str = "parquet"
    partition_by: tuple[str, ...] = ()
    rows_per_batch: int = ROWS_PER_BATCH
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Made:
    """The result of a run."""

    messages: int  # read
    rows: int  # made of them


def load_function(text: str) -> Change:
    """The function that FILE.py:NAME names."""
    path, colon, name = text.rpartition(":")
    file = Path(path)
    if not colon or not file.is_file():
        raise OptionError(f"{text!r} names no function: give FILE.py:NAME, e.g. clean.py:clean")
    spec = importlib.util.spec_from_file_location(f"_aerobee_{file.stem}", file)
    assert spec is not None and spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    _ship_with_tasks(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise OptionError(f"{path} has no function {name}")
    found: Change = function
    return found


def _ship_with_tasks(module: Any) -> None:
    """Workers cannot import the user's file: what it defines goes to them by value."""
    from pyspark import cloudpickle

    sys.modules[module.__name__] = module
    cloudpickle.register_pickle_by_value(module)


def reprocess(spark: Any, job: TableReprocess, change: Change) -> Made:
    """Runs the function over what the table does not hold yet."""
    sample = change(job.chosen.all(spark))
    table = None if job.dry_run and format_of(place(job.to)) is None else _opened(job, sample)
    batches, done = _planned(spark, job, table, whole=not is_row_by_row(sample))
    messages = sum(batch.rows for batch in batches)
    if job.dry_run or table is None:
        return Made(messages, 0)
    rows = _rows(table)
    with rows_progress(spark, "reprocess", messages) as step:
        for batch in batches:
            start, end = (
                _start_of(job) | {one.key: getattr(one, side) for one in batch.slices}
                for side in ("start", "end")
            )
            before = {key: at for key, at in done.items() if key in end}
            numbers = Step(to_json(start), to_json(end), to_json(before))
            append_frame(spark, change(job.chosen.of(spark, batch)), table.where, numbers)
            done |= end
            step(batch.rows)
    return Made(messages, _rows(table) - rows)


def _rows(table: Table) -> int:
    table.refresh()
    return sum(one.rows for one in table.files())


def _planned(
    spark: Any, job: TableReprocess, table: Table | None, *, whole: bool
) -> tuple[list[Batch], Offsets]:
    """What is to be done, and up to where the table holds each queue."""
    counted = job.chosen.counted(spark)
    done: Offsets = {}
    with task_progress(spark, "planning"):
        if table is not None:
            queues = counted.select("topic", "broker", "partition").distinct().collect()
            names = [(_START.topic, f"{_START.broker}:{_START.queue_id}")]
            names += [(row.topic, f"{row.broker or ''}:{row.partition}") for row in queues]
            done = from_json(table.held(names).next)
            _check_start(done, job)
        batches = cut_batches(counted, None if whole else job.rows_per_batch, done)
    if whole and done and batches:
        raise TableError(
            f"{job.to} was made of all messages at once, and there are more now: what looks at "
            "more than one row cannot be resumed; use another place"
        )
    return batches, done


def _check_start(done: Offsets, job: TableReprocess) -> None:
    """TableError for another --start than before: a table only goes on at its end, so it would pass
    over what lies between the two."""
    known = done.get(_START, _start_of(job)[_START])
    if known != _start_of(job)[_START]:
        since = datetime.fromtimestamp(known / 1000, UTC).isoformat()
        choice = f"with --start {since}" if known else "without --start"
        raise TableError(
            f"{job.to} was made {choice}, and goes on at its end only: say the same, or use "
            "another place"
        )


def _start_of(job: TableReprocess) -> Offsets:
    start = job.chosen.start
    return {_START: round(start.timestamp() * 1000) if start else 0}


def _opened(job: TableReprocess, sample: Any) -> Table:
    where = place(job.to)
    schema = _arrow_schema(sample)
    check_partitions(schema, job.partition_by)
    if format_of(where) is None:
        return create_table(where, job.table_format, schema, job.partition_by)
    table = open_table(where, writing=True)
    known = table.schema()
    if sorted(known.names) != sorted(schema.names) or table.partition_by != job.partition_by:
        raise TableError(
            f"{where} has the columns {', '.join(known.names)}, the function makes "
            f"{', '.join(schema.names)}: use another place"
        )
    return table


def _arrow_schema(frame: Any) -> Any:
    return pa.schema([one.with_nullable(True) for one in arrow_schema_of(frame.schema)])
