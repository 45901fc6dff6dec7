"""The columns of a message: names, order, Spark types and Arrow types.

The first six are those of Spark's Kafka source. `timestamp` is the time at which the broker stored
the message; `partition` is the queue, which is unique only together with `broker`.
"""

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
HEADERS: Final = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
KEYS: Final = pa.list_(pa.field("element", pa.string()))

# name: (Spark's type, Arrow's type)
COLUMNS: Final[dict[str, tuple[str, Any]]] = {
    "key": ("binary", pa.binary()),
    "value": ("binary", pa.binary()),
    "topic": ("string", pa.string()),
    "partition": ("int", pa.int32()),
    "offset": ("bigint", pa.int64()),
    "timestamp": ("timestamp", TIMESTAMP),
    "tags": ("string", pa.string()),
    "properties": ("map<string,string>", pa.map_(pa.string(), pa.string())),
    "bornTimestamp": ("timestamp", TIMESTAMP),
    "messageId": ("string", pa.string()),
    "reconsumeTimes": ("int", pa.int32()),
    "bornHost": ("string", pa.string()),
    "storeHost": ("string", pa.string()),
    "flag": ("int", pa.int32()),
    "sysFlag": ("int", pa.int32()),
    "broker": ("string", pa.string()),
    # on request only
    "headers": ("array<struct<key:string,value:binary>>", HEADERS),
    "keys": ("array<string>", KEYS),
    "storeTimestamp": ("timestamp", TIMESTAMP),
    "offsetMessageId": ("string", pa.string()),
    "physicalOffset": ("bigint", pa.int64()),
    "storeSize": ("int", pa.int32()),
    "bodyCrc": ("int", pa.int32()),
    "preparedTransactionOffset": ("bigint", pa.int64()),
}
DEFAULT_COLUMNS: Final = tuple(COLUMNS)[: tuple(COLUMNS).index("headers")]


class UnknownColumn(ValueError):
    """A column was asked for that no message has."""


def check_columns(names: Sequence[str]) -> tuple[str, ...]:
    """`names` as they are, or UnknownColumn with the list of those that exist."""
    if not names:
        raise UnknownColumn("no column was asked for; name at least one")
    for name in names:
        if name not in COLUMNS:
            raise UnknownColumn(
                f"there is no column {name!r}; the columns are {', '.join(COLUMNS)}"
            )
    if len(set(names)) < len(names):
        raise UnknownColumn(f"a column is named twice in {', '.join(names)}")
    return tuple(names)


def arrow_schema(names: Sequence[str] = DEFAULT_COLUMNS) -> Any:
    """The Arrow schema of the batches with these columns."""
    return pa.schema([pa.field(name, COLUMNS[name][1]) for name in check_columns(names)])


def spark_ddl(names: Sequence[str] = DEFAULT_COLUMNS) -> str:
    """The same schema as Spark's DDL text."""
    return ", ".join(f"`{name}` {COLUMNS[name][0]}" for name in check_columns(names))
