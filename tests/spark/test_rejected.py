"""Rejected rows after a kill between a trigger's two commits, and a start with other options."""

from __future__ import annotations

import json
import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from peers.aerobee_broker import AerobeeBroker
from pyspark.sql import SparkSession
from spark.helpers import Run, create_topic, last_line, produce
from spark.test_typed import ORDER, SCHEMA, job, order, rows_of, shape_of

from aerobee.pipeline.jobs.table import Keeper, TableJob, keep_table
from aerobee.pipeline.lake.opening import rejected_place

pytestmark = pytest.mark.timeout(400)  # a busy machine starts workers slowly
LOOSE = shape_of(ORDER | {"required": ["id"]})


def trigger_killed(spark: SparkSession, this: TableJob) -> None:
    """The rejected rows are committed, the others are not."""

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with closing(Keeper(spark, this)) as keeper, pytest.MonkeyPatch.context() as patch:
        patch.setattr(keeper._table, "append", killed)
        with pytest.raises(KeyboardInterrupt):
            keeper.trigger()


def kept(where: Path) -> list[bytes]:
    """The values in both tables."""
    both = (str(where), rejected_place(str(where)))
    return sorted(bytes(row["value"]) for one in both for row in rows_of(one, "value"))


def test_a_row_that_was_rejected_and_fits_the_schema_of_the_next_start_is_there_once(
    spark: SparkSession, broker: AerobeeBroker, tmp_path: Path
) -> None:
    create_topic(broker.broker, "wider", 1)
    values = [b'{"id": 2}', order(1), b"no"]
    produce(broker.namesrv, "wider", values)
    this = job(broker, tmp_path / "t", "wider", "parquet", SCHEMA)
    trigger_killed(spark, this)
    keep_table(spark, replace(this, schema=LOOSE), print)
    assert kept(tmp_path / "t") == sorted(values)
    with closing(Keeper(spark, replace(this, schema=LOOSE))) as keeper:
        assert keeper.retry_rejected() == (1, 1)
    assert kept(tmp_path / "t") == sorted(values)


def test_a_row_that_fitted_and_does_not_fit_the_schema_of_the_next_start_is_not_lost(
    spark: SparkSession, broker: AerobeeBroker, tmp_path: Path
) -> None:
    create_topic(broker.broker, "narrower", 1)
    values = [b'{"id": 2}', order(1), b"no"]
    produce(broker.namesrv, "narrower", values)
    this = job(broker, tmp_path / "t", "narrower", "delta", LOOSE)
    trigger_killed(spark, this)
    keep_table(spark, replace(this, schema=SCHEMA), print)
    assert kept(tmp_path / "t") == sorted(values)
    assert [row["id"] for row in rows_of(str(tmp_path / "t"), "id")] == [1]


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_smaller_triggers_after_a_kill_reject_nothing_twice(
    spark: SparkSession, broker: AerobeeBroker, tmp_path: Path, table_format: str
) -> None:
    topic = f"smaller-{table_format}"
    create_topic(broker.broker, topic, 2)
    values = [b"no %d" % n for n in range(51)]
    produce(broker.namesrv, topic, values[:10], queue_id=0)
    produce(broker.namesrv, topic, values[10:11], queue_id=1)
    this = job(broker, tmp_path / "t", topic, table_format, SCHEMA)
    trigger_killed(spark, this)
    produce(broker.namesrv, topic, values[11:], queue_id=1)
    keep_table(spark, replace(this, rows_per_commit=25), print)
    assert kept(tmp_path / "t") == sorted(values)


def test_jobs_that_count_or_try_again_show_how_far_they_are(
    run: Run, broker: AerobeeBroker, tmp_path: Path
) -> None:
    create_topic(broker.broker, "tried-again", 1)
    produce(broker.namesrv, "tried-again", [b'{"id": 2}', order(1)])
    for file, schema in (("strict.json", ORDER), ("loose.json", ORDER | {"required": ["id"]})):
        (tmp_path / file).write_text(json.dumps(schema))
    words: tuple[Any, ...]
    words = ("table", "tried-again", "--namesrv", broker.namesrv, "--to", tmp_path / "t", "--once")
    run(*words, "--schema", tmp_path / "strict.json")
    retried = run(*words, "--schema", tmp_path / "loose.json", "--retry-rejected").output
    assert "1 rejected rows fit now, 0 do not" in retried
    assert "rejected rows \u2501" in retried
    words = ("replay", "--source", tmp_path / "t", "--namesrv", broker.namesrv, "--exactly-once")
    counted = run(*words, "--topic", "again", "--state", tmp_path / "s", "--dry-run")
    assert last_line(counted) == "2 messages would be sent"
    assert re.search(r"counting .*\u2501 2/2", counted.output)
