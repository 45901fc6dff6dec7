"""Spark's workers are used again: what they have imported does not cost every task its time."""

from __future__ import annotations

import gc
import sys

from pyspark.sql import SparkSession

from aerobee.pipeline.jobs.table_tasks import run_tasks
from aerobee.pipeline.reused import reused_process


def test_a_task_leaves_its_worker_quick_to_use_again(spark: SparkSession) -> None:
    def look(_: int) -> list[tuple[bool, int, int]]:
        """Whether objects are frozen, and how many of Spark's zip files would be read again: when
        the task begins, and after a search of the whole path, which opens them."""
        import gc
        import sys
        from importlib.util import find_spec

        def zip_files() -> int:
            finders = [getattr(one, "archive", "") for one in sys.path_importer_cache.values()]
            return sum("spark" in archive for archive in finders)

        at_first = zip_files()
        assert find_spec("no_module_has_this_name") is None
        return [(gc.get_freeze_count() > 0, at_first, zip_files())]

    *_, last = [run_tasks(spark, 1, look)[0] for _ in range(3)]
    is_frozen, at_first, after_search = last
    assert after_search > 0, "the zip files are not where they were looked for"
    assert (is_frozen, at_first) == (True, 0)


def test_a_program_of_a_users_is_left_alone() -> None:
    before = gc.get_freeze_count(), dict(sys.path_importer_cache)
    with reused_process():
        pass
    assert (gc.get_freeze_count(), dict(sys.path_importer_cache)) == before
