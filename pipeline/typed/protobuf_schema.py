"""Protobuf: by the descriptor set that `protoc --include_imports --descriptor_set_out` writes."""

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from aerobee.pipeline.columns import TIMESTAMP
from aerobee.pipeline.typed.shape import SchemaError, Shape

_STAMP: Final = "google.protobuf.Timestamp"


def _message(shape: Shape) -> Any:
    """The class of the shape's message."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.message import DecodeError

    files = descriptor_pb2.FileDescriptorSet()
    pool = descriptor_pool.DescriptorPool()
    try:
        files.ParseFromString(shape.source)
        for file in files.file:
            pool.Add(file)
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(shape.message))
    except (DecodeError, TypeError) as error:
        text = f"{error}; was it made with --include_imports?"
        raise SchemaError(f"the descriptor set cannot be read: {text}") from None
    except KeyError:
        raise SchemaError(f"the descriptor set has no message {shape.message}") from None


def arrow_fields(shape: Shape) -> list[Any]:
    return _fields(_message(shape).DESCRIPTOR, ())


def _fields(descriptor: Any, above: tuple[str, ...]) -> list[Any]:
    if descriptor.full_name in above:
        raise SchemaError(f"{descriptor.full_name} is recursive: there is no column type for that")
    names = (*above, descriptor.full_name)
    return [pa.field(one.name, _type(one, names)) for one in descriptor.fields]


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _has_fields(field: Any) -> bool:
    return bool(field.message_type.fields)


def _type(field: Any, above: tuple[str, ...]) -> Any:
    if _is_map(field):
        key, value = (
            field.message_type.fields_by_name["key"],
            field.message_type.fields_by_name["value"],
        )
        return pa.map_(_single(key, above), _single(value, above))
    kind = _single(field, above)
    return pa.list_(pa.field("element", kind)) if field.is_repeated else kind


def _single(field: Any, above: tuple[str, ...]) -> Any:
    from google.protobuf.descriptor import FieldDescriptor as F

    kinds = {
        F.CPPTYPE_INT32: pa.int32(),
        F.CPPTYPE_INT64: pa.int64(),
        F.CPPTYPE_UINT32: pa.int64(),
        F.CPPTYPE_UINT64: pa.decimal128(20, 0),
        F.CPPTYPE_DOUBLE: pa.float64(),
        F.CPPTYPE_FLOAT: pa.float32(),
        F.CPPTYPE_BOOL: pa.bool_(),
        F.CPPTYPE_ENUM: pa.string(),
    }
    if field.cpp_type == F.CPPTYPE_STRING:
        return pa.binary() if field.type == F.TYPE_BYTES else pa.string()
    if field.cpp_type == F.CPPTYPE_MESSAGE:
        if field.message_type.full_name == _STAMP:
            return TIMESTAMP
        # A struct without fields cannot be written to Parquet.
        return pa.struct(_fields(field.message_type, above)) if _has_fields(field) else pa.string()
    return kinds[field.cpp_type]


def decoder(shape: Shape) -> Callable[[bytes], dict[str, Any]]:
    """Reads one value; ValueError says that it does not fit."""
    from google.protobuf.message import DecodeError

    kind = _message(shape)

    def decode(value: bytes) -> dict[str, Any]:
        message = kind()
        try:
            message.ParseFromString(value)
        except DecodeError as error:
            raise ValueError(f"no {shape.message}: {error}") from None
        return _row(message)

    return decode


def _row(message: Any) -> dict[str, Any]:
    """An unset field is null where Protobuf tracks presence, else its default."""
    row: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if _is_map(field):
            inner = field.message_type.fields_by_name["value"]
            row[field.name] = [(key, _value(inner, one)) for key, one in value.items()]
        elif field.is_repeated:
            row[field.name] = [_value(field, one) for one in value]
        elif field.has_presence and not message.HasField(field.name):
            row[field.name] = None
        else:
            row[field.name] = _value(field, value)
    return row


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        if field.message_type.full_name == _STAMP:
            return value.ToDatetime()
        return _row(value) if _has_fields(field) else "{}"
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known else str(value)
    return value
