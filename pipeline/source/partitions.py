"""The partitions and the Arrow schema of a read, as Spark wants them."""

import inspect
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from aerobee.pipeline.source.history import Part
from aerobee.pipeline.source.puller import Range
from aerobee.pipeline.source.readings import Address
from aerobee.pipeline.source.store_files import Split

NOTHING: Final = InputPartition(None)  # Spark wants one partition at least


def arrow_schema_of(schema: StructType) -> Any:
    """The exact Arrow schema that Spark expects of the batches."""
    from pyspark.sql.pandas.types import to_arrow_schema

    takes_zone = "timezone" in inspect.signature(to_arrow_schema).parameters  # not in Spark 4.1
    return to_arrow_schema(schema, timezone="UTC") if takes_zone else to_arrow_schema(schema)


@dataclass
class RangePartition(InputPartition):  # type: ignore[misc]
    """One task's range of a queue."""

    range: Range
    report_to: Address | None = None  # where the task reports what it has read


@dataclass
class PastPartition(InputPartition):  # type: ignore[misc]
    """One task's files of the table that holds the topic's past."""

    part: Part


@dataclass
class SplitPartition(InputPartition):  # type: ignore[misc]
    """One task's part of a log file."""

    split: Split
