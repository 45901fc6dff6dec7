"""The readers of a batch: of topics over TCP, and of a store's files."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from aerobee.pipeline.errors import OptionError
from aerobee.pipeline.options import Options, no_match
from aerobee.pipeline.reused import reused_process
from aerobee.pipeline.source.ahead import ahead
from aerobee.pipeline.source.history import read_part
from aerobee.pipeline.source.partitions import (
    NOTHING,
    PastPartition,
    RangePartition,
    SplitPartition,
    arrow_schema_of,
)
from aerobee.pipeline.source.queues import shown_topics
from aerobee.pipeline.source.readings import Address
from aerobee.pipeline.source.slices import slices
from aerobee.pipeline.source.split_reader import Selection, read_split
from aerobee.pipeline.source.store_files import Split, StoreError, StoreFiles
from aerobee.pipeline.source.topic_filter import topic_filter
from aerobee.pipeline.source.topic_ranges import (
    BatchPlan,
    TopicPlan,
    plan_batch,
    read_joined,
    tag_set,
)
from aerobee.protocol.files.config_files import read_config
from aerobee.protocol.names import is_system_topic

log: Final = logging.getLogger("aerobee.pipeline")


class TopicReader(DataSourceReader):  # type: ignore[misc]
    """A batch read of topics over TCP."""

    def __init__(self, options: Options, columns: tuple[str, ...], schema: StructType) -> None:
        self.options = options
        self.plan = TopicPlan.of(options, columns)
        self.schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        return planned(plan_batch(self.options)) or [NOTHING]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield from read_partition(partition, self.plan, arrow_schema_of(self.schema))


def planned(plan: BatchPlan, report_to: Address | None = None) -> list[InputPartition]:
    """The partitions of a plan, those of the past first."""
    with reused_process():
        past = plan.history.parts(plan.past) if plan.history and plan.past else []
        return [*map(PastPartition, past), *(RangePartition(one, report_to) for one in plan.ranges)]


def read_partition(partition: InputPartition, plan: TopicPlan, schema: Any) -> Iterator[Any]:
    """A task's rows, of a broker or of the table of the past."""
    with reused_process():
        if isinstance(partition, RangePartition):
            reporting = replace(plan, report_to=partition.report_to)
            yield from slices(ahead(read_joined(partition.range, reporting, schema)))
        elif isinstance(partition, PastPartition):
            yield from read_part(partition.part, plan.columns, plan.tags, schema)


class PathReader(DataSourceReader):  # type: ignore[misc]
    """A read of a store's files."""

    def __init__(self, options: Options, columns: tuple[str, ...], schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self.selection = Selection(
            columns,
            topic_filter(options["subscribe"], options["subscribePattern"]),
            tags=tag_set(options["tags"]),
            start_ms=options["startingTimestamp"],
            end_ms=options["endingTimestamp"],
        )

    def partitions(self) -> Sequence[InputPartition]:
        with reused_process():
            try:
                splits = self._planned_splits()
            except StoreError as error:
                raise OptionError(f"option path: {error}") from None
            return [SplitPartition(split) for split in splits] or [NOTHING]

    def _planned_splits(self) -> list[Split]:
        splits = self._splits(self.options["splitBytes"])
        wanted = self.options["minPartitions"] or 0
        if splits and len(splits) < wanted:
            whole = sum(split.end - split.start for split in splits)
            splits = self._splits(max(1, whole // wanted))
        self._check_topics(splits)
        return splits

    def _check_topics(self, splits: list[Split]) -> None:
        """The same as over TCP: a topic that is not there is an error, a pattern may match none."""
        path = self.options["path"]
        known = {queue.topic for queue in StoreFiles(path).queues}
        try:
            known.update(read_config(path, "topics.json")["topicConfigTable"])
        except (OSError, ValueError, KeyError):
            if not known or any(split.queues is None for split in splits):
                return  # the log alone may know more topics than the queues
        names = sorted(name for name in known if not is_system_topic(name))
        for topic in self.options["subscribe"] or ():
            if topic not in known:
                raise OptionError(
                    f"topic {topic} does not exist in the store {path}; it has "
                    f"{shown_topics(names)}"
                )
        pattern = self.options["subscribePattern"]
        if pattern and not any(map(self.selection.wanted, known)):
            no_match(self.options, f"no topic of the store {path} matches {pattern}", log.warning)

    def _splits(self, split_bytes: int) -> list[Split]:
        return StoreFiles(self.options["path"]).splits(
            wanted=self.selection.wanted,
            start_ms=self.selection.start_ms,
            end_ms=self.selection.end_ms,
            split_bytes=split_bytes,
            sealed_only=self.options["sealedOnly"],
        )

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, SplitPartition):
            schema = arrow_schema_of(self.schema)
            with reused_process():
                yield from slices(read_split(partition.split, self.selection, schema))
