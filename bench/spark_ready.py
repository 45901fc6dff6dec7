"""A Spark source that hands over ready-made Arrow batches, and a sink that drops what it is given:
the ceiling of any Python data source.

What they take is Spark's own: the workers' start, the socket, rows out of Arrow's columns and back.
With `namesrv` the source also pulls the messages over TCP and throws them away: the ceiling of any
Python source that has to receive them. With `log` it also copies, out of a log of as many messages,
what no source that reads files can leave out: the ceiling of those.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

from aerobee.pipeline.arrow import store_splits
from aerobee.pipeline.columns import arrow_schema, spark_ddl
from aerobee.pipeline.options import Options, source_options
from aerobee.pipeline.source.ahead import ahead
from aerobee.pipeline.source.puller import pull_range
from aerobee.pipeline.source.room import Room
from aerobee.pipeline.source.slices import slices
from aerobee.pipeline.source.split_reader import Selection, read_split
from aerobee.pipeline.source.topic_filter import topic_filter
from aerobee.pipeline.source.topic_ranges import TopicPlan, plan_batch, read_range
from aerobee.pipeline.wire import Cluster
from aerobee.protocol.files.record_layout import HEAD_V4_SIZE


def make_ready(store: Path, topic: str, columns: Sequence[str], folder: Path) -> None:
    """Writes the batches that a read of the store gives, a file per split."""
    selection = Selection(tuple(columns), topic_filter([topic], None))
    splits = store_splits(str(store), topics=[topic])
    _write_files(folder, [slices(read_split(split, selection)) for split in splits])


def make_ready_to_receive(namesrv: str, topic: str, columns: Sequence[str], folder: Path) -> None:
    """Writes the batches that a read over TCP gives, a file per queue."""
    options = _source(namesrv, topic)
    plan = TopicPlan.of(options, tuple(columns))
    schema = arrow_schema(columns)
    ranges = plan_batch(options).ranges
    _write_files(folder, [slices(read_range(wanted, plan, schema)) for wanted in ranges])


def _source(namesrv: str, topic: str) -> Options:
    return source_options({"namesrv": namesrv, "subscribe": topic}, streaming=False)


def _write_files(folder: Path, parts: Sequence[Iterator[Any]]) -> None:
    folder.mkdir(parents=True)
    for number, batches in enumerate(parts):
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


class CopyingReader(ReadyReader):
    """Copies the heads of as many records as a batch has, and as many bytes as its values: they lie
    side by side in Arrow, and between other bytes in the log."""

    def __init__(self, folder: str, log: str, record_size: int) -> None:
        super().__init__(folder)
        self.log, self.record_size = log, record_size

    def partitions(self) -> Sequence[InputPartition]:
        parts, first = [], 0
        for file in super().partitions():
            parts.append(InputPartition((file.value, first)))
            first += sum(batch.num_rows for batch in super().read(file))
        return parts

    def read(self, partition: InputPartition) -> Iterator[Any]:
        path, first = partition.value
        log = np.memmap(self.log, np.uint8, "r")
        position, size = first * self.record_size, self.record_size
        values = np.empty(0, np.uint8)
        for batch in super().read(InputPartition(path)):
            records = log[position : position + batch.num_rows * size].reshape(-1, size)
            position += records.size
            heads = records[:, :HEAD_V4_SIZE].copy()
            if batch.nbytes > heads.nbytes:
                if len(values) < records.size:
                    values = np.empty(records.size, np.uint8)
                wanted = min(batch.nbytes, records.size)
                values[:wanted] = records.reshape(-1)[:wanted]
            yield batch


class ReceivingReader(ReadyReader):
    """Receives what stands behind each batch before it hands the batch over."""

    def __init__(self, folder: str, namesrv: str, topic: str) -> None:
        super().__init__(folder)
        self.namesrv, self.topic = namesrv, topic

    def partitions(self) -> Sequence[InputPartition]:
        ranges = plan_batch(_source(self.namesrv, self.topic)).ranges
        files = super().partitions()
        return [
            InputPartition((file.value, wanted)) for file, wanted in zip(files, ranges, strict=True)
        ]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        path, wanted = partition.value
        yield from ahead(self._received(path, wanted))

    def _received(self, path: str, wanted: Any) -> Generator[Any, None, None]:
        plan = TopicPlan.of(_source(self.namesrv, self.topic), ("value",))
        room = Room()
        with Cluster(plan.access) as cluster:
            batches = super().read(InputPartition(path))
            for body in pull_range(cluster, wanted, plan.pull, print, room):
                rows = len(body) // int.from_bytes(body[:4], "big")  # records of one size
                room.clear([body])
                while rows > 0 and (batch := next(batches, None)) is not None:
                    rows -= batch.num_rows
                    yield batch
            yield from batches


class DroppingWriter(DataSourceArrowWriter):
    """Takes all batches, and does nothing with them."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _batch in iterator:
            pass
        return WriterCommitMessage()


class ReadySource(DataSource):
    """Options of a read: path, columns; namesrv and subscribe to receive the messages, too; or log,
    a file of the commitlog, and record, the size of its records, to copy from it."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> str:
        return spark_ddl(self.options["columns"].split(","))

    def reader(self, schema: Any) -> ReadyReader:
        path, namesrv = self.options["path"], self.options.get("namesrv")
        if "log" in self.options:
            return CopyingReader(path, self.options["log"], int(self.options["record"]))
        if namesrv is not None:
            return ReceivingReader(path, namesrv, self.options["subscribe"])
        return ReadyReader(path)

    def writer(self, schema: Any, overwrite: bool) -> DroppingWriter:
        return DroppingWriter()
