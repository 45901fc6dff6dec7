"""The ext fields of requests as typed values, a struct for each request that needs it.

Attribute names are Python's, wire names RocketMQ's. `decode_ext` says which field is wrong.
"""

import re
from functools import cache
from typing import Annotated, Any, Final, TypeVar, get_type_hints

import msgspec
from msgspec import Meta

from aerobee.protocol.names import TEMPLATE_TOPIC

Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]

_JAVA_NUMBER: Final = re.compile("[+-]?[0-9]{1,100}")

PULL_COMMIT_OFFSET: Final = 1
PULL_SUSPEND: Final = 2
PULL_SUBSCRIPTION: Final = 4


class HeaderError(ValueError):
    """A request's ext fields lack one or hold one of the wrong kind."""


class Header(msgspec.Struct, rename="camel"):
    """The fields of one request code."""


class SendRequest(Header):
    """SEND_MESSAGE with the long names."""

    topic: str
    queue_id: Int32
    producer_group: str = ""
    default_topic: str = TEMPLATE_TOPIC
    default_topic_queue_nums: Int32 = 4
    sys_flag: Int32 = 0
    born_timestamp: Int64 = 0
    flag: Int32 = 0
    properties: str = ""
    reconsume_times: Int32 = 0
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    batch: bool = False


# SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE carry the same fields under one letter each.
SEND_V2_NAMES: Final = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "l": "maxReconsumeTimes",
    "m": "batch",
}


class PullRequest(Header):
    """PULL_MESSAGE and LITE_PULL_MESSAGE."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64 = 0
    suspend_timeout_millis: Int64 = 0
    subscription: str | None = None
    sub_version: Int64 = 0
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None


T = TypeVar("T", bound=msgspec.Struct)


@cache
def _names_of(kind: type[msgspec.Struct], value: type) -> tuple[str, ...]:
    """The wire names of the fields of one type."""
    hints = get_type_hints(kind)
    return tuple(
        field.encode_name
        for field in msgspec.structs.fields(kind)
        if hints[field.name] in (value, value | None)
    )


def decode_ext(ext: dict[str, str], kind: type[T]) -> T:
    """`ext` as a value of `kind`; a boolean is true only for "true" (any case) and the 1 of C++,
    a number may begin with a plus or with zeros as Java's may."""
    values: dict[str, Any] = ext
    booleans = [name for name in _names_of(kind, bool) if name in ext]
    if booleans:
        values = dict(ext)
        for name in booleans:
            values[name] = ext[name].lower() in ("true", "1")
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        problem = error
    numbers = {name: ext[name] for name in _names_of(kind, int) if name in ext}
    values = values | {name: _as_java_reads(text) for name, text in numbers.items()}
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError:
        raise HeaderError(f"the request's fields cannot be used: {problem}") from None


def _as_java_reads(text: str) -> str | int:
    return int(text) if _JAVA_NUMBER.fullmatch(text) else text


def decode_send_v2(ext: dict[str, str]) -> SendRequest:
    """The one-letter ext fields of SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE."""
    names = SEND_V2_NAMES
    return decode_ext(
        {names[name]: text for name, text in ext.items() if name in names}, SendRequest
    )
