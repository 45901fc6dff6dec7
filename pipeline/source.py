"""The data source `aerobee` of Spark: which reader or writer an option asks for.

Everything here runs on the driver or is pickled to the tasks, so readers hold plain values only.
"""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from aerobee.pipeline.arrow import store_splits, topic_filter
from aerobee.pipeline.columns import COLUMNS, spark_ddl
from aerobee.pipeline.options import OptionError, Options, source_options
from aerobee.pipeline.puller import Range
from aerobee.pipeline.split_reader import Selection, read_split
from aerobee.pipeline.store_files import Split, StoreError
from aerobee.pipeline.topic_reader import TopicPlan, plan_batch, read_range

NAME: Final = "aerobee"


class AerobeeDataSource(DataSource):  # type: ignore[misc]
    """`spark.read.format("aerobee")`; docs/pipeline.md tells the options."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        # Spark asks before it says whether this is a stream; only `columns` matters here.
        wanted = {"columns", "includeheaders"}
        shown = {name: text for name, text in self.options.items() if name.lower() in wanted}
        options = Options(_SCHEMA_OPTIONS, shown)
        extra = options["includeHeaders"] and "headers" not in options["columns"]
        return spark_ddl((*options["columns"], "headers") if extra else options["columns"])

    def reader(self, schema: StructType) -> DataSourceReader:
        from aerobee.pipeline import pushdown

        options = source_options(self.options, streaming=False)
        columns = checked_columns(schema)
        plain, narrowing = (
            (TopicReader, pushdown.TopicReader)
            if options["path"] is None
            else (PathReader, pushdown.PathReader)
        )
        return (narrowing if options["pushdown"] else plain)(options, columns, schema)

    def streamReader(self, schema: StructType) -> Any:
        from aerobee.pipeline.stream_reader import stream_reader

        options = source_options(self.options, streaming=True)
        return stream_reader(options, checked_columns(schema), schema)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        from aerobee.pipeline.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        from aerobee.pipeline.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)


def _schema_options() -> dict[str, Any]:
    from aerobee.pipeline.options import SOURCE

    return {name: SOURCE[name] for name in ("columns", "includeHeaders")}


_SCHEMA_OPTIONS: Final = _schema_options()


def checked_columns(schema: StructType) -> tuple[str, ...]:
    """The columns of the schema given with .schema(), which must be ours, with our types."""
    for field in schema.fields:
        if field.name not in COLUMNS:
            raise OptionError(
                f"the schema has a column {field.name}, which no message has; the columns are "
                f"{', '.join(COLUMNS)}"
            )
        wanted = COLUMNS[field.name][0]
        if field.dataType.simpleString() != wanted:
            raise OptionError(
                f"column {field.name} is a {wanted}, the schema says "
                f"{field.dataType.simpleString()}; cast it after the read"
            )
    return tuple(field.name for field in schema.fields)


def arrow_schema_of(schema: StructType) -> Any:
    """The exact Arrow schema that Spark expects of the batches."""
    from pyspark.sql.pandas.types import to_arrow_schema

    takes_zone = "timezone" in inspect.signature(to_arrow_schema).parameters  # not in Spark 4.1
    return to_arrow_schema(schema, timezone="UTC") if takes_zone else to_arrow_schema(schema)


@dataclass
class RangePartition(InputPartition):  # type: ignore[misc]
    """One task's range of a queue."""

    range: Range


@dataclass
class SplitPartition(InputPartition):  # type: ignore[misc]
    """One task's part of a log file."""

    split: Split


class TopicReader(DataSourceReader):  # type: ignore[misc]
    """A batch read of topics over TCP."""

    def __init__(self, options: Options, columns: tuple[str, ...], schema: StructType) -> None:
        self.options = options
        self.plan = TopicPlan.of(options, columns)
        self.schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        return [RangePartition(one) for one in plan_batch(self.options)] or [NOTHING]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, RangePartition):
            yield from read_range(partition.range, self.plan, arrow_schema_of(self.schema))


NOTHING: Final = InputPartition(None)  # Spark wants one partition at least


class PathReader(DataSourceReader):  # type: ignore[misc]
    """A read of a store's files."""

    def __init__(self, options: Options, columns: tuple[str, ...], schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self.topics: Sequence[str] | None = options["subscribe"]
        self.selection = Selection(
            columns,
            topic_filter(options["subscribe"], options["subscribePattern"]),
            tags=_tag_set(options["tags"]),
            start_ms=options["startingTimestamp"],
            end_ms=options["endingTimestamp"],
        )

    def partitions(self) -> Sequence[InputPartition]:
        try:
            splits = self._splits(self.options["splitBytes"])
            wanted = self.options["minPartitions"] or 0
            if splits and len(splits) < wanted:
                whole = sum(split.end - split.start for split in splits)
                splits = self._splits(max(1, whole // wanted))
        except StoreError as error:
            raise OptionError(f"option path: {error}") from None
        return [SplitPartition(split) for split in splits] or [NOTHING]

    def _splits(self, split_bytes: int) -> list[Split]:
        return store_splits(
            self.options["path"],
            topics=self.topics,
            topic_pattern=self.options["subscribePattern"],
            start=self.selection.start_ms,
            end=self.selection.end_ms,
            split_bytes=split_bytes,
            sealed_only=self.options["sealedOnly"],
        )

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, SplitPartition):
            schema = arrow_schema_of(self.schema)
            yield from read_split(partition.split, self.selection, schema)


def _tag_set(text: str | None) -> frozenset[str] | None:
    from aerobee.pipeline.topic_reader import _tags

    return _tags(text)
