"""`aerobee timer`: pending delayed messages."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from aerobee.client.cli.common import CommonOptions, connected
from aerobee.client.cli.completing import topic_argument
from aerobee.client.cli.output import print_done, print_rows
from aerobee.client.client import Client


@click.group()
def timer() -> None:
    """Look at delayed messages and recall them."""


@timer.command("list")
@topic_argument(required=False)
@click.option("-n", "--count", type=click.IntRange(1, 100_000), default=100, show_default=True)
@connected
async def list_timers(common: CommonOptions, mq: Client, topic: str | None, count: int) -> None:
    """The pending delayed messages (of TOPIC), next one first."""
    rows = [
        {
            "due": datetime.fromtimestamp(row["deliverTimestamp"] / 1000, UTC),
            "topic": row["topic"],
            "id": row["msgId"],
            "tag": row.get("tags"),
            "keys": row.get("keys"),
            "bytes": row["bodySize"],
            "recall_handle": row["recallHandle"],
        }
        for row in await mq.admin.timers(topic, limit=count)
    ]
    print_rows(rows, as_json=common.json, empty="no delayed message is pending")


@timer.command()
@topic_argument()
@click.argument("handle")
@connected
async def recall(common: CommonOptions, mq: Client, topic: str, handle: str) -> None:
    """Cancel a delayed message of TOPIC by the handle of its receipt or of `timer list`."""
    message_id = await mq.recall(topic, handle)
    print_done(f"{message_id} is recalled", {"recalled": message_id}, as_json=common.json)
