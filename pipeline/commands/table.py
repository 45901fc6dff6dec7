"""`aerobee pipeline table` and `archive`: topics kept as tables."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any

import click
from rich.console import Console

from aerobee.pipeline.commands.common import (
    FORMATS,
    Job,
    connection_options,
    parse_duration,
    session,
    spark_options,
)

_UPKEEP = (
    click.option(
        "--small-files",
        type=click.IntRange(min=2),
        default=16,
        show_default=True,
        help="Merge this many small files of a partition (of about one size).",
    ),
    click.option(
        "--keep",
        callback=parse_duration,
        default="7d",
        show_default=True,
        help="How long old snapshots and unreferenced files stay.",
    ),
    click.option(
        "--clean-every",
        callback=parse_duration,
        default="1h",
        show_default=True,
        help="How often what is older than --keep is removed.",
    ),
)


def common_options(command: Any) -> Any:
    for option in (connection_options, *reversed(_UPKEEP)):
        command = option(command)
    return command


@click.command(cls=Job)
@click.argument("topic")
@click.option("--namesrv", required=True, metavar="HOST:PORT")
@click.option("--to", required=True, help="A folder, a URI (delta), or namespace.table (iceberg).")
@click.option("--format", "table_format", type=FORMATS, default="parquet", show_default=True)
@click.option(
    "--by",
    type=click.Choice(["day", "hour", "none"]),
    default="day",
    show_default=True,
    help="Partition by this part of the time at which messages were stored.",
)
@click.option("--partition", multiple=True, metavar="COLUMN", help="And by this column.")
@click.option(
    "--fresh",
    callback=parse_duration,
    default="30s",
    show_default=True,
    help="The goal from stored to visible; the job runs until it is stopped.",
)
@click.option("--once", is_flag=True, help="Take what is there now, then end.")
@click.option("--from", "starting", type=click.Choice(["earliest", "latest"]), default="earliest")
@click.option("--rows-per-commit", type=click.IntRange(min=1), default=500_000, show_default=True)
@click.option("--group", help="A consumer group that shows the table's progress.")
@click.option("--allow-loss", is_flag=True, help="Continue when messages were deleted unread.")
@click.option("--schema", help="The value as columns: .json (JSON schema), .avsc, .desc:MESSAGE.")
@click.option("--retry-rejected", is_flag=True, help="First try rows again that did not fit.")
@click.option("--metrics", type=click.IntRange(1, 65535), help="A port for Prometheus.")
@common_options
@spark_options
def table(
    topic: str,
    namesrv: str,
    to: str,
    table_format: str,
    by: str,
    partition: tuple[str, ...],
    fresh: timedelta,
    once: bool,
    starting: str,
    rows_per_commit: int,
    group: str | None,
    allow_loss: bool,
    schema: str | None,
    retry_rejected: bool,
    metrics: int | None,
    small_files: int,
    keep: timedelta,
    clean_every: timedelta,
    options: dict[str, str],
    master: str,
    conf: tuple[str, ...],
) -> None:
    """Keep TOPIC as a table: exactly once, also over kills. Resumes when run again."""
    from aerobee.pipeline.jobs.progress import task_progress
    from aerobee.pipeline.jobs.table import Keeper, TableJob
    from aerobee.pipeline.jobs.upkeep import Upkeep
    from aerobee.pipeline.typed.columns import load_shape

    times = {"day": ("date",), "hour": ("date", "hour"), "none": ()}
    job = TableJob(
        namesrv,
        to,
        topics=topic,
        table_format=table_format,
        partition_by=tuple(dict.fromkeys((*times[by], *partition))),
        starting=starting,
        rows_per_commit=rows_per_commit,
        fresh=None if once else fresh.total_seconds(),
        group=group,
        fail_on_data_loss=not allow_loss,
        upkeep=Upkeep(small_files, keep, clean_every.total_seconds()),
        schema=load_shape(schema) if schema else None,
        options=options,
    )
    spark = session("table", master, conf, retries=True)
    if retry_rejected:
        with closing(Keeper(spark, job)) as keeper, task_progress(spark, "rejected rows"):
            moved, left = keeper.retry_rejected()
        click.echo(f"{moved} rejected rows fit now, {left} do not")
    run_table(job, f"table {topic}", metrics, spark)


@click.command(cls=Job)
@click.option("--namesrv", required=True, metavar="HOST:PORT")
@click.option("--topics", help="Topics, separated by commas.")
@click.option("--pattern", help="A regular expression that whole topic names match.")
@click.option("--out", required=True, type=click.Path(), help="The folder of the table.")
@click.option("--format", "table_format", type=FORMATS, default="parquet", show_default=True)
@click.option("--from", "starting", type=click.Choice(["earliest", "latest"]), default="earliest")
@click.option("--every", callback=parse_duration, help="Repeat at this interval: '1 minute'.")
@click.option("--rows-per-batch", type=click.IntRange(min=1), default=500_000, show_default=True)
@click.option("--group", help="A consumer group that shows the archive's progress.")
@click.option("--allow-loss", is_flag=True, help="Continue when messages were deleted unread.")
@common_options
@spark_options
def archive(
    namesrv: str,
    topics: str | None,
    pattern: str | None,
    out: str,
    table_format: str,
    starting: str,
    every: timedelta | None,
    rows_per_batch: int,
    group: str | None,
    allow_loss: bool,
    small_files: int,
    keep: timedelta,
    clean_every: timedelta,
    options: dict[str, str],
    master: str,
    conf: tuple[str, ...],
) -> None:
    """Keep topics as a table partitioned by topic and date. Resumes when run again."""
    from aerobee.pipeline.jobs.archive import PARTITION_BY, archive_place, take_over
    from aerobee.pipeline.jobs.table import TableJob
    from aerobee.pipeline.jobs.upkeep import Upkeep

    if bool(topics) == bool(pattern):
        raise click.UsageError("give --topics or --pattern")
    take_over(out, table_format)
    job = TableJob(
        namesrv,
        archive_place(out, table_format),
        topics,
        pattern,
        table_format,
        PARTITION_BY,
        starting,
        rows_per_batch,
        None if every is None else every.total_seconds(),
        group,
        not allow_loss,
        Upkeep(small_files, keep, clean_every.total_seconds()),
        options=options,
    )
    run_table(job, "archive", None, session("archive", master, conf, retries=True), "archived")


def run_table(job: Any, title: str, metrics: int | None, spark: Any, done: str = "added") -> None:
    """Runs the job, says each commit, and the sum at its end."""
    from aerobee.pipeline.jobs.progress import following
    from aerobee.pipeline.jobs.table import keep_table
    from aerobee.pipeline.jobs.table_metrics import TableMetrics

    console = Console(file=sys.stderr)
    figures = TableMetrics(metrics, title)

    def report(commit: Any) -> None:
        figures.show(commit)
        show(commit.rows + commit.rejected, 0 if commit.took_all else commit.behind)
        goal = f" (goal {job.fresh:g} s)" if job.fresh else ""
        late = " LATE" if job.fresh and commit.fresh > job.fresh and commit.took_all else ""
        rejected = f", {commit.rejected} rejected" if commit.rejected else ""
        console.print(
            f"{title}: {_counted(commit.rows, 'row')} in {_counted(commit.files, 'file')}, "
            f"{commit.seconds:.1f} s, {commit.behind} behind, "
            f"fresh {commit.fresh:.1f} s{goal}{late}, "
            f"{_counted(commit.small_files, 'small file')}{rejected}",
            highlight=False,
            soft_wrap=True,
        )

    with following(title, console) as show, stopped_by_signals() as stop:
        rows = keep_table(spark, job, report, stop, figures.complete)
    click.echo(f"{rows} messages {done} to {job.to}")


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and Ctrl-C set: the running trigger is finished."""
    stop = threading.Event()
    kinds = (signal.SIGTERM, signal.SIGINT)
    usual = {kind: signal.signal(kind, lambda *_: stop.set()) for kind in kinds}
    try:
        yield stop
    finally:
        for kind, handler in usual.items():
            signal.signal(kind, handler)
