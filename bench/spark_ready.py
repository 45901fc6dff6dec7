"""A Spark source that hands over ready-made Arrow batches, and a sink that drops what it is given:
the ceiling of any Python data source.

What they take is Spark's own: the workers' start, the socket, rows out of Arrow's columns and back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

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


class DroppingWriter(DataSourceArrowWriter):
    """Takes all batches, and does nothing with them."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _batch in iterator:
            pass
        return WriterCommitMessage()


class ReadySource(DataSource):
    """Options of a read: path, columns."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> str:
        return spark_ddl(self.options["columns"].split(","))

    def reader(self, schema: Any) -> ReadyReader:
        return ReadyReader(self.options["path"])

    def writer(self, schema: Any, overwrite: bool) -> DroppingWriter:
        return DroppingWriter()
