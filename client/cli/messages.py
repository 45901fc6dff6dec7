"""`aerobee send`, `consume` and `message`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from aerobee.client.cli.common import (
    MOMENT,
    MOMENT_AHEAD,
    CommonOptions,
    connected,
    forget_group,
    pair,
    read_input,
    require_topic,
)
from aerobee.client.cli.completing import groups, topic_argument, topics
from aerobee.client.cli.failures import NOT_FOUND, Failure
from aerobee.client.cli.output import (
    cell,
    message_row,
    print_json,
    print_message,
    print_rows,
    visible,
)
from aerobee.client.client import Client, connect
from aerobee.client.consuming.options import ConsumerOptions, Start
from aerobee.client.message import Message, Receipt
from aerobee.client.tools.messages import message_json
from aerobee.protocol.wire.recall_handle import decode as recall_handle_of


@click.command()
@topic_argument()
@click.argument("body", required=False)
@click.option("--tag", help="What consumers filter by.")
@click.option("--key", "keys", multiple=True, help="What queries find it by; may be repeated.")
@click.option("--order-key", help="Messages with the same one stay in order.")
@click.option("--delay", type=float, help="Seconds before it is delivered.")
@click.option("--deliver-at", type=MOMENT_AHEAD, help="When it is delivered; 2h: in two hours.")
@click.option("--property", "pairs", multiple=True, metavar="NAME=VALUE", help="May be repeated.")
@click.option("--lines", is_flag=True, help="Send each line of standard input as a message.")
@connected
async def send(
    common: CommonOptions,
    mq: Client,
    topic: str,
    body: str | None,
    tag: str | None,
    keys: tuple[str, ...],
    order_key: str | None,
    delay: float | None,
    deliver_at: datetime | None,
    pairs: tuple[str, ...],
    lines: bool,
) -> None:
    """Send BODY to TOPIC; without BODY, or with `-`, what standard input holds."""
    if lines and body not in (None, "-"):
        raise click.UsageError("give a BODY or --lines, not both")
    options: dict[str, Any] = {
        "tag": tag,
        "key": list(keys) or None,
        "order_key": order_key,
        "delay": delay,
        "deliver_at": deliver_at,
        "properties": dict(pair(text, "--property") for text in pairs) or None,
    }
    if lines:
        count = 0
        async with mq.producer(topic, linger=0.005, timeout=common.timeout) as producer:
            async for line in _input_lines():
                await producer.send(line.rstrip(b"\r"), **options)
                count += 1
        if common.json:
            print_json({"topic": topic, "sent": count})
        else:
            click.echo(f"{count} message(s) stored in {topic}")
        return
    if body in (None, "-"):
        content = b"".join([piece async for piece in read_input()])
    else:
        content = os.fsencode(str(body))  # the bytes of the command line, whatever they are
    receipt = await mq.send(topic, content, timeout=common.timeout, **options)
    if delay is not None or deliver_at is not None:
        _print_delayed(common, receipt, delay, deliver_at)
        return
    if common.json:
        print_json({**receipt._asdict(), "durability": receipt.durability.value, "ok": receipt.ok})
        return
    queue = receipt.queue
    click.echo(
        f"stored {receipt.message_id} in {queue.broker_name}/{topic}/{queue.queue_id} "
        f"at {receipt.queue_offset} ({receipt.durability.value})"
    )


def _print_delayed(
    common: CommonOptions, receipt: Receipt, delay: float | None, deliver_at: datetime | None
) -> None:
    """When it is due and how to recall it; its present offset is that of the broker's timers."""
    handle = receipt.recall_handle
    if handle is not None:
        due = datetime.fromtimestamp(recall_handle_of(handle).deliver_ms / 1000, UTC)
    else:
        due = deliver_at or datetime.now(UTC) + timedelta(seconds=delay or 0)
    if common.json:
        value = {"topic": receipt.topic, "message_id": receipt.message_id, "due": due}
        value |= {"recall_handle": handle, "durability": receipt.durability.value}
        print_json({**value, "ok": receipt.ok})
        return
    click.echo(f"stored {receipt.message_id}, due {cell(due)} ({receipt.durability.value})")
    if handle is not None:
        click.echo(f"to take it back: aerobee timer recall {receipt.topic} {handle}")


async def _input_lines() -> AsyncIterator[bytes]:
    rest = b""
    async for piece in read_input():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest


