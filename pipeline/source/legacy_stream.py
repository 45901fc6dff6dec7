"""The stream reader for Spark 4.1, whose API has no limits and does not say where the stream is.

For a query that restarts, Spark 4.1 calls `partitions(start, start)` with the last known offset
before anything else; a reader whose first call is `latestOffset` belongs to a new query. A run
with Trigger.AvailableNow is one batch there, and cannot be distinguished from another trigger:
`options.check_limit` refuses a limit unless the user says that the trigger is another.
"""

from collections.abc import Sequence

from pyspark.sql.datasource import InputPartition

from aerobee.pipeline.source.batch_readers import planned
from aerobee.pipeline.source.queues import Offsets, from_json, to_json
from aerobee.pipeline.source.stream_reader import AnyStreamReader, Table


class LegacyStreamReader(AnyStreamReader):
    """Keeps place and limit inside the reader."""

    position: Offsets | None = None

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
