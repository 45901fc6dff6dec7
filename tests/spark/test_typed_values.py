"""Odd values and schemas: they become columns that Parquet can hold, or say what is wrong."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aerobee.pipeline.typed.columns import columns_of, load_shape
from aerobee.pipeline.typed.decode import decode_values
from aerobee.pipeline.typed.infer import infer
from aerobee.pipeline.typed.shape import SchemaError, Shape


def written(shape: Shape, values: list[bytes], folder: Path) -> tuple[list[Any], list[str | None]]:
    """The values' columns as rows, read from a Parquet file, and why some do not fit."""
    columns = columns_of(shape)
    arrays, reasons = decode_values(pa.array(values, pa.binary()), shape)
    casted = [array.cast(one.type) for one, array in zip(columns, arrays, strict=True)]
    pq.write_table(pa.table(casted, schema=pa.schema(columns)), folder / "t.parquet")
    return pq.read_table(folder / "t.parquet").to_pylist(), reasons


def inferred(values: list[bytes]) -> Shape:
    document, _, _ = infer(values)
    return Shape("json", json.dumps(document).encode())


@pytest.mark.parametrize(
    ("value", "column"),
    [({}, "{}"), ({"b": {}}, {"b": "{}"}), ([{}], ["{}"])],
    ids=["alone", "in an object", "in a list"],
)
def test_an_object_without_fields_is_kept_as_text(value: Any, column: Any, tmp_path: Path) -> None:
    values = [json.dumps({"id": 1, "meta": value}).encode()]
    assert written(inferred(values), values, tmp_path) == ([{"id": 1, "meta": column}], [None])


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-31T08:00:00Z",
        "2026-01-31 08:00:00+0100",
        "2026-01-31T08:00Z",
        "20260131T080000Z",
        "2026-01-31T08:00:00+01",
        "2026-W05-6T08:00:00Z",
    ],
)
def test_what_is_inferred_of_a_time_takes_that_time(text: str, tmp_path: Path) -> None:
    values = [json.dumps({"at": text}).encode()]
    _, reasons = written(inferred(values), values, tmp_path)
    assert reasons == [None]


@pytest.mark.parametrize("odd", [b"[" * 200_000, b'{"a": "\\ud800"}'], ids=["deep", "surrogate"])
def test_odd_values_do_not_end_an_inference(odd: bytes) -> None:
    document, _, _ = infer([odd, b'{"id": 1}'])
    assert document["properties"]["id"] == {"type": "integer"}


def test_a_protobuf_message_without_fields_is_kept_as_text(tmp_path: Path) -> None:
    pb2: Any = pytest.importorskip("google.protobuf.descriptor_pb2")
    kinds = pb2.FieldDescriptorProto
    file = pb2.FileDescriptorProto(name="o.proto", package="shop", syntax="proto3")
    file.message_type.add(name="Nothing")
    message = file.message_type.add(name="Order")
    for number, label in ((1, kinds.LABEL_OPTIONAL), (2, kinds.LABEL_REPEATED)):
        message.field.add(
            name=f"f{number}",
            number=number,
            type=kinds.TYPE_MESSAGE,
            type_name=".shop.Nothing",
            label=label,
        )
    source = pb2.FileDescriptorSet(file=[file]).SerializeToString()
    values = [b"\x0a\x00\x12\x00", b""]
    rows, reasons = written(Shape("protobuf", source, "shop.Order"), values, tmp_path)
    assert rows == [{"f1": "{}", "f2": ["{}"]}, {"f1": None, "f2": []}]
    assert reasons == [None, None]


def avro(*fields: Any) -> dict[str, Any]:
    numbered = [{"name": f"f{n}", "type": kind} for n, kind in enumerate(fields)]
    return {"type": "record", "name": "Order", "fields": numbered}


def logical(kind: str, name: str) -> dict[str, str]:
    return {"type": kind, "logicalType": name}


def test_avro_values_of_any_logical_type_are_columns(tmp_path: Path) -> None:
    fastavro = pytest.importorskip("fastavro")
    schema = avro(
        ["null", logical("string", "uuid")],
        {"type": "array", "items": logical("int", "time-millis")},
        logical("long", "local-timestamp-micros"),
        logical("int", "date"),
        logical("long", "timestamp-micros"),
    )
    day, moment = date(2026, 1, 31), datetime(2026, 1, 31, 8, tzinfo=UTC)
    row = {"f0": "8b2c", "f1": [1, 2], "f2": 3, "f3": day, "f4": moment}
    plain = avro(["null", "string"], {"type": "array", "items": "int"}, "long", "int", "long")
    out = io.BytesIO()
    stored = row | {"f3": (day - date(1970, 1, 1)).days, "f4": round(moment.timestamp() * 1e6)}
    fastavro.schemaless_writer(out, fastavro.parse_schema(plain), stored)
    shape = Shape("avro", json.dumps(schema).encode())
    assert written(shape, [out.getvalue()], tmp_path) == ([row], [None])


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ({"type": "record", "name": "Nothing", "fields": []}, "Nothing has no fields"),
        (logical("bytes", "decimal") | {"precision": 50}, "50 digits"),
    ],
)
def test_an_avro_type_without_a_column_type_is_refused_at_once(
    kind: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    (tmp_path / "order.avsc").write_text(json.dumps(avro(kind)))
    with pytest.raises(SchemaError, match=problem):
        load_shape(str(tmp_path / "order.avsc"))
