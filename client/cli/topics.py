"""`aerobee topic`."""

from __future__ import annotations

import click

from aerobee.client.cli.base import NOT_FOUND, Failure
from aerobee.client.cli.common import Asked, connected, pair
from aerobee.client.cli.output import print_done, print_json, print_rows
from aerobee.client.client import Client
from aerobee.client.routes import PERM_READ, PERM_WRITE


@click.group()
def topic() -> None:
    """List, create, show and delete topics."""


@topic.command("list")
@click.option("--all", "system", is_flag=True, help="Also those of the brokers themselves.")
@connected
async def list_topics(asked: Asked, mq: Client, system: bool) -> None:
    """The topics of the cluster."""
    rows = [{"topic": name} for name in await mq.admin.topics(system=system)]
    print_rows(rows, as_json=asked.json, empty="no topics yet")


@topic.command()
@click.argument("name")
@connected
async def show(asked: Asked, mq: Client, name: str) -> None:
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
            "last stored": row.updated_at,
        }
        for row in stats
    ]
    if asked.json:
        print_json({"topic": name, "settings": configs, "queues": rows})
        return
    for broker, config in configs.items():
        perm = config.get("perm", 0)
        rights = ("read " if perm & PERM_READ else "") + ("write" if perm & PERM_WRITE else "")
        click.echo(f"{name} on {broker}: {config.get('writeQueueNums')} queues, {rights or 'none'}")
    print_rows(rows, as_json=False, empty="no queues")


@topic.command()
@click.argument("name")
@click.option("--queues", type=click.IntRange(1, 65535), default=8, show_default=True)
@click.option("--read/--no-read", default=True, help="May it be read?")
@click.option("--write/--no-write", default=True, help="May it be written?")
@click.option("--order", is_flag=True, help="Mark it as an ordered topic.")
@click.option("--attribute", "pairs", multiple=True, metavar="NAME=VALUE", help="May be repeated.")
@connected
async def create(
    asked: Asked,
    mq: Client,
    name: str,
    queues: int,
    read: bool,
    write: bool,
    order: bool,
    pairs: tuple[str, ...],
) -> None:
    """Create a topic, or change it, on every broker."""
    attributes = dict(pair(text, "--attribute") for text in pairs)
    await mq.admin.create_topic(
        name, queues=queues, readable=read, writable=write, order=order, attributes=attributes
    )
    value = {"topic": name, "queues": queues}
    print_done(f"topic {name} has {queues} queues on every broker", value, as_json=asked.json)


@topic.command()
@click.argument("name")
@click.confirmation_option(prompt="Delete the topic and its messages?")
@connected
async def delete(asked: Asked, mq: Client, name: str) -> None:
    """Delete a topic with its messages."""
    if name not in await mq.admin.topics(system=True):
        raise Failure(f"there is no topic {name}", NOT_FOUND)
    await mq.admin.delete_topic(name)
    print_done(f"topic {name} is deleted", {"deleted": name}, as_json=asked.json)
