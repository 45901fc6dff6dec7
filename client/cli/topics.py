"""`aerobee topic`."""

from __future__ import annotations

from typing import Any, Final

import click

from aerobee.client.cli.common import CommonOptions, connected, pair
from aerobee.client.cli.completing import topic_argument
from aerobee.client.cli.failures import NOT_FOUND, Failure, confirmed
from aerobee.client.cli.output import print_done, print_json, print_rows, snake_keys
from aerobee.client.client import Client
from aerobee.client.transport.routes import AUTO_CREATE_QUEUES, PERM_READ, PERM_WRITE

_QUEUES: Final = click.IntRange(1, 65535)
_ATTRIBUTE: Final = click.option(
    "--attribute", "pairs", multiple=True, metavar="NAME=VALUE", help="May be repeated."
)


@click.group()
def topic() -> None:
    """List, show, create, change and delete topics."""


@topic.command("list")
@click.option("--all", "system", is_flag=True, help="Also those of the brokers themselves.")
@connected
async def list_topics(common: CommonOptions, mq: Client, system: bool) -> None:
    """The topics of the cluster."""
    rows = [{"topic": name} for name in await mq.admin.topics(system=system)]
    print_rows(rows, as_json=common.json, empty="no topics yet")


@topic.command()
@topic_argument("name")
@connected
async def show(common: CommonOptions, mq: Client, name: str) -> None:
    """The queues of a topic, what they hold, and its settings."""
    configs = await mq.admin.topic_config(name)
    stats = await mq.admin.topic_stats(name)
    rows = [
        {
            "broker": row.queue.broker_name,
            "queue": row.queue.queue_id,
            "first": row.min_offset,
            "next": row.max_offset,
            "messages": row.max_offset - row.min_offset,
            "last_stored": row.updated_at,
        }
        for row in stats
    ]
    if common.json:
        print_json({"topic": name, "settings": snake_keys(configs), "queues": rows})
        return
    for broker, config in configs.items():
        perm = config.get("perm", 0)
        rights = ("read " if perm & PERM_READ else "") + ("write" if perm & PERM_WRITE else "")
        click.echo(f"{name} on {broker}: {config.get('writeQueueNums')} queues, {rights or 'none'}")
    print_rows(rows, as_json=False, empty="no queues")


@topic.command()
@click.argument("name")
@click.option("--queues", type=_QUEUES, default=AUTO_CREATE_QUEUES, show_default=True)
@click.option("--read/--no-read", default=True, help="May it be read?")
@click.option("--write/--no-write", default=True, help="May it be written?")
@click.option("--order", is_flag=True, help="Mark it as an ordered topic.")
@_ATTRIBUTE
@connected
async def create(
    common: CommonOptions,
    mq: Client,
    name: str,
    queues: int,
    read: bool,
    write: bool,
    order: bool,
    pairs: tuple[str, ...],
) -> None:
    """Create a topic on every broker."""
    attributes = dict(pair(text, "--attribute") for text in pairs)
    if name in await mq.admin.topics(system=True):
        raise Failure(f"topic {name} exists already: `aerobee topic update {name}` changes it")
    await mq.admin.create_topic(
        name, queues=queues, readable=read, writable=write, order=order, attributes=attributes
    )
    value = {"topic": name, "queues": queues}
    print_done(f"topic {name} has {queues} queues on every broker", value, as_json=common.json)


@topic.command()
@topic_argument("name")
@click.option("--queues", type=_QUEUES, help="Number of queues for writing and reading.")
@click.option("--write-queues", type=_QUEUES, help="Number of queues for new messages.")
@click.option("--read-queues", type=_QUEUES, help="Number of queues that consumers read.")
@click.option("--read/--no-read", default=None, help="May it be read?")
@click.option("--write/--no-write", default=None, help="May it be written?")
@_ATTRIBUTE
@click.option("--force", is_flag=True, help="Even if stored messages become unreadable.")
@connected
async def update(
    common: CommonOptions,
    mq: Client,
    name: str,
    queues: int | None,
    write_queues: int | None,
    read_queues: int | None,
    read: bool | None,
    write: bool | None,
    pairs: tuple[str, ...],
    force: bool,
) -> None:
    """Change a topic on every broker that has it; what is not named stays as it is.

    Fewer read queues make the messages in the others unreadable. To lose none: first fewer
    --write-queues, then, when all groups have read the rest, fewer --read-queues with --force.
    """
    if queues is not None and (write_queues is not None or read_queues is not None):
        raise click.UsageError("give --queues, or --write-queues and --read-queues, not both")
    if (queues, write_queues, read_queues, read, write, pairs) == (*(None,) * 5, ()):
        raise click.UsageError("say what to change: --queues, --no-write, ... (see --help)")
    read_queues, write_queues = read_queues or queues, write_queues or queues
    if read_queues is not None:
        hidden = await _hidden(mq, name, read_queues)
        if hidden and not force:
            raise Failure(
                f"{hidden} would become unreadable: first --write-queues {read_queues}, and when "
                f"all groups have read them, or they do not matter, --force"
            )
        if hidden:
            click.echo(f"aerobee: {hidden} are unreadable now", err=True)
    attributes = dict(pair(text, "--attribute") for text in pairs)
    await mq.admin.update_topic(
        name,
        read_queues=read_queues,
        write_queues=write_queues,
        readable=read,
        writable=write,
        attributes=attributes,
    )
    value = {
        "read_queues": read_queues,
        "write_queues": write_queues,
        "readable": read,
        "writable": write,
        "attributes": attributes or None,
    }
    done: dict[str, Any] = {key: new for key, new in value.items() if new is not None}
    print_done(f"topic {name} is changed", {"topic": name} | done, as_json=common.json)


async def _hidden(mq: Client, name: str, read_queues: int) -> str:
    """What this number of read queues would hide, as text; empty if nothing."""
    stats = await mq.admin.topic_stats(name)
    hidden = {
        row.queue: row.max_offset - row.min_offset
        for row in stats
        if row.queue.queue_id >= read_queues and row.max_offset > row.min_offset
    }
    if not hidden:
        return ""
    numbers = ", ".join(map(str, sorted({queue.queue_id for queue in hidden})))
    return f"{sum(hidden.values())} message(s) of topic {name} in queues {numbers}"


@topic.command()
@topic_argument("name")
@confirmed("Delete topic {name} with its messages?")
@connected
async def delete(common: CommonOptions, mq: Client, name: str) -> None:
    """Delete a topic with its messages."""
    if name not in await mq.admin.topics(system=True):
        raise Failure(f"there is no topic {name}", NOT_FOUND)
    await mq.admin.delete_topic(name)
    print_done(f"topic {name} is deleted", {"deleted": name}, as_json=common.json)
