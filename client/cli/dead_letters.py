"""`aerobee dlq`: dead letters, the messages whose retries are used up."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import click

from aerobee.client.cli.base import NOT_FOUND, Failure
from aerobee.client.cli.common import MOMENT, Asked, connected, failure_of
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
from aerobee.client.errors import AerobeeError, NotFound
from aerobee.client.message import DLQ_PREFIX, Message
from aerobee.protocol import properties as props

REPLAYED_FROM: Final = "AEROBEE_REPLAYED_FROM"
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
    """Look at dead letters and replay them."""


@dlq.command("list")
@click.argument("group", required=False)
@click.option("--since", type=MOMENT, help="Dead since this time.")
@click.option("-n", "--count", type=click.IntRange(min=1), default=100, show_default=True)
@connected
async def list_dead(asked: Asked, mq: Client, group: str | None, since: Any, count: int) -> None:
    """The groups with dead letters, or the dead letters of GROUP."""
    if group is None:
        await _list_groups(asked, mq)
        return
    rows = [
        {
            "dead since": message.stored_at,
            "topic": origin_topic(message),
            "id": message.message_id,
            "retries": message.reconsume_times,
            "tag": message.tag,
            "keys": message.keys,
            "body": message_text(message, 60),
        }
        async for message in _dead(mq, group, since, count)
    ]
    print_rows(rows, as_json=asked.json, empty=f"group {group} has no dead letters")


async def _list_groups(asked: Asked, mq: Client) -> None:
    rows = []
    for topic in await mq.admin.topics(system=True):
        if topic.startswith(DLQ_PREFIX):
            stats = await mq.admin.topic_stats(topic)
            count = sum(row.max_offset - row.min_offset for row in stats)
            rows.append({"group": topic.removeprefix(DLQ_PREFIX), "dead letters": count})
    print_rows(rows, as_json=asked.json, empty="no group has dead letters")


def _dead(mq: Client, group: str, since: Any = None, limit: int | None = None) -> Any:
    return mq.find(DLQ_PREFIX + group, since=since, limit=limit)


def origin_topic(message: Message) -> str:
    """Where a dead letter was sent to first."""
    found = message.properties
    return found.get(props.DLQ_ORIGIN_TOPIC) or found.get(props.RETRY_TOPIC) or message.topic


@dlq.command()
@click.argument("group")
@click.argument("message_id")
@connected
async def show(asked: Asked, mq: Client, group: str, message_id: str) -> None:
    """All of one dead letter of GROUP, by any of its ids."""
    async for message in _dead(mq, group):
        ids = (message.message_id, message.offset_message_id)
        if message_id in (*ids, message.properties.get(props.ORIGIN_MESSAGE_ID)):
            if asked.json:
                print_json(message_json(message))
            else:
                print_message(message)
            return
    raise Failure(f"group {group} has no dead letter {message_id}", NOT_FOUND)


@dlq.command()
@click.argument("group")
@click.option("--id", "ids", multiple=True, help="Only these messages; may be repeated.")
@click.option("--since", type=MOMENT, help="Only those that are dead since this time.")
@click.option("--to", "topic", help="Send them to this topic; else to where they came from.")
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
    rate: float,
    dry_run: bool,
) -> None:
    """Send the dead letters of GROUP again, with their tags, keys and properties.

    They stay among the dead letters; each copy says where it comes from in the property
    AEROBEE_REPLAYED_FROM. Every group that reads the topic gets the copy.
    """
    try:
        letters = [
            message
            async for message in _dead(mq, group, since)
            if not ids or message.message_id in ids or message.offset_message_id in ids
        ]
    except NotFound:
        raise Failure(f"group {group} has no dead letters", NOT_FOUND) from None
    refused: list[str] = []
    if not dry_run:
        refused = await _replay(mq, group, letters, topic, rate, quiet=asked.json)
    sent = len(letters) - len(refused)
    text = f"{sent} dead letter(s) of {group} {'would be' if dry_run else 'were'} sent again"
    value = {"group": group, "replayed": 0 if dry_run else sent, "found": len(letters)}
    print_done(text, value, as_json=asked.json)
    if refused:
        raise Failure("\n".join((f"{len(refused)} could not be sent:", *refused)))


async def _replay(
    mq: Client, group: str, letters: list[Message], topic: str | None, rate: float, *, quiet: bool
) -> list[str]:
    """Gives those that can never be sent; what may succeed later ends it."""
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


async def _send_again(mq: Client, letter: Message, topic: str | None) -> None:
    await mq.send(
        topic or origin_topic(letter),
        letter.body,
        tag=letter.tag,
        key=letter.keys or None,
        order_key=letter.properties.get(props.SHARDING_KEY),
        properties=_kept(letter),
    )


def _kept(letter: Message) -> dict[str, str]:
    """The user's own properties, and where the copy comes from."""
    own = {name: value for name, value in letter.properties.items() if name not in _SYSTEM}
    return own | {REPLAYED_FROM: letter.offset_message_id}
