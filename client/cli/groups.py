"""`aerobee group` and `aerobee offsets`."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import click

from aerobee.client.admin.types import QueueLag
from aerobee.client.cli.common import MOMENT, CommonOptions, connected, require_topic
from aerobee.client.cli.completing import group_argument, topic_argument
from aerobee.client.cli.failures import Failure, confirmed
from aerobee.client.cli.output import print_done, print_json, print_rows, snake_keys
from aerobee.client.client import Client

_RETRIES: Final = click.IntRange(0, 1000)


@click.group()
def group() -> None:
    """List, show, create, change and delete consumer groups."""


@group.command("list")
@click.option("--all", "system", is_flag=True, help="Also those of the tools themselves.")
@connected
async def list_groups(common: CommonOptions, mq: Client, system: bool) -> None:
    """The groups with their members and lag."""
    rows = []
    for name in await mq.admin.groups(system=system):
        members = await mq.admin.members(name)
        lags = await mq.admin.lag(name)
        rows.append({"group": name, "members": len(members), "lag": sum(row.lag for row in lags)})
    print_rows(rows, as_json=common.json, empty="no groups yet")


@group.command()
@group_argument("name")
@connected
async def show(common: CommonOptions, mq: Client, name: str) -> None:
    """The settings, the members and the lag of a group."""
    configs = await mq.admin.group_config(name)
    members = await mq.admin.members(name)
    broadcasting = await mq.admin.is_broadcasting(name)
    lags = [] if broadcasting else [_lag_row(row) for row in await mq.admin.lag(name)]
    conflicts = await mq.admin.conflicts(name)
    member_rows = [
        {
            "client": row.client_id,
            "address": row.address,
            "language": row.language,
            "version": row.version,
        }
        for row in members
    ]
    if common.json:
        print_json(
            {
                "group": name,
                "settings": snake_keys(configs),
                "members": member_rows,
                "lag": None if broadcasting else lags,
                "conflicts": snake_keys(conflicts),
            }
        )
        return
    config: dict[str, Any] = next(iter(configs.values()))
    enabled = "enabled" if config.get("consumeEnable", True) else "disabled"
    click.echo(f"{name}: consuming {enabled}, at most {config.get('retryMaxTimes')} retries")
    print_rows(member_rows, as_json=False, empty="no members online", title="members")
    if broadcasting:
        click.echo("lag: not kept, each member of a broadcasting group has its own offsets")
    else:
        print_rows(lags, as_json=False, empty="no offsets yet", title="lag")
    for topic, entries in conflicts.items():
        wants = ", ".join(f"{row['clientId']}: {row.get('subString', 'none')}" for row in entries)
        click.echo(f"WARNING: members subscribe {topic} differently and lose messages: {wants}")


def _lag_row(row: QueueLag) -> dict[str, Any]:
    return {
        "topic": row.queue.topic,
        "broker": row.queue.broker_name,
        "queue": row.queue.queue_id,
        "consumed": row.offset,
        "stored": row.max_offset,
        "lag": row.lag,
        "last_consumed": row.consumed_at,
    }


@group.command()
@click.argument("name")
@click.option("--max-retries", type=_RETRIES, default=16, show_default=True)
@click.option("--consume/--no-consume", default=True, help="May its members consume?")
@click.option("--broadcast/--no-broadcast", default=True, help="May it broadcast?")
@connected
async def create(
    common: CommonOptions, mq: Client, name: str, max_retries: int, consume: bool, broadcast: bool
) -> None:
    """Create a group on every broker."""
    if name in await mq.admin.groups(system=True):
        raise Failure(f"group {name} exists already: `aerobee group update {name}` changes it")
    await mq.admin.create_group(
        name,
        max_retries=max_retries,
        consume_enabled=consume,
        broadcast_enabled=broadcast,
    )
    value = {"group": name, "max_retries": max_retries}
    print_done(f"group {name} exists on every broker", value, as_json=common.json)


@group.command()
@group_argument("name")
@click.option("--max-retries", type=_RETRIES)
@click.option("--consume/--no-consume", default=None, help="May its members consume?")
@click.option("--broadcast/--no-broadcast", default=None, help="May it broadcast?")
@connected
async def update(
    common: CommonOptions,
    mq: Client,
    name: str,
    max_retries: int | None,
    consume: bool | None,
    broadcast: bool | None,
) -> None:
    """Change a group on every broker that has it; what is not named stays as it is."""
    value = {"max_retries": max_retries, "consume_enabled": consume, "broadcast_enabled": broadcast}
    changes: dict[str, Any] = {key: new for key, new in value.items() if new is not None}
    if not changes:
        raise click.UsageError("say what to change: --max-retries, --no-consume, ... (see --help)")
    await mq.admin.update_group(name, **changes)
    print_done(f"group {name} is changed", {"group": name} | changes, as_json=common.json)


@group.command()
@group_argument("name")
@confirmed("Delete group {name} with its offsets?")
@connected
async def delete(common: CommonOptions, mq: Client, name: str) -> None:
    """Delete a group with its offsets."""
    await mq.admin.group_config(name)  # NotFound when there is none
    await mq.admin.delete_group(name)
    print_done(f"group {name} is deleted", {"deleted": name}, as_json=common.json)


@click.group()
def offsets() -> None:
    """Show and reset the offsets of a group."""


@offsets.command("show")
@group_argument("group_name", metavar="GROUP")
@topic_argument(required=False)
@connected
async def show_offsets(
    common: CommonOptions, mq: Client, group_name: str, topic: str | None
) -> None:
    """How far a group has come."""
    await mq.admin.group_config(group_name)  # NotFound when there is none
    if topic is not None:
        await require_topic(mq, topic)
    rows = [_lag_row(row) for row in await mq.admin.lag(group_name, topic)]
    print_rows(rows, as_json=common.json, empty=f"group {group_name} has no offsets yet")


@offsets.command()
@group_argument("group_name", metavar="GROUP")
@topic_argument()
@click.option("--to-first", is_flag=True, help="To the oldest message.")
@click.option("--to-last", is_flag=True, help="Past the newest message.")
@click.option("--to-time", type=MOMENT, help="To the first message stored at that time or later.")
@click.option(
    "--queue", "queue_id", type=click.IntRange(min=0), help="Only this queue of each broker."
)
@connected
async def reset(
    common: CommonOptions,
    mq: Client,
    group_name: str,
    topic: str,
    to_first: bool,
    to_last: bool,
    to_time: datetime | None,
    queue_id: int | None,
) -> None:
    """Move a group on a topic; members that are online move there, too."""
    targets: list[Any] = ["first"] * to_first + ["last"] * to_last
    targets += [] if to_time is None else [to_time]
    if len(targets) != 1:
        raise click.UsageError("give one of --to-first, --to-last and --to-time")
    await mq.admin.group_config(group_name)
    await require_topic(mq, topic)
    moved = await mq.admin.reset(group_name, topic, targets[0], queue_id=queue_id)
    rows = [
        {"topic": topic, "broker": queue.broker_name, "queue": queue.queue_id, "offset": offset}
        for queue, offset in sorted(moved.items())
    ]
    print_rows(rows, as_json=common.json, empty="the broker named no queues")
