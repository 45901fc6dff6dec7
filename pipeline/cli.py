"""`aerobee pipeline`: its jobs on Spark, and the sink's ledger."""

import sys
from datetime import timedelta
from pathlib import Path

import click
from rich.console import Console

from aerobee.pipeline.commands.catalog import catalog_jar
from aerobee.pipeline.commands.common import Job, connection_options, session, spark_options
from aerobee.pipeline.commands.replay import dead_letters, replay, reprocess
from aerobee.pipeline.commands.schema import schema
from aerobee.pipeline.commands.table import archive, table
from aerobee.pipeline.sink.ledger import entries, forget
from aerobee.pipeline.wire import Access, Cluster


@click.group
def pipeline() -> None:
    """Topics and stores on Spark (needs aerobee[spark] and Java 17)."""


pipeline.add_command(table)
pipeline.add_command(archive)
pipeline.add_command(schema)
pipeline.add_command(catalog_jar)
pipeline.add_command(replay)
pipeline.add_command(reprocess)
pipeline.add_command(dead_letters)


@pipeline.command(cls=Job)
@click.argument("stores", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False))
@click.option("--json", "json_path", type=click.Path(), help="Write all findings there.")
@spark_options
def audit(
    stores: tuple[str, ...], json_path: str | None, master: str, conf: tuple[str, ...]
) -> None:
    """Check every file of one or more STORES at rest; exit code 1 when something is wrong."""
    from aerobee.pipeline.jobs import audit as job

    paths = [str(Path(store).absolute()) for store in stores]
    reports = job.audit(session("audit", master, conf), paths)
    job.show(reports, Console())
    if json_path:
        Path(json_path).write_text(job.as_json(reports))
    sys.exit(1 if any(report.findings for report in reports) else 0)


@pipeline.command(cls=Job)
@click.option("--store", type=click.Path(exists=True, file_okay=False), help="A store at rest.")
@click.option("--namesrv", metavar="HOST:PORT", help="A running cluster.")
@click.option("--topics", help="Topics, separated by commas; default: all.")
@click.option("--png", type=click.Path(), help="Plot to this file.")
@click.option("--json", "json_path", type=click.Path(), help="Write the figures there.")
@connection_options
@spark_options
def stats(
    store: str | None,
    namesrv: str | None,
    topics: str | None,
    png: str | None,
    json_path: str | None,
    options: dict[str, str],
    master: str,
    conf: tuple[str, ...],
) -> None:
    """Rates, sizes, latency and lag per topic and hour."""
    from aerobee.pipeline.jobs import stats as job

    if bool(store) == bool(namesrv):
        raise click.UsageError("give --store or --namesrv")
    wanted = job.Stats(str(Path(store).absolute()) if store else None, namesrv, topics, options)
    rows = job.hourly(session("stats", master, conf), wanted)
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


def _cluster(namesrv: str, options: dict[str, str]) -> Cluster:
    from aerobee.pipeline.options import CONNECTION, Options

    return Cluster(Access.of(Options(CONNECTION, options | {"namesrv": namesrv})).at_start())


@ledger.command("list", cls=Job)
@click.option("--namesrv", required=True, metavar="HOST:PORT")
@connection_options
def list_ledger(namesrv: str, options: dict[str, str]) -> None:
    """Every query with its newest batch, the time of that commit, and the broker that commits."""
    with _cluster(namesrv, options) as cluster:
        found = entries(cluster)
        if not found:
            click.echo("no broker remembers a query of the exactly-once sink", err=True)
        for entry in found:
            at = "-" if entry.committed_at is None else f"{entry.committed_at:%Y-%m-%dT%H:%M:%SZ}"
            more = "  committing" if entry.is_committing else ""
            home = f"  home {entry.home}" if entry.home else ""
            click.echo(f"{entry.query}  batch {entry.batch}  {at}  {entry.address}{home}{more}")


@ledger.command("forget", cls=Job)
@click.argument("queries", nargs=-1)
@click.option("--namesrv", required=True, metavar="HOST:PORT")
@click.option(
    "--older-than",
    type=click.IntRange(min=1),
    metavar="DAYS",
    help="All whose last commit is older.",
)
@connection_options
def forget_ledger(
    queries: tuple[str, ...], namesrv: str, older_than: int | None, options: dict[str, str]
) -> None:
    """Remove QUERIES that will not run again: a batch that is run again is published again."""
    if not queries and older_than is None:
        raise click.UsageError("name queries, or give --older-than")
    age = None if older_than is None else timedelta(days=older_than)
    with _cluster(namesrv, options) as cluster:
        for entry in forget(cluster, queries, age):
            click.echo(f"{entry.query} forgotten by {entry.address}")


cli = pipeline  # the name under which the `aerobee` command looks for it
