"""Spark's workers are used again: what they have imported does not cost every task its time."""

from __future__ import annotations

import gc
import sys

from pyspark.sql import SparkSession

from aerobee.pipeline.jobs.table_tasks import run_tasks
from aerobee.pipeline.reused import reused_process


def test_a_task_leaves_its_worker_quick_to_use_again(spark: SparkSession) -> None:
    def look(_: int) -> list[tuple[bool, int]]:
        """Whether objects are frozen, and how many of Spark's zip files would be read again."""
        import gc
        import sys

        finders = [getattr(one, "archive", "") for one in sys.path_importer_cache.values()]
        return [(gc.get_freeze_count() > 0, sum("spark" in archive for archive in finders))]

    first, *_, last = [run_tasks(spark, 1, look)[0] for _ in range(3)]
    assert first[1] > 0, "the zip files are not where they were looked for"
    assert last == (True, 0)


def test_a_program_of_a_users_is_left_alone() -> None:
    before = gc.get_freeze_count(), dict(sys.path_importer_cache)
    with reused_process():
        pass
    assert (gc.get_freeze_count(), dict(sys.path_importer_cache)) == before
