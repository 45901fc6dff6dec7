"""The value as columns: by JSON schema, Avro and Protobuf; rows that do not fit stand beside."""

from __future__ import annotations

import io
import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from click.testing import CliRunner
from peers.aerobee_broker import AerobeeBroker
from peers.wire import Wire
from pyspark.sql import SparkSession
from spark.helpers import create_topic, produce
from spark.lake_readers import FORMATS

from aerobee.pipeline.cli import pipeline
from aerobee.pipeline.jobs import rejected
from aerobee.pipeline.jobs.table import Keeper, TableJob, keep_table
from aerobee.pipeline.lake.data_files import read_rows
from aerobee.pipeline.lake.opening import open_table, rejected_place
from aerobee.pipeline.typed.columns import columns_of, load_shape
from aerobee.pipeline.typed.decode import decode_values
from aerobee.pipeline.typed.shape import SchemaError, Shape

ORDER: dict[str, Any] = {
    "type": "object",
    "required": ["id", "amount"],
    "properties": {
        "id": {"type": "integer"},
        "amount": {"type": "number"},
        "state": {"enum": ["new", "paid"], "type": "string"},
        "lines": {
            "type": "array",
            "items": {"type": "object", "properties": {"sku": {"type": "string"}}},
        },
        "timestamp": {"type": "string", "format": "date-time"},
    },
}
pytestmark = pytest.mark.timeout(400)  # a busy machine starts workers slowly


def shape_of(schema: dict[str, Any]) -> Shape:
    return Shape("json", json.dumps(schema).encode())


SCHEMA = shape_of(ORDER)


def order(n: int, **more: Any) -> bytes:
    return json.dumps({"id": n, "amount": n / 2, "lines": [{"sku": f"s{n}"}]} | more).encode()


def rows_of(where: str, *columns: str) -> list[Any]:
    table = open_table(where)
    found = [
        row
        for one in table.files()
        for rows in read_rows(one, columns, table.schema())
        for row in rows.to_pylist()
    ]
    return sorted(found, key=str)


def job(broker: AerobeeBroker, where: Path, topic: str, kind: str, schema: Shape) -> TableJob:
    return TableJob(broker.namesrv, str(where), topic, table_format=kind, schema=schema)


@pytest.mark.parametrize("table_format", FORMATS)
def test_values_are_columns_and_what_does_not_fit_stands_beside_with_the_reason(
    spark: SparkSession, broker: AerobeeBroker, tmp_path: Path, table_format: str
) -> None:
    topic = f"typed-{table_format}"
    create_topic(broker.broker, topic, 2)
    good = [order(n, timestamp="2026-01-31T08:00:00Z") for n in range(40)]
    produce(broker.namesrv, topic, good)
    produce(broker.namesrv, topic, [b"no json", b'{"id": 1}', order(7, amount="much")])
    where = tmp_path / "t"
    this = job(broker, where, topic, table_format, SCHEMA)
    assert keep_table(spark, this, print) == 43
    found = rows_of(str(where), "id", "amount", "lines", "value_timestamp", "value")
    assert sorted(row["id"] for row in found) == list(range(40))
    assert found[0]["lines"] == [{"sku": "s0"}] and found[0]["value_timestamp"].year == 2026
    beside = rows_of(rejected_place(str(where)), "value", "reason")
    assert {bytes(row["value"]): row["reason"] for row in beside} == {
        b"no json": "JSON is malformed: invalid character (byte 4)",
        b'{"id": 1}': "Object missing required field `amount`",
        order(7, amount="much"): "Expected `float`, got `str` - at `$.amount`",
    }

    # The whole topic is still there for `history`, in both tables together.
    reader = spark.read.format("aerobee").options(namesrv=broker.namesrv, subscribe=topic)
    assert reader.option("history", str(where)).load().count() == 43

    # A schema that grows adds a column, and rows that fit it now move over.
    more = ORDER["properties"] | {"note": {"type": "string"}}
    grown = ORDER | {"properties": more, "required": ["id"]}
    produce(broker.namesrv, topic, [order(100, note="hi")])
    this = job(broker, where, topic, table_format, Shape("json", json.dumps(grown).encode()))
    with closing(Keeper(spark, this)) as keeper:
        assert keeper.retry_rejected() == (1, 2)
        assert keeper.retry_rejected() == (0, 2)
        assert keeper.trigger() is not None
        while keeper.trigger():
            pass
    notes = {row["id"]: row["note"] for row in rows_of(str(where), "id", "note")}
    assert notes == dict.fromkeys(range(40)) | {1: None, 100: "hi"}
    assert len(rows_of(rejected_place(str(where)), "value")) == 2
    assert reader.option("history", str(where)).load().count() == 44

    # One that would break is refused, with the difference.
    broken = ORDER | {"properties": more | {"id": {"type": "string"}}}
    this = job(broker, where, topic, table_format, Shape("json", json.dumps(broken).encode()))
    with pytest.raises(SchemaError, match="id is int64 in the table, string in the schema"):
        Keeper(spark, this)


