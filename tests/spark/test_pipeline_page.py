"""docs/pipeline.md: its blocks run, in order, in one session against a real broker."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from peers.aerobee_broker import AerobeeBroker
from pyspark.sql import SparkSession

from aerobee.pipeline.cli import pipeline
from aerobee.sync import connect

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(python|sql)\n(.*?)^```", re.DOTALL | re.MULTILINE)
SCHEMA = '{"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]}'
FORMATS = ("parquet", "delta", "iceberg")


def keep_table(broker: AerobeeBroker, folder: Path, table_format: str) -> None:
    words = ["table", "orders", "--namesrv", broker.namesrv, "--to", str(folder), "--once"]
    result = CliRunner().invoke(pipeline, [*words, "--format", table_format])
    assert result.exit_code == 0, result.output


def test_the_blocks_of_the_pipeline_page_run(
    spark: SparkSession, own_broker: Callable[..., AerobeeBroker], tmp_path: Path
) -> None:
    broker = own_broker()
    with connect(f"mq://{broker.namesrv}") as mq:
        for number in range(20):
            mq.send("orders", b'{"amount": %d}' % number)
    schema = tmp_path / "orders.json"
    schema.write_text(SCHEMA)
    for table_format in FORMATS:
        keep_table(broker, tmp_path / "lake" / table_format, table_format)
    places = {
        "127.0.0.1:9876": broker.namesrv,
        "/var/lib/aerobee/store": str(broker.store),
        '"history", "/lake/orders"': f'"history", "{tmp_path}/lake/delta"',
        "/lake/": f"{tmp_path}/lake/",
        "orders.json": str(schema),
        "port=9400": "port=0",
    }
    names: dict[str, Any] = {
        "spark": spark,
        "rows": spark.range(3).selectExpr("cast(id as string) as order_id"),
    }
    names["rows"].createOrReplaceTempView("new_orders")
    blocks = BLOCK.findall((ROOT / "docs/pipeline.md").read_text())
    assert len(blocks) >= 9
    for kind, text in blocks:
        for told, here in places.items():
            text = text.replace(told, here)
        if kind == "sql":
            for statement in filter(str.strip, text.split(";")):
                spark.sql(statement)
        else:
            exec(compile(text, "docs/pipeline.md", "exec"), names)  # the page, as it stands
    assert spark.sql("SELECT * FROM orders").count() == 26  # with what the page has written
