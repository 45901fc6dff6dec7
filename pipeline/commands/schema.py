"""`aerobee pipeline schema`: the schema of a topic's values."""

import json
from pathlib import Path

import click

from aerobee.pipeline.commands.common import Job, connection_options


@click.group
def schema() -> None:
    """Schemas of values, for `table --schema`."""


@schema.command(cls=Job)
@click.argument("topic")
@click.option("--namesrv", required=True, metavar="HOST:PORT")
@click.option("--sample", type=click.IntRange(min=1), default=1000, show_default=True)
@click.option("--out", type=click.Path(dir_okay=False), help="Write it there; default: show it.")
@connection_options
def infer(topic: str, namesrv: str, sample: int, out: str | None, options: dict[str, str]) -> None:
    """A JSON schema from the newest messages of TOPIC. Look at it, then use it."""
    from aerobee.pipeline.source.sample import newest_values
    from aerobee.pipeline.typed.infer import infer as run

    document, count, others = run(newest_values(options | {"namesrv": namesrv}, topic, sample))
    if not count:
        raise click.ClickException(f"none of {others} messages of {topic} is a JSON object")
    document = {"$schema": "https://json-schema.org/draft/2020-12/schema", **document}
    text = json.dumps(document, indent=2, ensure_ascii=False)
    if out:
        Path(out).write_text(text + "\n")
    else:
        click.echo(text)
    more = f"; {others} are not JSON objects and would be rejected" if others else ""
    click.echo(f"from {count} messages{more}", err=True)