def test_a_retry_killed_between_its_two_commits_doubles_nothing(
    spark: SparkSession, broker: AerobeeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(broker.broker, "cut-short", 1)
    produce(broker.namesrv, "cut-short", [order(1), b'{"id": 2}', b"no"])
    where = tmp_path / "t"
    keep_table(spark, job(broker, where, "cut-short", "delta", SCHEMA), print)
    loose = Shape("json", json.dumps(ORDER | {"required": ["id"]}).encode())
    this = job(broker, where, "cut-short", "delta", loose)

    class Killed(Exception):
        pass

    def killed(*_: Any) -> None:
        raise Killed

    with closing(Keeper(spark, this)) as keeper, monkeypatch.context() as patch:
        assert isinstance(keeper._rejected, rejected.Rejected)
        patch.setattr(keeper._rejected.table, "replace", killed)
        with pytest.raises(Killed):
            keeper.retry_rejected()
    with closing(Keeper(spark, this)) as keeper:
        assert keeper.retry_rejected() == (0, 1)
    assert [row["id"] for row in rows_of(str(where), "id")] == [1, 2]
    assert [bytes(row["value"]) for row in rows_of(rejected_place(str(where)), "value")] == [b"no"]


def test_a_trigger_killed_between_its_two_commits_rejects_nothing_twice(
    spark: SparkSession, broker: AerobeeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(broker.broker, "half-way", 1)
    produce(broker.namesrv, "half-way", [order(1), b"no", order(2)])
    where = tmp_path / "t"
    this = job(broker, where, "half-way", "parquet", SCHEMA)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with closing(Keeper(spark, this)) as keeper, monkeypatch.context() as patch:
        patch.setattr(keeper._table, "append", killed)
        with pytest.raises(KeyboardInterrupt):
            keeper.trigger()
    assert len(rows_of(rejected_place(str(where)), "value")) == 1
    produce(broker.namesrv, "half-way", [b"neither"])
    assert keep_table(spark, this, print) == 3
    assert [row["id"] for row in rows_of(str(where), "id")] == [1, 2]
    beside = [bytes(row["value"]) for row in rows_of(rejected_place(str(where)), "value")]
    assert sorted(beside) == [b"neither", b"no"]


def test_what_a_recreated_topic_holds_is_rejected_anew(
    spark: SparkSession, broker: AerobeeBroker, tmp_path: Path
) -> None:
    create_topic(broker.broker, "made-twice", 1)
    produce(broker.namesrv, "made-twice", [order(1), b"no", order(2)])
    where = tmp_path / "t"
    this = job(broker, where, "made-twice", "parquet", SCHEMA)
    assert keep_table(spark, this, print) == 3
    with Wire(broker.broker) as wire:
        assert wire.request(215, {"topic": "made-twice"}).code == 0
    create_topic(broker.broker, "made-twice", 1)
    produce(broker.namesrv, "made-twice", [b"neither", order(3)])
    assert keep_table(spark, replace(this, fail_on_data_loss=False), print) == 2
    assert [row["id"] for row in rows_of(str(where), "id")] == [1, 2, 3]
    beside = [bytes(row["value"]) for row in rows_of(rejected_place(str(where)), "value")]
    assert sorted(beside) == [b"neither", b"no"]


def test_a_schema_is_inferred_from_a_sample_and_used_by_the_command(
    spark: SparkSession, broker: AerobeeBroker, tmp_path: Path
) -> None:
    create_topic(broker.broker, "sampled", 1)
    rows = [{"id": 1, "at": "2026-01-31T08:00:00Z"}, {"id": 2.5, "at": None, "x": [{"y": True}]}]
    produce(broker.namesrv, "sampled", [json.dumps(row).encode() for row in rows] + [b"-"])
    file = tmp_path / "s.json"
    words = ["schema", "infer", "sampled", "--namesrv", broker.namesrv, "--out", str(file)]
    result = CliRunner().invoke(pipeline, words)
    assert result.exit_code == 0 and "from 2 messages; 1 are not JSON objects" in result.output
    document = json.loads(file.read_text())
    assert document["properties"]["id"] == {"type": "number"}
    assert document["properties"]["at"] == {"type": ["string", "null"], "format": "date-time"}
    assert document["required"] == ["id", "at"]
    words = ["table", "sampled", "--namesrv", broker.namesrv, "--once", "--schema", str(file)]
    result = CliRunner().invoke(pipeline, [*words, "--to", str(tmp_path / "t")])
    assert result.exit_code == 0 and "1 rejected" in result.output
    sums = duckdb.sql(f"select sum(id), max(x[1].y) from '{tmp_path}/t/date=*/*.parquet'")
    assert sums.fetchall() == [(3.5, True)]
    result = CliRunner().invoke(pipeline, [*words[:-2], "--to", str(tmp_path / "t")])
    assert "of a schema: give --schema" in result.output


@pytest.mark.parametrize("table_format", FORMATS)
def test_fields_inside_a_column_can_be_added_and_left_out(
    spark: SparkSession, broker: AerobeeBroker, tmp_path: Path, table_format: str
) -> None:
    topic = f"grows-{table_format}"
    create_topic(broker.broker, topic, 1)
    where = tmp_path / "t"

    def keep(properties: dict[str, Any], *values: dict[str, Any]) -> None:
        produce(broker.namesrv, topic, [json.dumps(value).encode() for value in values])
        document = {"type": "object", "properties": properties}
        shape = Shape("json", json.dumps(document).encode())
        keep_table(spark, job(broker, where, topic, table_format, shape), print)

    def inside(**fields: Any) -> dict[str, Any]:
        return {"type": "object", "properties": fields}

    number, text = {"type": "integer"}, {"type": "string"}
    lines = {"type": "array", "items": inside(sku=text)}
    first = {"buyer": inside(id=number), "lines": lines, "n": number}
    keep(first, {"n": 1, "buyer": {"id": 1}, "lines": [{"sku": "a"}]})
    more = {"type": "array", "items": inside(price=number, sku=text)}
    second = {"buyer": inside(name=text, id=number, at=inside(city=text)), "lines": more}
    keep(second, {"buyer": {"id": 2, "at": {"city": "x"}}, "lines": [{"sku": "b", "price": 3}]})
    keep(first, {"n": 3, "buyer": {"id": 3, "name": "ignored"}, "lines": []})
    found = {row["buyer"]["id"]: row for row in rows_of(str(where), "buyer", "lines", "n")}
    assert found[1]["buyer"] == {"id": 1, "name": None, "at": None}
    assert found[1]["lines"] == [{"sku": "a", "price": None}]
    assert found[2]["buyer"] == {"id": 2, "name": None, "at": {"city": "x"}}
    assert found[2]["lines"] == [{"sku": "b", "price": 3}] and found[2]["n"] is None
    assert found[3]["buyer"] == {"id": 3, "name": None, "at": None} and found[3]["lines"] == []
    cities = nested_by_its_own_reader(where, table_format)
    assert sorted(cities, key=str) == [(1, None), (2, "x"), (3, None)]
    broken = {"buyer": inside(id=text)}
    with pytest.raises(SchemaError, match="buyer is struct<id: int64"):
        keep(broken, {"buyer": {"id": "x"}})


def nested_by_its_own_reader(where: Path, table_format: str) -> list[tuple[int, str | None]]:
    if table_format == "parquet":
        files = f"read_parquet('{where}/date=*/*.parquet', union_by_name = true)"
        buyers = [row[0] for row in duckdb.sql(f"select buyer from {files}").fetchall()]
    elif table_format == "delta":
        from deltalake import DeltaTable

        rows = DeltaTable(str(where)).to_pyarrow_table(columns=["buyer"])
        buyers = rows["buyer"].to_pylist()
    else:
        from pyiceberg.table import StaticTable

        rows = StaticTable.from_metadata(str(where)).scan(selected_fields=("buyer",)).to_arrow()
        buyers = rows["buyer"].to_pylist()
    return [(one["id"], (one["at"] or {}).get("city")) for one in buyers]


def avro_order(folder: Path) -> tuple[Shape, list[bytes]]:
    fastavro = pytest.importorskip("fastavro")
    fields = [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"]}]
    schema = {"type": "record", "name": "Order", "fields": fields}
    (folder / "order.avsc").write_text(json.dumps(schema))
    values = []
    for n in range(3):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(schema), {"id": n, "note": f"n{n}"})
        values.append(out.getvalue())
    return load_shape(f"{folder}/order.avsc"), values


def protobuf_order(folder: Path) -> tuple[Shape, list[bytes]]:
    pb2: Any = pytest.importorskip("google.protobuf.descriptor_pb2")
    kinds = pb2.FieldDescriptorProto
    file = pb2.FileDescriptorProto(name="o.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    message.field.add(name="id", number=1, type=kinds.TYPE_INT64, label=1)
    message.field.add(name="note", number=2, type=kinds.TYPE_STRING, label=1)
    (folder / "order.desc").write_bytes(pb2.FileDescriptorSet(file=[file]).SerializeToString())
    values = [b"\x08%c\x12\x02n%d" % (n, n) for n in range(3)]
    return load_shape(f"{folder}/order.desc:shop.Order"), values


@pytest.mark.parametrize(("kind", "table_format"), [("avro", "delta"), ("protobuf", "iceberg")])
def test_avro_and_protobuf_go_through_the_whole_job(
    spark: SparkSession, broker: AerobeeBroker, tmp_path: Path, kind: str, table_format: str
) -> None:
    shape, values = {"avro": avro_order, "protobuf": protobuf_order}[kind](tmp_path)
    topic = f"whole-{kind}"
    create_topic(broker.broker, topic, 1)
    produce(broker.namesrv, topic, [*values, b"\xff"], keys=False)
    where = tmp_path / "t"
    assert keep_table(spark, job(broker, where, topic, table_format, shape), print) == 4
    rows = rows_of(str(where), "id", "note", "offset")
    assert rows == [{"id": n, "note": f"n{n}", "offset": n} for n in range(3)]
    (beside,) = rows_of(rejected_place(str(where)), "value", "reason")
    assert beside["value"] == b"\xff" and "no " in beside["reason"]


def test_avro_values_are_columns(tmp_path: Path) -> None:
    fastavro = pytest.importorskip("fastavro")
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "note", "type": ["null", "string"]},
            {"name": "m", "type": {"type": "map", "values": "int"}},
        ],
    }
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(schema))
    out = io.BytesIO()
    row = {"id": 5, "at": 1767225600000, "note": None, "m": {"a": 1}}
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    shape = load_shape(str(file))
    columns, reasons = decode_values(pa.array([out.getvalue(), out.getvalue() + b"x", b""]), shape)
    assert [one.to_pylist()[0] for one in columns[::2]] == [5, None]
    assert columns[1].to_pylist()[0].year == 2026 and columns[3].to_pylist()[0] == [("a", 1)]
    assert reasons[0] is None and "bytes follow" in str(reasons[1]) and reasons[2] is not None


