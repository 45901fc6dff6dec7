"""Jobs on a cluster with access control: each takes the options of a query by `--option`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from access.guarded import write_users
from click.testing import CliRunner
from peers.aerobee_broker import AerobeeBroker
from pyspark.sql import SparkSession

from aerobee.pipeline.cli import pipeline
from aerobee.pipeline.jobs.stats import Stats, hourly, lag_of

ROOT = {"accessKey": "root", "secretKey": "a-secret-of-root"}


@pytest.fixture
def guarded(own_broker: Callable[..., AerobeeBroker], tmp_path: Path) -> AerobeeBroker:
    return own_broker(aclEnable="true", aclFile=str(write_users(tmp_path)))


def run(broker: AerobeeBroker, *words: str, known: bool) -> tuple[int, str]:
    given = [word for key, value in ROOT.items() for word in ("--option", f"{key}={value}")]
    command = [*words, "--namesrv", broker.namesrv, *(given if known else ())]
    result = CliRunner().invoke(pipeline, command)
    return result.exit_code, result.output


def test_ledger_schema_and_stats_know_who_asks(spark: SparkSession, guarded: AerobeeBroker) -> None:
    assert "no broker remembers a query" in run(guarded, "ledger", "list", known=True)[1]
    rows = spark.range(3).selectExpr("to_json(struct(id)) as value")
    writer = rows.write.format("aerobee").options(namesrv=guarded.namesrv, topic="t", **ROOT)
    writer.options(deliveryGuarantee="exactly-once", txnAppId="q", txnVersion="1").mode(
        "append"
    ).save()
    for words, answer in (
        (("ledger", "list"), "q  batch 1"),
        (("ledger", "forget", "q"), "q forgotten"),
        (("schema", "infer", "t"), '"id"'),
    ):
        code, output = run(guarded, *words, known=False)
        assert code == 1 and "NO_PERMISSION" in output, output
        code, output = run(guarded, *words, known=True)
        assert code == 0 and answer in output, output
    job = Stats(namesrv=guarded.namesrv, topics="t", options=ROOT)
    hours = hourly(spark, job)
    assert sum(row["messages"] for row in hours) == 3 and lag_of(job, hours) == []
