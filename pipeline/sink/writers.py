"""DataFrames written to topics: at least once by default, exactly once by option.

At least once: rows are sent as they come; a task that is run again sends its rows again. Exactly
once (`exactly_once.py`): rows are prepared in the broker and appear when the batch commits.
"""

import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from aerobee.pipeline.options import OptionError, Options, sink_options
from aerobee.pipeline.reused import reused_process
from aerobee.pipeline.sink.encode import BulkIds, encode_rows
from aerobee.pipeline.sink.places import writable_route
from aerobee.pipeline.sink.rows import check_sink_schema
from aerobee.pipeline.sink.sender import BatchSender
from aerobee.pipeline.wire import Access, Cluster


@dataclass
class Sent(WriterCommitMessage):  # type: ignore[misc]
    """What a task of an at-least-once write reports."""

    rows: int


class _AtLeastOnce:
    """The task's side: everything is stored when `write` returns."""

    def __init__(self, options: Options) -> None:
        self.access = Access.of(options)
        self.topic: str | None = options["topic"]
        self.group: str = options["producerGroup"]
        self.batch_bytes: int = options["maxBatchBytes"]
        self.rows_per_second: int | None = options["rowsPerSecond"]

    def write(self, iterator: Iterator[Any]) -> Sent:
        ids = BulkIds()
        with reused_process(), Cluster(self.access) as cluster:
            first_turn = random.getrandbits(16)  # else all small tasks would begin with queue 0
            sender = BatchSender(cluster, self.group, self.batch_bytes, first_turn)
            for batch in self._paced(iterator, sender):
                sender.add(encode_rows(batch, self.topic, ids, sender.places.count))
            return Sent(sender.finish())

    def _paced(self, batches: Iterator[Any], sender: BatchSender) -> Iterator[Any]:
        """The batches; with rowsPerSecond in pieces of a tenth of a second, each sent in time."""
        if not self.rows_per_second:
            yield from batches
            return
        began, count = time.monotonic(), 0
        piece = max(1, self.rows_per_second // 10)
        for batch in batches:
            for at in range(0, batch.num_rows, piece):
                early = count / self.rows_per_second - (time.monotonic() - began)
                if early > 0:
                    sender.finish()
                    time.sleep(early)
                part = batch.slice(at, piece)
                yield part
                count += part.num_rows


class BatchWriter(_AtLeastOnce, DataSourceArrowWriter):  # type: ignore[misc]
    """`df.write`."""

    def commit(self, messages: list[Any]) -> None:
        with reused_process():
            pass  # the rows are stored already

    def abort(self, messages: list[Any]) -> None:
        pass  # at least once: what was sent stays


class StreamWriter(_AtLeastOnce, DataSourceStreamArrowWriter):  # type: ignore[misc]
    """`df.writeStream`."""

    def commit(self, messages: list[Any], batchId: int) -> None:
        with reused_process():
            pass  # the rows are stored already

    def abort(self, messages: list[Any], batchId: int) -> None:
        pass  # at least once: the batch is run again


def _checked(
    given: Mapping[str, str], schema: StructType, overwrite: bool, *, running: bool
) -> Options:
    """The options; `running`: Spark asks again in each batch, so that a broker is waited for."""
    with reused_process():
        options = sink_options(given)
        if overwrite:
            raise OptionError("a topic cannot be overwritten; write with mode('append')")
        check_sink_schema(schema, options["topic"])
        if options["topic"]:
            access = Access.of(options)
            with Cluster(access if running else access.at_start()) as cluster:
                writable_route(cluster, options["topic"])
        return options


def batch_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> Any:
    options = _checked(given, schema, overwrite, running=False)
    if options["deliveryGuarantee"] == "exactly-once":
        from aerobee.pipeline.sink.exactly_once import PreparedBatchWriter

        return PreparedBatchWriter(options)
    return BatchWriter(options)


def stream_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> Any:
    options = _checked(given, schema, overwrite, running=True)
    if options["txnAppId"]:
        raise OptionError("options txnAppId and txnVersion are for df.write: a stream has its own")
    if options["deliveryGuarantee"] == "exactly-once":
        from aerobee.pipeline.sink.exactly_once import PreparedStreamWriter

        return PreparedStreamWriter(options)
    return StreamWriter(options)
