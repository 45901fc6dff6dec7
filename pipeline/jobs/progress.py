"""Shows how far a job is: the tasks of its stages, or the batches of its stream."""

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


def follow_query(query: Any, title: str) -> int:
    """Says each finished batch of a stream until it ends; how many rows there were."""
    console = Console(file=sys.stderr)
    seen: set[int] = set()
    rows = 0
    while True:
        ended = query.awaitTermination(_POLL_SECONDS)
        for progress in query.recentProgress:
            batch, count = progress["batchId"], progress["numInputRows"]
            if batch not in seen and count:
                seen.add(batch)
                rows += count
                rate = progress.get("processedRowsPerSecond") or 0.0
                text = f"{title}: batch {batch}, {count} rows, {rate:.0f} rows/s, {rows} in all"
                console.print(text, highlight=False)
        if ended:
            return rows