@click.command()
@topic_argument()
@click.option(
    "--group",
    shell_complete=groups,
    help="Consume as a member of this group and commit; default: only look.",
)
@click.option("--tag", "tags", multiple=True, help="Only these tags; may be repeated.")
@click.option("--sql", help="Only what this SQL92 expression selects.")
@click.option("--from", "since", type=MOMENT, help="Begin at this time; default: the first.")
@click.option("-f", "--follow", is_flag=True, help="Wait for more until interrupted.")
@click.option("-n", "--count", type=click.IntRange(min=1), help="Stop after this many messages.")
@connected
async def consume(
    common: CommonOptions,
    mq: Client,
    topic: str,
    group: str | None,
    tags: tuple[str, ...],
    sql: str | None,
    since: datetime | None,
    follow: bool,
    count: int | None,
) -> int:
    """Print the messages of TOPIC, one line each; --json prints one object a line.

    Without --group nothing is committed, so no consumer is affected.
    """
    await require_topic(mq, topic)
    if not follow and group is None:
        found = mq.find(topic, since=since, tags=tags or None, sql=sql, limit=count)
        async with aclosing(found) as stored:  # type: ignore[type-var]
            async for message in stored:
                _print_line(message, common.json)
        return 0
    if group is not None:
        await _follow(common, mq, topic, group, tags, sql, since, follow, count)
        return 0
    name = f"aerobee-look-{mq.client_id.rpartition('#')[2]}"
    try:
        # By a connection of its own: closing it ends the pulls held by the broker, which would
        # otherwise create the group again.
        async with connect(common.url, timeout=common.timeout) as other:
            await _follow(common, other, topic, name, tags, sql, since, follow, count)
    finally:
        await forget_group(mq, name)
    return 0


async def _follow(
    common: CommonOptions,
    mq: Client,
    topic: str,
    group: str,
    tags: tuple[str, ...],
    sql: str | None,
    since: datetime | None,
    follow: bool,
    count: int | None,
) -> None:
    start: Start = since or "first"
    options = ConsumerOptions(pull_count=32) if count else ConsumerOptions()
    printed = 0
    async with mq.consumer(
        topic, group=group, tags=tags or None, sql=sql, start=start, options=options
    ) as inbox:
        while count is None or printed < count:
            try:
                async with asyncio.timeout(None if follow else 2.0):
                    message = await inbox.get()
            except TimeoutError:
                break
            _print_line(message, common.json)
            await message.ack()
            printed += 1


def _print_line(message: Message, as_json: bool) -> None:
    if as_json:
        print_json(message_json(message))
        return
    row = message_row(message)
    tag = f" [{visible(row['tag'])}]" if row["tag"] else ""
    keys = f" {visible(' '.join(row['keys']))}" if row["keys"] else ""
    moment = message.stored_at.astimezone().isoformat(sep=" ", timespec="milliseconds")
    click.echo(f"{moment} {row['queue']}@{row['offset']}{tag}{keys}  {row['body']}")


@click.group()
def message() -> None:
    """Find stored messages."""


@message.command("id")
@click.argument("message_id")
@click.option("--topic", shell_complete=topics, help="Needed for a producer's unique id.")
@connected
async def by_id(common: CommonOptions, mq: Client, message_id: str, topic: str | None) -> None:
    """The message with that id."""
    found = await mq.message(message_id, topic=topic)
    if common.json:
        print_json(message_json(found))
    else:
        print_message(found)


@message.command("key")
@topic_argument()
@click.argument("key")
@click.option("-n", "--count", type=click.IntRange(1, 10_000), default=64, show_default=True)
@connected
async def by_key(common: CommonOptions, mq: Client, topic: str, key: str, count: int) -> None:
    """The newest messages of TOPIC with that key: of each broker 64 at most (maxMsgsNumBatch)."""
    await _print_found(common, [row async for row in mq.find(topic, key=key, limit=count)], key)


@message.command("time")
@topic_argument()
@click.option("--since", type=MOMENT, help="Stored at this time or later.")
@click.option("--until", type=MOMENT, help="Stored at this time or before.")
@click.option("-n", "--count", type=click.IntRange(1, 100_000), default=64, show_default=True)
@connected
async def by_time(
    common: CommonOptions,
    mq: Client,
    topic: str,
    since: datetime | None,
    until: datetime | None,
    count: int,
) -> None:
    """The messages of TOPIC stored in that time."""
    found = [row async for row in mq.find(topic, since=since, until=until, limit=count)]
    await _print_found(common, found, "that time")


async def _print_found(common: CommonOptions, found: list[Message], what: str) -> None:
    if common.json:
        print_json([message_json(row) for row in found])
    else:
        print_rows([message_row(row) for row in found], as_json=False, empty="")
    if not found:
        raise Failure(f"no message found for {what}", NOT_FOUND)
