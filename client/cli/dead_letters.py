"""`aerobee dlq`: dead letters, the messages whose retries are used up."""

from __future__ import annotations

from typing import Any

import click

from aerobee.client.cli.common import MOMENT, CommonOptions, connected, failure_of
from aerobee.client.cli.completing import group_argument, topics
from aerobee.client.cli.failures import NOT_FOUND, Failure, confirmed
from aerobee.client.cli.output import (
    message_text,
    print_done,
    print_json,
    print_message,
    print_rows,
    progress,
)
from aerobee.client.client import Client
from aerobee.client.errors import AerobeeError, NotFound
from aerobee.client.message import Message
from aerobee.client.tools.dead_letters import (
    count_of,
    groups_with_letters,
    letters_of,
    origin_topic,
    replay_marks,
    send_letters_again,
)
from aerobee.client.tools.messages import message_json
from aerobee.protocol.files import properties as props
from aerobee.protocol.names import DLQ_PREFIX


@click.group()
def dlq() -> None:
    """Look at dead letters, replay them and remove them."""


@dlq.command("list")
@group_argument(required=False)
@click.option("--since", type=MOMENT, help="Dead since this time.")
@click.option("-n", "--count", type=click.IntRange(min=1), default=100, show_default=True)
@connected
async def list_dead(
    common: CommonOptions, mq: Client, group: str | None, since: Any, count: int
) -> None:
    """The groups with dead letters, or the dead letters of GROUP."""
    if group is None:
        await _list_groups(common, mq)
        return
    marks = await replay_marks(mq)
    rows = [
        {
            "dead_since": message.stored_at,
            "topic": origin_topic(message),
            "id": message.message_id,
            "retries": message.reconsume_times,
            "replayed": marks.get(message.offset_message_id),
            "tag": message.tag,
            "keys": message.keys,
            "body": message_text(message, 60),
        }
        for message in await letters_of(mq, group, since, count)
    ]
    print_rows(rows, as_json=common.json, empty=_none_of(group))


def _none_of(group: str) -> str:
    return f"group {group} has no dead letters"


async def _list_groups(common: CommonOptions, mq: Client) -> None:
    found = await groups_with_letters(mq)
    rows = [{"group": group, "dead_letters": count} for group, count in found.items()]
    print_rows(rows, as_json=common.json, empty="no group has dead letters")


@dlq.command()
@group_argument()
@click.argument("message_id")
@connected
async def show(common: CommonOptions, mq: Client, group: str, message_id: str) -> None:
    """All of one dead letter of GROUP, by any of its ids."""
    for message in await letters_of(mq, group):
        ids = (message.message_id, message.offset_message_id)
        if message_id in (*ids, message.properties.get(props.ORIGIN_MESSAGE_ID)):
            if common.json:
                print_json(message_json(message))
            else:
                print_message(message)
            return
    raise Failure(f"group {group} has no dead letter {message_id}", NOT_FOUND)


@dlq.command()
@group_argument()
@confirmed("Remove all dead letters of group {group}?")
@connected
async def purge(common: CommonOptions, mq: Client, group: str) -> None:
    """Remove all dead letters of GROUP."""
    topic = DLQ_PREFIX + group
    try:
        count = await count_of(mq, topic)
        await mq.admin.delete_topic(topic)
    except NotFound:
        await mq.admin.group_config(group)
        count = 0
    text = f"{count} dead letter(s) of {group} are removed" if count else _none_of(group)
    print_done(text, {"group": group, "purged": count}, as_json=common.json)


@dlq.command()
@group_argument()
@click.option("--id", "ids", multiple=True, help="Only these messages; may be repeated.")
@click.option("--since", type=MOMENT, help="Only those that are dead since this time.")
@click.option(
    "--to",
    "topic",
    shell_complete=topics,
    help="Send them to this topic; default: to where they came from.",
)
@click.option("--again", is_flag=True, help="Also those that were replayed before.")
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    default=100.0,
    show_default=True,
    help="Messages a second at most.",
)
@click.option("--dry-run", is_flag=True, help="Only count.")
@connected
async def replay(
    common: CommonOptions,
    mq: Client,
    group: str,
    ids: tuple[str, ...],
    since: Any,
    topic: str | None,
    again: bool,
    rate: float,
    dry_run: bool,
) -> None:
    """Send the dead letters of GROUP again, with their tags, keys and properties.

    They stay among the dead letters, marked as replayed; each copy says where it comes from in the
    property AEROBEE_REPLAYED_FROM. Every group that reads the topic gets the copy.
    """
    if topic is not None and topic.startswith(DLQ_PREFIX):
        raise click.UsageError(f"--to {topic}: a replay cannot go to a dead-letter topic")
    found = [
        message
        for message in await letters_of(mq, group, since)
        if not ids or message.message_id in ids or message.offset_message_id in ids
    ]
    marks = {} if again else await replay_marks(mq)
    letters = [message for message in found if message.offset_message_id not in marks]
    before = len(found) - len(letters)
    refused: list[str] = []
    if letters and not dry_run:
        refused = await _replay(mq, group, letters, topic, rate, quiet=common.json)
    sent = len(letters) - len(refused)
    text = f"{sent} dead letter(s) of {group} {'would be' if dry_run else 'were'} sent again"
    text += f"; {before} were replayed before (--again sends them again)" if before else ""
    value = {
        "group": group,
        "found": len(found),
        "replayed": 0 if dry_run else sent,
        "replayed_before": before,
    }
    print_done(text if found else _none_of(group), value, as_json=common.json)
    if refused:
        raise Failure("\n".join((f"{len(refused)} could not be sent:", *refused)))


async def _replay(
    mq: Client, group: str, letters: list[Message], topic: str | None, rate: float, *, quiet: bool
) -> list[str]:
    """Returns those that can never be sent; stops at an error that a retry may fix."""
    refused: list[str] = []
    taken = 0
    with progress("replaying", len(letters), hidden=quiet) as done:
        try:
            async for problem in send_letters_again(mq, letters, topic, rate):
                taken += 1
                refused += [problem] if problem is not None else []
                done(1)
        except AerobeeError as error:
            sent = f"{taken - len(refused)} of {len(letters)} dead letter(s) of {group}"
            text = f"{sent} were sent again, then: {error}"
            raise Failure(text, failure_of(error).status) from None
    return refused
