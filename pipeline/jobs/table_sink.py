"""A DataFrame of any columns added to a table of ours, with the offsets that it was made of.

Tasks write files, and the commit adds files and offsets in one step, as for kept tables. It is a
Spark sink of its own because that takes Arrow batches without pandas.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from aerobee.pipeline.jobs.table_tasks import layout_of
from aerobee.pipeline.lake.data_files import Layout, write_files
from aerobee.pipeline.lake.model import DataFile, Held, Numbers, Table, TableConflict
from aerobee.pipeline.lake.opening import open_table

NAME: Final = "aerobee-table"


@dataclass
class Written(WriterCommitMessage):  # type: ignore[misc]
    """What a task has written."""

    files: list[DataFile]


@dataclass(frozen=True, slots=True)
class Step:
    """Which offsets of its source the rows are made of, and where the table ended before: it is
    refused if another job has moved that since."""

    start: Numbers
    end: Numbers
    before: Numbers  # only of these queues, and only where the table has some of them

    def held(self, table: Table) -> Held:
        """What the table holds with the rows."""
        held = table.held(
            [(topic, queue) for topic, queues in self.end.items() for queue in queues]
        )
        for topic, queues in self.end.items():
            for queue in queues:
                now, then = (one.get(topic, {}).get(queue) for one in (held.next, self.before))
                if now != then:
                    raise TableConflict(
                        f"another job adds rows to {table.where}; this one ends. Run one job for "
                        "each table"
                    )
        return held.extended(self.start, self.end)


class TableWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Holds plain values only: it is pickled to the tasks and to the commit."""

    def __init__(self, where: str, step: str) -> None:
        self.where, self.step = where, step
        self.layout: Layout = layout_of(open_table(where, writing=True))

    def write(self, iterator: Iterator[Any]) -> Written:
        return Written(write_files(iterator, self.layout))

    def commit(self, messages: list[Any]) -> None:
        files = [one for part in messages if part is not None for one in part.files]
        rows = sum(one.rows for one in files)
        table = open_table(self.where, writing=True)
        table.append(files, Step(**json.loads(self.step)).held(table), {"rows": rows})

    def abort(self, messages: list[Any]) -> None:
        pass  # files that no commit names are not part of the table


class TableSink(DataSource):  # type: ignore[misc]
    """Options: path, step."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def writer(self, schema: StructType, overwrite: bool) -> TableWriter:
        return TableWriter(self.options["path"], self.options["step"])


def append_frame(spark: Any, frame: Any, where: str, step: Step) -> None:
    """Adds the rows and says which offsets of their source the table holds now."""
    spark.dataSource.register(TableSink)
    writer = frame.write.format(NAME).option("step", json.dumps(asdict(step)))
    writer.mode("append").save(where)