def test_protobuf_values_are_columns(tmp_path: Path) -> None:
    pb2: Any = pytest.importorskip("google.protobuf.descriptor_pb2")
    kinds = pb2.FieldDescriptorProto
    file = pb2.FileDescriptorProto(name="o.proto", package="shop", syntax="proto3")
    line = file.message_type.add(name="Line")
    line.field.add(name="sku", number=1, type=kinds.TYPE_STRING, label=1)
    message = file.message_type.add(name="Order")
    message.field.add(name="id", number=1, type=kinds.TYPE_INT64, label=1)
    message.field.add(name="tags", number=2, type=kinds.TYPE_STRING, label=3)
    message.field.add(
        name="line", number=3, type=kinds.TYPE_MESSAGE, type_name=".shop.Line", label=1
    )
    (tmp_path / "o.desc").write_bytes(pb2.FileDescriptorSet(file=[file]).SerializeToString())
    shape = load_shape(f"{tmp_path}/o.desc:shop.Order")
    assert [one.name for one in columns_of(shape)] == ["id", "value_tags", "line"]
    good = b"\x08\x05\x12\x01a\x12\x01b\x1a\x03\x0a\x01s"
    columns, reasons = decode_values(pa.array([good, b"\xff"]), shape)
    assert [one.to_pylist()[0] for one in columns] == [5, ["a", "b"], {"sku": "s"}]
    assert reasons[0] is None and "no shop.Order" in str(reasons[1])
    with pytest.raises(SchemaError, match=r"no message shop\.Other"):
        load_shape(f"{tmp_path}/o.desc:shop.Other")


def test_typed_is_a_function_for_ones_own_queries(
    spark: SparkSession, broker: AerobeeBroker
) -> None:
    from aerobee.spark import typed

    create_topic(broker.broker, "own-query", 1)
    produce(broker.namesrv, "own-query", [order(1), order(2), b"no"])
    reader = spark.read.format("aerobee").options(namesrv=broker.namesrv, subscribe="own-query")
    rows = typed(reader.load(), ORDER)
    assert rows.where("reason is null").selectExpr("sum(id)", "max(lines[0].sku)").collect() == [
        (3, "s2")
    ]
    assert rows.where("reason is not null").count() == 1
