"""Shows how far a job is: the tasks of its stages, or its rows."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

_POLL_SECONDS: Final = 0.3


@contextmanager
def task_progress(spark: Any, title: str) -> Iterator[None]:
    """A bar on stderr while the block's Spark jobs run."""
    with _bar(TimeElapsedColumn()) as bar:
        row = bar.add_task(title, total=None)

        def show(done: int, total: int) -> None:
            bar.update(row, total=total, completed=done)

        with _watched(spark, show):
            yield
        bar.update(row, total=1, completed=1)


@contextmanager
def rows_progress(spark: Any, title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar of rows, for a job of several steps; the block says when so many more are done. Within
    a step the tasks that run now are shown beside it."""
    with _bar(TimeRemainingColumn()) as bar:
        row: TaskID = bar.add_task(title, total=total)

        def show(done: int, tasks: int) -> None:
            bar.update(row, description=f"{title} (task {done} of {tasks})")

        with _watched(spark, show):
            yield lambda rows: bar.advance(row, rows)
        bar.update(row, description=title)


@contextmanager
def following(title: str, console: Console) -> Iterator[Callable[[int, int], None]]:
    """A bar for a job that follows a topic, seen on a terminal while it is behind: the block says
    how many rows were added, and how many the brokers hold beyond them."""
    with _bar(TimeRemainingColumn(), console=console, transient=True) as bar:
        row = bar.add_task(title, total=None, visible=False)
        added = 0

        def show(rows: int, behind: int) -> None:
            nonlocal added
            added += rows
            bar.update(row, total=added + behind, completed=added, visible=behind > 0)
            if not behind:
                added = 0

        yield show


def _bar(*more: Any, console: Console | None = None, transient: bool = False) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = console or Console(file=sys.stderr)
    return Progress(*columns, *more, console=console, transient=transient)


@contextmanager
def _watched(spark: Any, show: Callable[[int, int], None]) -> Iterator[None]:
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(spark, show, done), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _watch(spark: Any, show: Callable[[int, int], None], done: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    while not done.wait(_POLL_SECONDS):
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        total = sum(stage.numTasks for stage in stages if stage is not None)
        completed = sum(stage.numCompletedTasks for stage in stages if stage is not None)
        if total:
            show(completed, total)
