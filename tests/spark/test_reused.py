"""Spark's workers are used again: what they have imported does not cost every task its time."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

from peers.aerobee_broker import AerobeeBroker
from pyspark.sql import SparkSession
from spark.helpers import produce

from aerobee.pipeline.jobs.table_tasks import run_tasks
from aerobee.pipeline.reused import reused_process


def looks() -> list[tuple[bool, int]]:
    """Whether objects are frozen, and how many of Spark's zip files would be read again."""
    finders = [getattr(one, "archive", "") for one in sys.path_importer_cache.values()]
    return [(gc.get_freeze_count() > 0, sum("spark" in archive for archive in finders))]


def test_a_task_leaves_its_worker_quick_to_use_again(spark: SparkSession) -> None:
    for _ in range(2):
        run_tasks(spark, 1, lambda at: looks())  # imports this file
    assert run_tasks(spark, 1, lambda at: looks()) == [(True, 0)]


def test_a_read_leaves_its_worker_quick_to_use_again(
    spark: SparkSession, broker: AerobeeBroker
) -> None:
    def look(batches: Iterator[object]) -> Iterator[object]:
        import pyarrow as pa

        found = [(frozen, zips) for _ in batches for frozen, zips in looks()]
        rows = {"frozen": [one[0] for one in found], "zips": [one[1] for one in found]}
        yield pa.RecordBatch.from_pydict(rows)

    produce(broker.namesrv, "reused", [b"x"], queue_id=0)
    source = spark.read.format("aerobee").options(namesrv=broker.namesrv, subscribe="reused")
    for _ in range(2):
        assert len(source.load().collect()) == 1
    seen = spark.range(0, 2, 1, 1).mapInArrow(look, "frozen boolean, zips bigint").collect()
    assert [row.frozen for row in seen] == [True]


def test_a_program_of_a_users_is_left_alone() -> None:
    before = gc.get_freeze_count(), dict(sys.path_importer_cache)
    with reused_process():
        pass
    assert (gc.get_freeze_count(), dict(sys.path_importer_cache)) == before
