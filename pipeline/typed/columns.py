"""Which columns a schema makes, and how they fit a table that is there."""

from pathlib import Path
from typing import Any

import pyarrow as pa

from aerobee.pipeline.columns import COLUMNS
from aerobee.pipeline.lake.data_files import TIMES
from aerobee.pipeline.typed.decode import fields_of
from aerobee.pipeline.typed.shape import SchemaError, Shape


def column_of(name: str) -> str:
    """The field's column name, changed if a message has a column of that name (in any case, as
    Spark ignores it)."""
    taken = {column.lower() for column in (*COLUMNS, *TIMES, "reason")}
    return f"value_{name}" if name.lower() in taken else name


def nullable(kind: Any) -> Any:
    """The type with all its parts nullable, and with Spark's name for what is in a list."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, nullable(one.type)) for one in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", nullable(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(nullable(kind.key_type), nullable(kind.item_type))
    return kind


def columns_of(shape: Shape) -> list[Any]:
    """The columns of the shape, all of them nullable: a later schema may lack a field."""
    return [pa.field(column_of(one.name), nullable(one.type)) for one in fields_of(shape)]


def load_shape(where: str) -> Shape:
    """orders.json (JSON schema), orders.avsc, or orders.desc:shop.Order (a descriptor set)."""
    path, _, message = where.partition(":")
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        raise SchemaError(f"the schema {path} cannot be read: {error.strerror}") from None
    kinds = {".json": "json", ".avsc": "avro", ".desc": "protobuf", ".pb": "protobuf"}
    kind = kinds.get(Path(path).suffix)
    if kind is None:
        raise SchemaError(f"{path}: a schema is a .json, .avsc or .desc (protoc) file")
    if (kind == "protobuf") != bool(message):
        raise SchemaError("a descriptor needs the name of its message: orders.desc:shop.Order")
    shape = Shape(kind, source, message)
    try:
        names = [one.name.lower() for one in columns_of(shape)]
    except ImportError as error:
        raise SchemaError(f"{error}; pip install 'aerobee[lake]'") from None
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise SchemaError(f"{path} has {twice[0]} twice, as Spark ignores a name's case")
    return shape


def merged(there: Any, wanted: Any) -> Any:
    """The type with the fields of both, those that are there first; None where they contradict."""
    if there == wanted:
        return there
    if pa.types.is_struct(there) and pa.types.is_struct(wanted):
        kinds = {one.name: one.type for one in there}
        for one in wanted:
            kinds[one.name] = merged(kinds.get(one.name, one.type), one.type)
        return None if None in kinds.values() else pa.struct(list(kinds.items()))
    if pa.types.is_list(there) and pa.types.is_list(wanted):
        kind = merged(there.value_type, wanted.value_type)
        return None if kind is None else pa.list_(pa.field("element", kind))
    if pa.types.is_map(there) and pa.types.is_map(wanted) and there.key_type == wanted.key_type:
        kind = merged(there.item_type, wanted.item_type)
        return None if kind is None else pa.map_(there.key_type, kind)
    return None


def grown(known: Any, shape: Shape) -> list[Any]:
    """What a table with the schema `known` lacks: new columns, and columns with new fields inside.

    SchemaError where a column would get another type.
    """
    more, broken = [], []
    for one in columns_of(shape):
        if one.name not in known.names:
            more.append(one)
            continue
        there = nullable(known.field(one.name).type)
        kind = merged(there, one.type)
        if kind is None:
            broken.append(f"{one.name} is {there} in the table, {one.type} in the schema")
        elif kind != there:
            more.append(pa.field(one.name, kind))
    if broken:
        raise SchemaError(
            f"the schema does not fit the table: {'; '.join(broken)}. Rename the field, or keep "
            "another table"
        )
    return more
