"""Which columns a write takes, and which properties it leaves out."""

from typing import Any, Final

from aerobee.pipeline.columns import COLUMNS
from aerobee.pipeline.options import OptionError
from aerobee.protocol.files import properties

ROW: Final = "SPARK_ROW"  # the name of a row of the exactly-once sink
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
# that is written again starts without it.
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
        ROW,
    )
)


def check_sink_schema(schema: Any, topic: str | None) -> None:
    """OptionError for a DataFrame that cannot be written."""
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    if "value" not in types:
        raise OptionError("the rows have no column value; name the message's body so")
    if topic is None and "topic" not in types:
        raise OptionError("which topic to write to is missing: set option topic, or add a column")
    if "properties" in types and "headers" in types:
        raise OptionError("the rows have properties and headers; drop one of the columns")
    for name, kind in types.items():
        if name in TAKEN and kind not in TAKEN[name]:
            wanted = " or ".join(TAKEN[name])
            raise OptionError(f"column {name} is a {kind}, expected {wanted}; cast it first")
        if name not in TAKEN and name not in COLUMNS:
            raise OptionError(
                f"column {name} cannot be written; a write takes {', '.join(TAKEN)} and ignores "
                "the other columns of a read. Drop it, or put it into properties"
            )
