"""archive to Delta and Iceberg through Spark's own sources: they have releases for Spark 4.1."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from click.testing import CliRunner
from peers.aerobee_broker import AerobeeBroker
from spark.helpers import create_topic, numbers, produce, topic_values

from aerobee.pipeline.cli import pipeline

IS_41 = pyspark.__version__.startswith("4.1.")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.skipif(IS_41, reason="4.1 has both")
@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_a_format_without_a_release_is_refused_with_what_to_install(table_format: str) -> None:
    words = ["archive", "--namesrv", "127.0.0.1:1", "--topics", "x", "--out", "x"]
    result = CliRunner().invoke(pipeline, [*words, "--format", table_format])
    assert result.exit_code == 1
    assert "pip install 'pyspark==4.1.*', or use parquet" in result.output


@pytest.mark.skipif(not IS_41, reason="no release for this Spark")
@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_archive_and_replay_through_a_table_format(
    broker: AerobeeBroker, tmp_path: Path, table_format: str
) -> None:
    """Each in a process of its own: the format's jars come with the session."""
    create_topic(broker.broker, f"kept-{table_format}", 2)
    produce(broker.namesrv, f"kept-{table_format}", numbers(200))
    out = str(tmp_path / "table")

    def run(*words: str) -> str:
        command = [str(Path(sys.executable).with_name("aerobee")), "pipeline", *words]
        common = ("--namesrv", broker.namesrv, "--format", table_format, "--master", "local[2]")
        done = subprocess.run(
            [*command, *common, "--conf", "spark.driver.memory=1g"],
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    archive = ("archive", "--topics", f"kept-{table_format}", "--out", out)
    assert "200 messages archived" in run(*archive)
    assert run(*archive).startswith("0 messages archived")
    topic = f"again-{table_format}"
    assert "200 messages sent" in run("replay", "--source", out, "--topic", topic)
    assert sorted(topic_values(broker.namesrv, topic)) == numbers(200)
