"""Shows how far a job is: the tasks of its stages."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_POLL_SECONDS = 0.3


@contextmanager
def task_progress(spark: Any, title: str) -> Iterator[None]:
    """A bar on stderr while the block's Spark jobs run."""
    console = Console(file=sys.stderr)
    done = threading.Event()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as bar:
        watcher = threading.Thread(target=_watch, args=(spark, title, bar, done), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()


def _watch(spark: Any, title: str, bar: Progress, done: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    row = bar.add_task(title, total=None)
    while not done.wait(_POLL_SECONDS):
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        total = sum(stage.numTasks for stage in stages if stage is not None)
        completed = sum(stage.numCompletedTasks for stage in stages if stage is not None)
        if total:
            bar.update(row, total=total, completed=completed)
    bar.update(row, total=1, completed=1)
