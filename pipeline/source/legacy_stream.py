"""The stream reader for Spark 4.1, whose API has no limits and does not say where the stream is.

For a query that restarts, Spark 4.1 calls `partitions(start, start)` with the last known offset
before anything else; a reader whose first call is `latestOffset` belongs to a new query. A run
with Trigger.AvailableNow is one batch there, and cannot be distinguished from another trigger:
`options.check_limit` refuses a limit unless the user says that the trigger is another.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from aerobee.pipeline.options import Options
from aerobee.pipeline.source.batch_readers import planned, read_partition
from aerobee.pipeline.source.partitions import arrow_schema_of
from aerobee.pipeline.source.queues import Offsets, from_json, to_json
from aerobee.pipeline.source.stream_reader import Table, TopicStream
from aerobee.pipeline.source.topic_ranges import TopicPlan


class LegacyStreamReader(DataSourceStreamReader):  # type: ignore[misc]
    """Keeps place and limit inside the reader."""

    def __init__(self, options: Options, columns: tuple[str, ...], schema: StructType) -> None:
        self.stream = TopicStream(options)
        self.plan = TopicPlan.of(options, columns)
        self.schema = schema
        self.position: Offsets | None = None

    def initialOffset(self) -> Table:
        initial = self.stream.initial()
        if self.position is None:
            self.position = initial
        return to_json(initial)

    def latestOffset(self) -> Table:
        if self.position is None:
            self.position = self.stream.initial()
        self.stream.show_progress(self.position)
        rows_max = self.stream.options["maxOffsetsPerTrigger"]
        return to_json(self.stream.next_end(self.position, rows_max))

    def partitions(self, start: Table, end: Table) -> Sequence[InputPartition]:
        self.position = from_json(end)
        return planned(self.stream.planned(from_json(start), from_json(end)))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield from read_partition(partition, self.plan, arrow_schema_of(self.schema))

    def commit(self, end: Table) -> None:
        self.stream.show_progress(from_json(end))

    def stop(self) -> None:
        self.stream.cluster.close()
