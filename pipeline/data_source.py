"""The data source `aerobee` of Spark: which reader or writer an option asks for.

Everything here runs on the driver or is pickled to the tasks, so readers hold plain values only.
"""

from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from aerobee.pipeline.columns import COLUMNS, spark_ddl
from aerobee.pipeline.errors import OptionError
from aerobee.pipeline.options import NO_TABLES, SOURCE, Options, check_limit, source_options
from aerobee.pipeline.source.batch_readers import PathReader, TopicReader
from aerobee.pipeline.source.topic_list import TOPICS_DDL, CountReader, TopicsReader, check_exists

NAME: Final = "aerobee"


class AerobeeDataSource(DataSource):  # type: ignore[misc]
    """`spark.read.format("aerobee")`; docs/pipeline.md has the options."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        # Spark asks before it says whether this is a stream; only `columns` matters here.
        if any(name.lower().startswith("option.") for name in self.options):  # from CREATE TABLE
            raise OptionError(f"CREATE TABLE cannot be used: {NO_TABLES}")
        if self.options.get("catalog") == "topics":
            return TOPICS_DDL
        if self.options.get("catalog") == "table":
            check_exists(source_options(self.options, streaming=False))
        wanted = {"columns", "includeheaders"}
        shown = {name: text for name, text in self.options.items() if name.lower() in wanted}
        options = Options(_SCHEMA_OPTIONS, shown)
        extra = options["includeHeaders"] and "headers" not in options["columns"]
        return spark_ddl((*options["columns"], "headers") if extra else options["columns"])

    def reader(self, schema: StructType) -> DataSourceReader:
        from aerobee.pipeline.source.pushdown import (
            NarrowedPathReader,
            NarrowedTopicReader,
            spark_pushes,
        )

        options = source_options(self.options, streaming=False)
        if options["catalog"] == "topics":
            return TopicsReader(options, schema)
        if options["catalog"] == "count":
            return CountReader(options, schema)
        columns = checked_columns(schema)
        plain, narrowing = (
            (TopicReader, NarrowedTopicReader)
            if options["path"] is None
            else (PathReader, NarrowedPathReader)
        )
        asked = options["pushdown"]
        narrow = spark_pushes() if asked is None else asked
        return (narrowing if narrow else plain)(options, columns, schema)

    def streamReader(self, schema: StructType) -> Any:
        from aerobee.pipeline.source.legacy_stream import LegacyStreamReader
        from aerobee.pipeline.source.stream_reader import StreamReader

        options = source_options(self.options, streaming=True)
        has_limits = hasattr(DataSourceStreamReader, "getDefaultReadLimit")  # not in Spark 4.1
        check_limit(options, spark_keeps_limits=has_limits)
        reader = StreamReader if has_limits else LegacyStreamReader
        return reader(options, checked_columns(schema), schema)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        from aerobee.pipeline.sink.writers import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        from aerobee.pipeline.sink.writers import stream_writer

        return stream_writer(self.options, schema, overwrite)


_SCHEMA_OPTIONS: Final = {name: SOURCE[name] for name in ("columns", "includeHeaders")}


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
