"""Avro: values in its binary form without a header, by fastavro."""

import io
import json
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from aerobee.pipeline.columns import TIMESTAMP
from aerobee.pipeline.typed.shape import SchemaError, Shape

_SIMPLE: Final[dict[str, Any]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL: Final[dict[str, Any]] = {
    "date": pa.date32(),
    "timestamp-millis": TIMESTAMP,
    "timestamp-micros": TIMESTAMP,
}
_DIGITS_MAX: Final = 38  # of a decimal, in Delta, Iceberg and Spark


def _parsed(shape: Shape) -> Any:
    from fastavro import parse_schema

    try:
        schema = parse_schema(_plain(json.loads(shape.source)))
    except Exception as error:
        raise SchemaError(f"the Avro schema cannot be read: {error}") from None
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise SchemaError("the Avro schema must be a record's")
    return schema


def _plain(node: Any) -> Any:
    """The schema with those logical types only that have a column type: of the others (uuid, times
    of day, local times) the values come as what they are stored as."""
    if isinstance(node, list):
        return [_plain(one) for one in node]
    if not isinstance(node, dict):
        return node
    known = node.get("logicalType") in (*_LOGICAL, "decimal")
    left_out = () if known else ("logicalType",)
    inside = ("type", "fields", "items", "values")
    return {
        name: _plain(part) if name in inside else part
        for name, part in node.items()
        if name not in left_out
    }


def arrow_fields(shape: Shape) -> list[Any]:
    named: dict[str, Any] = {}
    return [pa.field(one["name"], _type(one["type"], named)) for one in _parsed(shape)["fields"]]


def _type(node: Any, named: dict[str, Any]) -> Any:
    if isinstance(node, list):
        kinds = [one for one in node if one != "null"]
        if len(kinds) != 1:
            raise SchemaError("a union of several types has no column type; only with null")
        return _type(kinds[0], named)
    if isinstance(node, str):
        found = _SIMPLE.get(node, named.get(node))
        if found is None:
            raise SchemaError(f"the Avro type {node} is not supported")
        return found
    if node.get("logicalType") == "decimal":
        if node["precision"] > _DIGITS_MAX:
            raise SchemaError(f"a decimal of {node['precision']} digits has no column type")
        return pa.decimal128(node["precision"], node.get("scale", 0))
    if node.get("logicalType") in _LOGICAL:
        return _LOGICAL[node["logicalType"]]
    kind = node["type"]
    if kind == "array":
        return pa.list_(pa.field("element", _type(node["items"], named)))
    if kind == "map":
        return pa.map_(pa.string(), _type(node["values"], named))
    if kind == "record":
        fields = [pa.field(one["name"], _type(one["type"], named)) for one in node["fields"]]
        if not fields:  # a struct without them cannot be written to Parquet
            raise SchemaError(f"the record {node['name']} has no fields, so no column type")
        named[node["name"]] = pa.struct(fields)
        return named[node["name"]]
    if kind in ("enum", "fixed"):
        named[node["name"]] = pa.string() if kind == "enum" else pa.binary()
        return named[node["name"]]
    return _type(kind, named)


def decoder(shape: Shape) -> Callable[[bytes], dict[str, Any]]:
    """Reads one value; ValueError says that it does not fit."""
    from fastavro import schemaless_reader

    schema = _parsed(shape)

    def decode(value: bytes) -> dict[str, Any]:
        stream = io.BytesIO(value)
        try:
            row: dict[str, Any] = schemaless_reader(stream, schema, None)
        except Exception as error:
            raise ValueError(f"no value of the Avro schema: {error!r}") from None
        if stream.read(1):
            raise ValueError("bytes follow the value of the Avro schema")
        return row

    return decode
