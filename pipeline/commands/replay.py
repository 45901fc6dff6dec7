"""`aerobee pipeline replay`, `reprocess` and `dead-letters`: messages sent again."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import click

from aerobee.pipeline.commands.common import (
    FORMATS,
    Job,
    connection_options,
    parse_time,
    session,
    spark_options,
)

_CHOICE = (
    click.option("--source", required=True, help="A table, an archive or a store: its folder."),
    click.option("--only", help="Only messages of these topics, separated by commas."),
    click.option("--start", callback=parse_time, help="Stored at this time or later."),
    click.option("--end", callback=parse_time, help="Stored before this time."),
    click.option(
        "--rows-per-batch",
        type=click.IntRange(min=1),
        default=500_000,
        show_default=True,
        help="Messages that appear at once, where each is sent exactly once.",
    ),
    click.option("--dry-run", is_flag=True, help="Count what would be done."),
)
_STATE = (
    click.option("--state", help="Where plans are kept; default: ~/.local/state/aerobee/replays."),
    click.option("--again", is_flag=True, help="Also what an earlier run has sent."),
)


def _with(*options: Callable[..., Any]) -> Callable[..., Any]:
    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@click.command(cls=Job)
@_with(*_CHOICE)
@click.option("--namesrv", required=True, metavar="HOST:PORT")
@click.option("--topic", help="Send everything there; default: to the topic it came from.")
@click.option("--rate", type=click.IntRange(min=1), help="Messages per second.")
@click.option("--same-queues", is_flag=True, help="To the queue of the same number.")
@click.option("--exactly-once", is_flag=True, help="Resumes when run again (Aerobee brokers only).")
@click.option("--sql", help="SQL over the view `messages`; what it selects is sent.")
@click.option("--format", "table_format", type=FORMATS, help="Not needed any more.", hidden=True)
@_with(*_STATE, connection_options)
@spark_options
def replay(
    table_format: str | None, master: str, conf: tuple[str, ...], again: bool, **more: Any
) -> None:
    """Send archived messages again."""
    from aerobee.pipeline.jobs.replay import Replay
    from aerobee.pipeline.jobs.replay import replay as run

    if (again or more["state"]) and not more["exactly_once"]:
        raise click.UsageError("--state and --again go with --exactly-once")
    job = Replay(**more, again=again)
    in_parts = bool(job.exactly_once and job.sql)
    _report(run(session("replay", master, conf), job), dry_run=job.dry_run, changed=in_parts)


def _report(done: Any, *, dry_run: bool, changed: bool) -> None:
    """`changed`: the messages of the source are counted, of which more or fewer were made."""
    before = f"; {done.before} before (--again sends them again)" if done.before else ""
    sent = "read, and what was made of them sent" if changed else "sent"
    click.echo(f"{done.sent} messages {'would be sent' if dry_run else sent}{before}")


@click.command(cls=Job)
@_with(*_CHOICE)
@click.option("--function", required=True, metavar="FILE.py:NAME", help="DataFrame to DataFrame.")
@click.option("--topic", help="Send the rows there, exactly once.")
@click.option("--namesrv", metavar="HOST:PORT", help="Of the topic.")
@click.option("--to", help="Or keep them in a table: a folder, a URI, namespace.table.")
@click.option("--format", "table_format", type=FORMATS, default="parquet", show_default=True)
@click.option("--partition", multiple=True, metavar="COLUMN", help="Partition the table by it.")
@click.option("--rate", type=click.IntRange(min=1), help="Messages per second into the topic.")
@_with(*_STATE, connection_options)
@spark_options
def reprocess(
    source: str,
    only: str | None,
    start: datetime | None,
    end: datetime | None,
    rows_per_batch: int,
    dry_run: bool,
    function: str,
    topic: str | None,
    namesrv: str | None,
    to: str | None,
    table_format: str,
    partition: tuple[str, ...],
    rate: int | None,
    state: str | None,
    again: bool,
    options: dict[str, str],
    master: str,
    conf: tuple[str, ...],
) -> None:
    """Run a function over topics' history, into a topic or a table. Resumes when run again."""
    from aerobee.pipeline.jobs import reprocess as made
    from aerobee.pipeline.jobs.messages import Chosen
    from aerobee.pipeline.jobs.replay import Replay
    from aerobee.pipeline.jobs.replay import replay as run

    if bool(to) == bool(topic) or bool(topic) != bool(namesrv):
        raise click.UsageError("give --topic with --namesrv, or --to")
    change = made.load_function(function)
    spark = session("reprocess", master, conf)
    if to:
        chosen = Chosen(source, only, start, end)
        by = tuple(dict.fromkeys(partition))
        job = made.TableReprocess(chosen, to, table_format, by, rows_per_batch, dry_run)
        done = made.reprocess(spark, job, change)
        made_of = "would be read" if dry_run else f"read, {done.rows} rows added to {to}"
        click.echo(f"{done.messages} messages {made_of}")
        return
    replayed = Replay(
        source,
        namesrv or "",
        topic,
        only,
        start,
        end,
        rate,
        exactly_once=True,
        dry_run=dry_run,
        rows_per_batch=rows_per_batch,
        state=state,
        again=again,
        function=function,
        options=options,
    )
    _report(run(spark, replayed, change), dry_run=dry_run, changed=True)


@click.command("dead-letters", cls=Job)
@click.argument("group")
@click.option("--namesrv", required=True, metavar="HOST:PORT")
@click.option("--to", "topic", help="Send them there; default: to the topic they came from.")
@click.option("--sql", help="Over the view `letters`: SELECT * FROM letters WHERE ...")
@click.option("--again", is_flag=True, help="Also those that were sent back before.")
@click.option("--dry-run", is_flag=True, help="Count what would be sent.")
@connection_options
@spark_options
def dead_letters(master: str, conf: tuple[str, ...], **more: Any) -> None:
    """Send the dead letters of GROUP that a query chooses back to their topics, each once."""
    from aerobee.pipeline.jobs.dead_letters import DeadLetters, send_back

    job = DeadLetters(**more)
    done = send_back(session("dead-letters", master, conf), job)
    sent = f"{done.sent} {'would be' if job.dry_run else 'were'} sent back"
    before = f", {done.before} were sent before (--again)" if done.before else ""
    click.echo(f"{done.found} dead letters of {job.group}: {sent}{before}")
