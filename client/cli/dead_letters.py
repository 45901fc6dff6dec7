"""`aerobee dlq`: dead letters, the messages whose retries are used up."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any, Final

import click

from aerobee.client.cli.base import NOT_FOUND, Failure, confirmed
from aerobee.client.cli.common import MOMENT, Asked, connected, failure_of
from aerobee.client.cli.completing import group_argument, topics
from aerobee.client.cli.output import (
    message_json,
    message_text,
    print_done,
    print_json,
    print_message,
    print_rows,
    progress,
)
from aerobee.client.client import Client
from aerobee.client.errors import AerobeeError, Misuse, NoRoute, NotFound
from aerobee.client.message import Message
from aerobee.protocol.files import properties as props
from aerobee.protocol.names import DLQ_PREFIX, REPLAYED_TOPIC, RETRY_PREFIX

REPLAYED_FROM: Final = "AEROBEE_REPLAYED_FROM"
_OF_GROUPS: Final = (DLQ_PREFIX, RETRY_PREFIX)
_SYSTEM: Final = frozenset(
    (
        *(props.KEYS, props.TAGS, props.UNIQ_KEY, props.WAIT, props.DELAY, props.RETRY_TOPIC),
        *(props.REAL_TOPIC, props.REAL_QID, props.ORIGIN_MESSAGE_ID, props.MSG_REGION),
        *(props.TRACE_ON, props.CLUSTER, props.RECONSUME_TIME, props.MAX_RECONSUME_TIMES),
        *(props.DLQ_ORIGIN_TOPIC, props.DLQ_ORIGIN_MESSAGE_ID, props.CRC32, props.SHARDING_KEY),
        *(props.TIMER_DELAY_MS, props.TIMER_DELAY_SEC, props.TIMER_DELIVER_MS),
        *(props.TIMER_OUT_MS, props.TIMER_ENQUEUE_MS, props.TIMER_DEQUEUE_MS),
        *(props.TIMER_ROLL_TIMES, props.TRAN_MSG, props.PGROUP, props.TRANSACTION_ID),
    )
)


@click.group()
def dlq() -> None:
    """Look at dead letters, replay them and remove them."""


@dlq.command("list")
@group_argument(required=False)
@click.option("--since", type=MOMENT, help="Dead since this time.")
@click.option("-n", "--count", type=click.IntRange(min=1), default=100, show_default=True)
@connected
async def list_dead(asked: Asked, mq: Client, group: str | None, since: Any, count: int) -> None:
    """The groups with dead letters, or the dead letters of GROUP."""
    if group is None:
        await _list_groups(asked, mq)
        return
    marks = await _marks(mq)
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
        for message in await _letters(mq, group, since, count)
    ]
    print_rows(rows, as_json=asked.json, empty=_none_of(group))


def _none_of(group: str) -> str:
    return f"group {group} has no dead letters"


async def _list_groups(asked: Asked, mq: Client) -> None:
    rows = []
    for topic in await mq.admin.topics(system=True):
        if topic.startswith(DLQ_PREFIX) and (count := await _count(mq, topic)):
            rows.append({"group": topic.removeprefix(DLQ_PREFIX), "dead_letters": count})
    print_rows(rows, as_json=asked.json, empty="no group has dead letters")


async def _count(mq: Client, topic: str) -> int:
    return sum(row.max_offset - row.min_offset for row in await mq.admin.topic_stats(topic))


async def _letters(
    mq: Client, group: str, since: Any = None, limit: int | None = None
) -> list[Message]:
    """The dead letters; none of a group that has none, NotFound when there is no such group."""
    try:
        found = mq.find(DLQ_PREFIX + group, since=since, limit=limit)
        return [message async for message in found]
    except NotFound:
        await mq.admin.group_config(group)
        return []


async def _marks(mq: Client) -> dict[str, datetime]:
    """When which letter, by its offset id, was replayed."""
    try:
        return {
            message.body.decode(): message.stored_at async for message in mq.find(REPLAYED_TOPIC)
        }
    except NotFound:
        return {}


def origin_topic(message: Message) -> str | None:
    """Where a dead letter was sent to first; None when nothing says so."""
    told = (message.properties.get(name) for name in (props.DLQ_ORIGIN_TOPIC, props.RETRY_TOPIC))
    return next((name for name in told if name and not name.startswith(_OF_GROUPS)), None)


@dlq.command()
@group_argument()
@click.argument("message_id")
@connected
async def show(asked: Asked, mq: Client, group: str, message_id: str) -> None:
    """All of one dead letter of GROUP, by any of its ids."""
    for message in await _letters(mq, group):
        ids = (message.message_id, message.offset_message_id)
        if message_id in (*ids, message.properties.get(props.ORIGIN_MESSAGE_ID)):
            if asked.json:
                print_json(message_json(message))
            else:
                print_message(message)
            return
    raise Failure(f"group {group} has no dead letter {message_id}", NOT_FOUND)


@dlq.command()
@group_argument()
@confirmed("Remove all dead letters of group {group}?")
@connected
async def purge(asked: Asked, mq: Client, group: str) -> None:
    """Remove all dead letters of GROUP."""
    topic = DLQ_PREFIX + group
    try:
        count = await _count(mq, topic)
        await mq.admin.delete_topic(topic)
    except NotFound:
        await mq.admin.group_config(group)
        count = 0
    text = f"{count} dead letter(s) of {group} are removed" if count else _none_of(group)
    print_done(text, {"group": group, "purged": count}, as_json=asked.json)


@dlq.command()
@group_argument()
@click.option("--id", "ids", multiple=True, help="Only these messages; may be repeated.")
@click.option("--since", type=MOMENT, help="Only those that are dead since this time.")
@click.option(
    "--to",
    "topic",
    shell_complete=topics,
    help="Send them to this topic; else to where they came from.",
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
    asked: Asked,
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
        raise click.UsageError(f"--to {topic}: a replay does not go among the dead letters")
    found = [
        message
        for message in await _letters(mq, group, since)
        if not ids or message.message_id in ids or message.offset_message_id in ids
    ]
    marks = {} if again else await _marks(mq)
    letters = [message for message in found if message.offset_message_id not in marks]
    before = len(found) - len(letters)
    refused: list[str] = []
    if letters and not dry_run:
        refused = await _replay(mq, group, letters, topic, rate, quiet=asked.json)
    sent = len(letters) - len(refused)
    text = f"{sent} dead letter(s) of {group} {'would be' if dry_run else 'were'} sent again"
    text += f"; {before} were replayed before (--again sends them once more)" if before else ""
    value = {
        "group": group,
        "found": len(found),
        "replayed": 0 if dry_run else sent,
        "replayed_before": before,
    }
    print_done(text if found else _none_of(group), value, as_json=asked.json)
    if refused:
        raise Failure("\n".join((f"{len(refused)} could not be sent:", *refused)))


async def _replay(
    mq: Client, group: str, letters: list[Message], topic: str | None, rate: float, *, quiet: bool
) -> list[str]:
    """Gives those that can never be sent; what may succeed later ends it."""
    await _provide_marks(mq)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    refused: list[str] = []
    with progress("replaying", len(letters), hidden=quiet) as done:
        for number, letter in enumerate(letters):
            due = begun + number / rate
            if (wait := due - loop.time()) > 0:
                await asyncio.sleep(wait)
            try:
                await _send_again(mq, letter, topic)
            except AerobeeError as error:
                if error.retriable:
                    sent = f"{number - len(refused)} of {len(letters)} dead letter(s) of {group}"
                    text = f"{sent} were sent again, then: {error}"
                    raise Failure(text, failure_of(error).status) from None
                refused.append(f"{letter.message_id}: {error}")
            done(1)
    return refused


async def _provide_marks(mq: Client) -> None:
    try:
        await mq.queues(REPLAYED_TOPIC)
    except NoRoute:
        await mq.admin.create_topic(REPLAYED_TOPIC, queues=1)


async def _send_again(mq: Client, letter: Message, topic: str | None) -> None:
    """The copy first, then the mark: what ends between them makes a second copy, never none."""
    target = topic or origin_topic(letter)
    if target is None:
        raise Misuse("nothing says where it came from: --to names a topic")
    await mq.send(
        target,
        letter.body,
        tag=letter.tag,
        key=letter.keys or None,
        order_key=letter.properties.get(props.SHARDING_KEY),
        properties=_kept(letter),
    )
    await mq.send(REPLAYED_TOPIC, letter.offset_message_id.encode())


def _kept(letter: Message) -> dict[str, str]:
    """The user's own properties, and where the copy comes from."""
    own = {name: value for name, value in letter.properties.items() if name not in _SYSTEM}
    return own | {REPLAYED_FROM: letter.offset_message_id}
