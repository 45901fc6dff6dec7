"""`aerobee pipeline`: archive, replay, audit and stats on Spark, and the sink's ledger."""

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from aerobee.pipeline.driver import own_sentence
from aerobee.pipeline.sink.ledger import entries, forget
from aerobee.pipeline.wire import Access, Cluster


def _common(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option(
        "--conf", multiple=True, metavar="KEY=VALUE", help="A Spark setting; may be repeated."
    )(command)
    return click.option(
        "--master", default="local[*]", show_default=True, help="Where Spark runs."
    )(command)


def _session(name: str, master: str, conf: tuple[str, ...], **more: str) -> Any:
    from aerobee.pipeline.jobs.session import open_session

    config = {}
    for pair in conf:
        key, found, value = pair.partition("=")
        if not found:
            raise click.BadParameter(f"{pair!r} is not KEY=VALUE", param_hint="--conf")
        config[key] = value
    return open_session(name, master, config=config, **more)


class _Job(click.Command):
    """Turns the pipeline's own errors into a sentence and exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ImportError as error:
            raise click.ClickException(f"{error}; pip install 'aerobee[spark]'") from None
        except OSError as error:
            raise click.ClickException(str(error)) from None
        except Exception as error:
            text = _sentence(error)
            if text is None:
                raise
            raise click.ClickException(text) from None


def _sentence(error: Exception) -> str | None:
    """What our own code says is wrong; else what Spark says of an argument (a path that is not
    there, a time that is none)."""
    if text := own_sentence(error):
        return text
    lines = str(error).splitlines()
    of_arguments = type(error).__name__ in ("AnalysisException", "IllegalArgumentException")
    return lines[0] if of_arguments and lines else None


@click.group
def pipeline() -> None:
    """Topics and stores on Spark (needs aerobee[spark] and Java 17)."""


def _time(_ctx: Any, _parameter: Any, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no time like 2026-01-31T08:00:00Z") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


FORMATS = click.Choice(["parquet", "delta", "iceberg"])


@pipeline.command(cls=_Job)
@click.option("--namesrv", required=True, metavar="HOST:PORT")
@click.option("--topics", help="Topics, separated by commas.")
@click.option("--pattern", help="A regular expression that whole topic names match.")
@click.option("--out", required=True, type=click.Path(), help="The folder of the table.")
@click.option("--format", "table_format", type=FORMATS, default="parquet", show_default=True)
@click.option("--from", "starting", type=click.Choice(["earliest", "latest"]), default="earliest")
@click.option("--every", help="Go on for ever, a batch in each such time ('1 minute').")
@click.option("--rows-per-batch", type=click.IntRange(min=1), default=500_000, show_default=True)
@click.option("--group", help="A consumer group that shows the archive's progress.")
@click.option("--allow-loss", is_flag=True, help="Go on when messages were deleted unread.")
@_common
def archive(
    namesrv: str,
    topics: str | None,
    pattern: str | None,
    out: str,
    table_format: str,
    starting: str,
    every: str | None,
    rows_per_batch: int,
    group: str | None,
    allow_loss: bool,
    master: str,
    conf: tuple[str, ...],
) -> None:
    """Keep topics as a table partitioned by topic and date. Run again, it goes on."""
    from aerobee.pipeline.jobs.archive import Archive
    from aerobee.pipeline.jobs.archive import archive as run

    if bool(topics) == bool(pattern):
        raise click.UsageError("give --topics or --pattern")
    out = str(Path(out).absolute()) if "://" not in out else out
    spark = _session("archive", master, conf, table_format=table_format, warehouse=out)
    job = Archive(
        namesrv,
        out,
        topics,
        pattern,
        table_format,
        starting,
        rows_per_batch,
        every,
        group,
        not allow_loss,
    )
    click.echo(f"{run(spark, job)} messages archived to {out}")


@pipeline.command(cls=_Job)
@click.option("--source", required=True, help="The archive's folder.")
@click.option("--namesrv", required=True, metavar="HOST:PORT")
@click.option("--topic", help="Send everything there; default: to the topic it came from.")
@click.option("--only", help="Only messages of these topics, separated by commas.")
@click.option("--start", callback=_time, help="Stored at this time or later.")
@click.option("--end", callback=_time, help="Stored before this time.")
@click.option("--rate", type=click.IntRange(min=1), help="Messages per second.")
@click.option("--same-queues", is_flag=True, help="To the queue of the same number.")
@click.option("--exactly-once", is_flag=True, help="All or nothing (Aerobee brokers only).")
@click.option("--format", "table_format", type=FORMATS, default="parquet", show_default=True)
@_common
def replay(
    source: str,
    namesrv: str,
    topic: str | None,
    only: str | None,
    start: datetime | None,
    end: datetime | None,
    rate: int | None,
    same_queues: bool,
    exactly_once: bool,
    table_format: str,
    master: str,
    conf: tuple[str, ...],
) -> None:
    """Send archived messages again."""
    from aerobee.pipeline.jobs.replay import Replay
    from aerobee.pipeline.jobs.replay import replay as run

    spark = _session("replay", master, conf, table_format=table_format, warehouse=source)
    job = Replay(
        source,
        namesrv,
        topic,
        only,
        start,
        end,
        rate,
        same_queues,
        exactly_once,
        table_format,
    )
    click.echo(f"{run(spark, job)} messages sent")


@pipeline.command(cls=_Job)
@click.argument("stores", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False))
@click.option("--json", "json_path", type=click.Path(), help="Write all findings there.")
@_common
def audit(
    stores: tuple[str, ...], json_path: str | None, master: str, conf: tuple[str, ...]
) -> None:
    """Check every file of one or more STORES at rest; exit code 1 when something is wrong."""
    from aerobee.pipeline.jobs import audit as job

    paths = [str(Path(store).absolute()) for store in stores]
    reports = job.audit(_session("audit", master, conf), paths)
    job.show(reports, Console())
    if json_path:
        Path(json_path).write_text(job.as_json(reports))
    sys.exit(1 if any(report.findings for report in reports) else 0)


@pipeline.command(cls=_Job)
@click.option("--store", type=click.Path(exists=True, file_okay=False), help="A store at rest.")
@click.option("--namesrv", metavar="HOST:PORT", help="A running cluster.")
@click.option("--topics", help="Topics, separated by commas; default: all.")
@click.option("--png", type=click.Path(), help="Plot to this file.")
@click.option("--json", "json_path", type=click.Path(), help="Write the figures there.")
@_common
def stats(
    store: str | None,
    namesrv: str | None,
    topics: str | None,
    png: str | None,
    json_path: str | None,
    master: str,
    conf: tuple[str, ...],
) -> None:
    """Rates, sizes, latency and lag per topic and hour."""
    from aerobee.pipeline.jobs import stats as job

    if bool(store) == bool(namesrv):
        raise click.UsageError("give --store or --namesrv")
    wanted = job.Stats(str(Path(store).absolute()) if store else None, namesrv, topics)
    rows = job.hourly(_session("stats", master, conf), wanted)
    lags = job.lag_of(wanted, rows)
    job.show(rows, lags, Console())
    if json_path:
        Path(json_path).write_text(job.as_json(rows, lags))
    if png:
        job.plot(rows, png)
        click.echo(f"plotted to {png}")


@pipeline.group
def ledger() -> None:
    """What brokers remember of the queries of the exactly-once sink."""


def _cluster(namesrv: str) -> Cluster:
    from aerobee.pipeline.options import CONNECTION, Options

    return Cluster(Access.of(Options(CONNECTION, {"namesrv": namesrv})).at_start())


@ledger.command("list", cls=_Job)
@click.option("--namesrv", required=True, metavar="HOST:PORT")
def list_ledger(namesrv: str) -> None:
    """Every query with its newest batch and the time of that commit."""
    with _cluster(namesrv) as cluster:
        for entry in entries(cluster):
            at = "-" if entry.committed_at is None else f"{entry.committed_at:%Y-%m-%dT%H:%M:%SZ}"
            more = "  a commit has begun" if entry.is_committing else ""
            click.echo(f"{entry.query}  batch {entry.batch}  {at}  {entry.address}{more}")


@ledger.command("forget", cls=_Job)
@click.argument("queries", nargs=-1)
@click.option("--namesrv", required=True, metavar="HOST:PORT")
@click.option("--older-than", type=click.IntRange(min=1), metavar="DAYS", help="All so old.")
def forget_ledger(queries: tuple[str, ...], namesrv: str, older_than: int | None) -> None:
    """Remove QUERIES that will not run again: a batch that is run again is published again."""
    if not queries and older_than is None:
        raise click.UsageError("name queries, or give --older-than")
    age = None if older_than is None else timedelta(days=older_than)
    with _cluster(namesrv) as cluster:
        for entry in forget(cluster, queries, age):
            click.echo(f"{entry.query} forgotten by {entry.address}")


cli = pipeline  # the name under which the `aerobee` command looks for it
