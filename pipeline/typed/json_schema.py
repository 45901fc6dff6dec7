"""JSON schema: to Arrow's types, and to msgspec's, which check and say what does not fit.

Checked are types, required fields and enumerations of text. Fields that the schema does not name
are ignored; what has no type, or several, or is an object without fields, becomes JSON text.
"""

import datetime as dt
import json
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, Required, TypedDict

import msgspec
import pyarrow as pa

from aerobee.pipeline.columns import TIMESTAMP
from aerobee.pipeline.typed.shape import SchemaError, Shape

_INT64: Final = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_SIMPLE: Final[dict[str, tuple[Any, Any]]] = {
    "integer": (pa.int64(), _INT64),
    "number": (pa.float64(), float),
    "boolean": (pa.bool_(), bool),
    "string": (pa.string(), str),
}
_FORMATS: Final[dict[str, tuple[Any, Any]]] = {
    "date-time": (TIMESTAMP, dt.datetime),
    "date": (pa.date32(), dt.date),
}


class JsonText(str):
    """A part of a value that is kept as JSON."""


_TEXT: Final = (pa.string(), JsonText)


def _document(shape: Shape) -> dict[str, Any]:
    try:
        document = json.loads(shape.source)
    except ValueError as error:
        raise SchemaError(f"the JSON schema is not JSON: {error}") from None
    if isinstance(document, dict):
        properties = document.get("properties")
        if isinstance(properties, dict) and properties:
            return document
    raise SchemaError("the JSON schema must be an object's, with properties")


def arrow_fields(shape: Shape) -> list[Any]:
    document = _document(shape)
    kind, _ = _types(document, document, ())
    return list(kind)


def decoder(shape: Shape) -> Callable[[bytes], dict[str, Any]]:
    """Reads one value; ValueError says what does not fit and where."""
    document = _document(shape)
    _, checked = _types(document, document, ())
    inner = msgspec.json.Decoder(checked, dec_hook=_json_text)

    def decode(value: bytes) -> dict[str, Any]:
        row: dict[str, Any] = inner.decode(value)
        return row

    return decode


def _json_text(_kind: type, value: Any) -> JsonText:
    return JsonText(json.dumps(value, ensure_ascii=False))


def _types(node: dict[str, Any], root: dict[str, Any], above: tuple[str, ...]) -> tuple[Any, Any]:
    """Arrow's and msgspec's type of a part of the schema."""
    if "$ref" in node:
        target = node["$ref"]
        if target in above or not target.startswith("#/"):
            raise SchemaError(f"$ref {target}: only definitions inside the schema, without cycles")
        found: Any = root
        for step in target[2:].split("/"):
            found = found.get(step, {})
        return _types(found, root, (*above, target))
    kinds = [kind for kind in _kinds(node) if kind != "null"]
    if len(kinds) != 1:
        return _TEXT
    if kinds[0] == "object":
        return _object(node, root, above)
    if kinds[0] == "array":
        kind, checked = _types(node.get("items", {}), root, above)
        return pa.list_(pa.field("element", kind)), list[checked | None]  # type: ignore[valid-type]
    if kinds[0] == "string" and node.get("format") in _FORMATS:
        return _FORMATS[node["format"]]
    words = node.get("enum", ())
    if kinds[0] == "string" and words and all(isinstance(word, str) for word in words):
        return pa.string(), Literal[tuple(words)]
    return _SIMPLE.get(kinds[0], _TEXT)


def _kinds(node: dict[str, Any]) -> list[str]:
    kinds = node.get("type", "object" if "properties" in node else [])
    return [kinds] if isinstance(kinds, str) else list(kinds)


def _object(node: dict[str, Any], root: dict[str, Any], above: tuple[str, ...]) -> tuple[Any, Any]:
    properties = node.get("properties")
    if not properties:  # a struct without fields cannot be written to Parquet
        more = node.get("additionalProperties")
        if not isinstance(more, dict):
            return _TEXT
        kind, checked = _types(more, root, above)
        return pa.map_(pa.string(), kind), dict[str, checked | None]  # type: ignore[valid-type]
    fields, members = [], {}
    needed = set(node.get("required", ()))
    for name, part in properties.items():
        kind, checked = _types(part, root, above)
        fields.append(pa.field(name, kind))
        has_null = "null" in _kinds(part) or name not in needed
        whole = checked | None if has_null else checked
        members[name] = Required[whole] if name in needed else whole
    return pa.struct(fields), TypedDict("Value", members, total=False)  # type: ignore[operator]
