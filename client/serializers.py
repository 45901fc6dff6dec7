"""How values become bodies and back: JSON, MessagePack, or functions of your own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec


@dataclass(frozen=True, slots=True)
class Serializer:
    """`dumps` makes the body of a value, `loads` the value of a body."""

    dumps: Callable[[Any], bytes]
    loads: Callable[[bytes], Any]


def _plain(value: Any) -> Any:
    """What msgspec does not know: a model of Pydantic's."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} cannot be serialized")


def _dump_json(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=_plain)


def _dump_msgpack(value: Any) -> bytes:
    return msgspec.msgpack.encode(value, enc_hook=_plain)


JSON: Final = Serializer(_dump_json, msgspec.json.decode)
MSGPACK: Final = Serializer(_dump_msgpack, msgspec.msgpack.decode)


def json_of(kind: Any) -> Serializer:
    """JSON of one type, and checked: a dataclass, a TypedDict, a Pydantic model."""
    if hasattr(kind, "model_validate_json"):
        return _checked(_dump_json, kind.model_validate_json)
    return _checked(_dump_json, msgspec.json.Decoder(kind).decode)


def msgpack_of(kind: Any) -> Serializer:
    """MessagePack of one type, and checked."""
    if hasattr(kind, "model_validate"):
        decode = msgspec.msgpack.decode
        return _checked(_dump_msgpack, lambda body: kind.model_validate(decode(body)))
    return _checked(_dump_msgpack, msgspec.msgpack.Decoder(kind).decode)


def _checked(dumps: Callable[[Any], bytes], loads: Callable[[bytes], Any]) -> Serializer:
    """What a consumer could not read is not sent: it would end among the dead letters."""

    def dumps_readable(value: Any) -> bytes:
        body = dumps(value)
        loads(body)
        return body

    return Serializer(dumps_readable, loads)
