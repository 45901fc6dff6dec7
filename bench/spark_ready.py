"""A Spark source that hands over ready-made Arrow batches: the ceiling of any Python data source.

What it takes is Spark's own: the workers' start, the socket, the JVM's rows out of Arrow's columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from aerobee.pipeline.arrow import store_splits, topic_filter
from aerobee.pipeline.columns import spark_ddl
from aerobee.pipeline.source.split_reader import Selection, read_split


def make_ready(store: Path, topic: str, columns: Sequence[str], folder: Path) -> None:
    """Writes the batches that a read of the store gives, a file per split."""
    folder.mkdir(parents=True)
    selection = Selection(tuple(columns), topic_filter([topic], None))
    for number, split in enumerate(store_splits(str(store), topics=[topic])):
        batches = read_split(split, selection)
        first = next(batches)
        with pa.ipc.new_file(folder / f"{number:05d}.arrow", first.schema) as file:
            file.write_batch(first)
            for batch in batches:
                file.write_batch(batch)


class ReadyReader(DataSourceReader):
    """Maps the files into memory; nothing is decoded or copied here."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(str(path)) for path in sorted(Path(self.folder).iterdir())]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        with pa.memory_map(partition.value) as mapped:
            file = pa.ipc.open_file(mapped)
            for number in range(file.num_record_batches):
                yield file.get_batch(number)


class ReadySource(DataSource):
    """Options: path, columns."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> str:
        return spark_ddl(self.options["columns"].split(","))

    def reader(self, schema: Any) -> ReadyReader:
        return ReadyReader(self.options["path"])
