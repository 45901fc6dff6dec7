"""The schema of a topic's values: read from a file, the same for tasks, tables and queries."""

from dataclasses import dataclass

from aerobee.pipeline.errors import OptionError


class SchemaError(OptionError):
    """A schema that cannot be used."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How values are read: plain values only, so that it can be pickled to tasks."""

    kind: str  # json, avro or protobuf
    source: bytes  # the schema's file
    message: str = ""  # of a Protobuf descriptor: the message's full name
