"""How values become bodies and back: JSON, MessagePack, or functions of your own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec


@dataclass(frozen=True, slots=True)
class Serializer:
    """`dumps` encodes a value as a body, `loads` decodes it."""

    dumps: Callable[[Any], bytes]
    loads: Callable[[bytes], Any]


def _plain(value: Any) -> Any:
    """The fallback for types that msgspec does not know: Pydantic models."""
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
    """JSON validated against one type: a dataclass, a TypedDict, a Pydantic model."""
    if hasattr(kind, "model_validate_json"):
        return _checked(_dump_json, kind.model_validate_json)
    return _checked(_dump_json, msgspec.json.Decoder(kind).decode)


def msgpack_of(kind: Any) -> Serializer:
    """MessagePack validated against one type."""
    if hasattr(kind, "model_validate"):
        decode = msgspec.msgpack.decode
        return _checked(_dump_msgpack, lambda body: kind.model_validate(decode(body)))
    return _checked(_dump_msgpack, msgspec.msgpack.Decoder(kind).decode)


def _checked(dumps: Callable[[Any], bytes], loads: Callable[[bytes], Any]) -> Serializer:
    """Validate before sending: an invalid body would end up among the dead letters."""

    def dumps_readable(value: Any) -> bytes:
        body = dumps(value)
        loads(body)
        return body

    return Serializer(dumps_readable, loads)
