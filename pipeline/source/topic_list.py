"""What the catalog of topics asks: which topics there are, whether there is this one, and how many
messages it has."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from aerobee.pipeline.options import Options
from aerobee.pipeline.source.partitions import arrow_schema_of
from aerobee.pipeline.source.queues import discover
from aerobee.pipeline.source.topic_ranges import plan_batch
from aerobee.pipeline.wire import Access, Cluster

TOPICS_DDL: Final = "topic string"


class TopicsReader(DataSourceReader):  # type: ignore[misc]
    """A row for each topic that is not the brokers' own."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.access = Access.of(options).at_start()
        self.schema = schema

    def read(self, partition: InputPartition) -> Iterator[Any]:
        with Cluster(self.access) as cluster:
            names = cluster.users_topics()
        yield pa.record_batch([pa.array(names, pa.string())], schema=arrow_schema_of(self.schema))


class CountReader(DataSourceReader):  # type: ignore[misc]
    """How many messages a read would give, by their offsets."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(sum(one.end - one.start for one in plan_batch(self.options).ranges))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        count = pa.array([partition.value], pa.int64())
        yield pa.record_batch([count], schema=arrow_schema_of(self.schema))


def check_exists(options: Options) -> None:
    """OptionError where a topic of the read does not exist."""
    with Cluster(Access.of(options).at_start()) as cluster:
        discover(cluster, options)
