"""docs/pipeline.md: its blocks run against a real broker; Python and SQL in one session."""

import re
import shlex
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from peers.aerobee_broker import AerobeeBroker
from pyspark.sql import SparkSession
from spark.helpers import Run, start_command
from spark.kills import kill_group

from aerobee.pipeline.cli import pipeline
from aerobee.sync import connect

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(python|sql|sh)\n(.*?)^```", re.DOTALL | re.MULTILINE)
BLOCKS = BLOCK.findall((ROOT / "docs/pipeline.md").read_text())
SCHEMA = '{"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]}'
SAID = (
    "20 messages added to lake/orders",
    "forgotten by",
    "20 messages archived",
    "0 messages sent",
    "9 messages would be sent",
    "19 rows added to lake/clean",
    "what was made of them sent",
    "0 dead letters of billing",
    "no damage found",
    "plotted to traffic.png",
    "20 messages added to kept",
)
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
    blocks = [(kind, text) for kind, text in BLOCKS if kind != "sh"]
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
    names["publish"](names["rows"].selectExpr("order_id AS value"), 1)
    with connect(f"mq://{broker.namesrv}") as mq:
        assert "totals" in mq.admin.topics()


def lines() -> list[str]:
    """What the page's blocks for the shell hold, a command each."""
    shells = [text.replace("\\\n", " ") for kind, text in BLOCKS if kind == "sh"]
    return [line.partition(" #")[0].rstrip() for text in shells for line in text.splitlines()]


def commands() -> list[str]:
    """All but the installation. What keeps a table comes first: others read it."""
    found = [line for line in lines() if line.startswith("aerobee pipeline ")]
    return sorted(found, key=lambda line: "schema" not in line)


def test_the_installation_is_the_one_that_is_run_from_the_page_about_the_lake() -> None:
    (installation,) = set(lines()) - set(commands())
    assert f"\n{installation} " in (ROOT / "docs/lake.md").read_text()


def run_until_stopped(words: list[str]) -> str:
    """A job that follows its topics: it is stopped after its first commit."""
    job = start_command(*words)
    try:
        assert job.stdout is not None
        said = ""
        for line in job.stdout:
            said += line
            if " rows in " in line:
                break
        job.send_signal(signal.SIGTERM)
        said += job.communicate(timeout=100)[0]
        assert job.returncode == 0, f"{words}: {said}"
        return said
    finally:
        kill_group(job)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_commands_of_the_pipeline_page_run(
    run: Run,
    spark: SparkSession,
    own_broker: Callable[..., AerobeeBroker],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = own_broker()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (functions,) = [text for _, text in BLOCKS if text.startswith("# clean.py")]
    Path("clean.py").write_text(functions)
    with connect(f"mq://{broker.namesrv}") as mq:
        for number in range(20):
            body = b'{"id": %d, "product": "tea", "amount": %d}' % (number, 10 * number)
            mq.send("orders", body, tag="paid")
    (query,) = {line.split()[4] for line in commands() if re.search("forget [0-9a-f]{8}-", line)}
    sink = spark.sql("SELECT 'a row' AS value").write.format("aerobee").mode("append")
    sink = sink.options(namesrv=broker.namesrv, topic="totals", deliveryGuarantee="exactly-once")
    sink.options(txnAppId=query, txnVersion=1).save()
    broker.stop()
    for copy in ("store-a", "store-b"):
        shutil.copytree(broker.store, tmp_path / copy)
    broker.start()
    places = {
        "127.0.0.1:9876": broker.namesrv,
        "/var/lib/aerobee/store": "store-a",
        "/backup/store-b": "store-b",
        "--out /lake/": "--out archive/",  # /lake/orders is the table with columns
        "--to /lake/orders --format delta": "--to kept --format delta",
        "/lake/": "lake/",
    }
    said = ""
    for line in commands():
        for told, here in places.items():
            line = line.replace(told, here)
        words = shlex.split(line)
        follows = words[2] == "table" or "--every" in words
        said += run_until_stopped(words[1:]) if follows else run(*words[2:]).output
    for text in SAID:
        assert text in said, said
