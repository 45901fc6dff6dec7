"""Rows of a DataFrame as messages: which columns a write takes, and each row's properties."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from aerobee.pipeline.columns import COLUMNS
from aerobee.pipeline.options import OptionError
from aerobee.protocol import properties
from aerobee.protocol.ids import UniqueIds
from aerobee.protocol.properties import NAME_END, PAIR_END

# column: the Spark types it may have
TAKEN: Final[dict[str, tuple[str, ...]]] = {
    "value": ("binary", "string"),
    "topic": ("string",),
    "key": ("binary", "string"),
    "tags": ("string",),
    "properties": ("map<string,string>",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "partition": ("int",),
    "flag": ("int",),
}
# What brokers and the machinery of retries, timers and transactions put into a message: a message
# that is written anew starts without it.
BROKER_MADE: Final = frozenset(
    (
        properties.MSG_REGION,
        properties.TRACE_ON,
        properties.CLUSTER,
        properties.CRC32,
        properties.WAIT,
        properties.REAL_TOPIC,
        properties.REAL_QID,
        properties.TRAN_MSG,
        properties.PGROUP,
        properties.TRAN_PREPARED_QUEUE_OFFSET,
        properties.TRANSACTION_ID,
        properties.TRANSACTION_CHECK_TIMES,
        properties.POP_CK,
        properties.DELAY,
        properties.TIMER_DELIVER_MS,
        properties.TIMER_DELAY_MS,
        properties.TIMER_DELAY_SEC,
        properties.TIMER_OUT_MS,
        properties.TIMER_ENQUEUE_MS,
        properties.TIMER_DEQUEUE_MS,
        properties.TIMER_ROLL_TIMES,
        "MIN_OFFSET",
        "MAX_OFFSET",
        "1ST_POP_TIME",
        "INNER_NUM",
        "INNER_BASE",
        "SPARK_ROW",
    )
)


class OutRow(NamedTuple):
    """One message to write; `queue_id` None leaves the choice to the writer."""

    topic: str
    queue_id: int | None
    flag: int
    body: bytes
    properties: str


def check_sink_schema(schema: Any, topic: str | None) -> None:
    """OptionError for a DataFrame that cannot be written."""
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    if "value" not in types:
        raise OptionError("the rows have no column value; name the message's body so")
    if topic is None and "topic" not in types:
        raise OptionError("which topic to write to is missing: set option topic, or add a column")
    for name, kind in types.items():
        if name in TAKEN and kind not in TAKEN[name]:
            wanted = " or ".join(TAKEN[name])
            raise OptionError(f"column {name} is a {kind}, expected {wanted}; cast it first")
        if name not in TAKEN and name not in COLUMNS:
            raise OptionError(
                f"column {name} cannot be written; a write takes {', '.join(TAKEN)} and ignores "
                "the other columns of a read. Drop it, or put it into properties"
            )


def out_rows(batch: Any, topic: str | None, ids: UniqueIds) -> Iterator[OutRow]:
    """The messages of one RecordBatch."""
    names = set(batch.schema.names)

    def values(name: str) -> Any:
        if name not in names:
            return [None] * batch.num_rows
        return batch.column(batch.schema.get_field_index(name)).to_pylist()

    topics = [topic] * batch.num_rows if topic else values("topic")
    columns = ("value", "key", "tags", "properties", "headers", "partition", "flag")
    for row_topic, value, key, tags, pairs, headers, queue_id, flag in zip(
        topics, *(values(name) for name in columns), strict=True
    ):
        if value is None or row_topic is None:
            empty = "value" if value is None else "topic"
            raise OptionError(f"a row's {empty} is null; a message needs one: filter such rows out")
        body = value.encode() if isinstance(value, str) else value
        text = _properties(pairs or (), headers or (), key, tags, ids)
        yield OutRow(row_topic, queue_id, flag or 0, body, text)


def _properties(pairs: Any, headers: Any, key: Any, tags: str | None, ids: UniqueIds) -> str:
    """The property string; the columns key and tags win over entries of the map."""
    table = {name: value for name, value in pairs if name not in BROKER_MADE and value}
    for header in headers:
        if header["value"]:
            table[header["key"]] = header["value"].decode()
    if key is not None:
        table[properties.KEYS] = key.decode() if isinstance(key, bytes) else key
    if tags is not None:
        table[properties.TAGS] = tags
    if properties.UNIQ_KEY not in table:
        table[properties.UNIQ_KEY] = ids.next()
    for name, value in table.items():
        if NAME_END in name or PAIR_END in name or PAIR_END in value:
            raise OptionError(f"property {name!r} holds \\x01 or \\x02, which separate properties")
    return properties.encode({name: value for name, value in table.items() if value})
