"""`aerobee why`: where a message is, and what each group did with it."""

from __future__ import annotations

import click

from aerobee.client.cli.common import CommonOptions, connected
from aerobee.client.cli.completing import groups, topics
from aerobee.client.cli.failures import NOT_FOUND
from aerobee.client.cli.output import cell, print_json, visible
from aerobee.client.client import Client
from aerobee.client.message import time_of
from aerobee.client.why.answer import ANY_GROUP, LifeEvent, Why


@click.command()
@click.argument("message_id", metavar="ID")
@click.option("--topic", shell_complete=topics, help="Its topic; default: search all topics.")
@click.option(
    "--group", shell_complete=groups, help="Only this group; default: each that reads it."
)
@connected
async def why(
    common: CommonOptions, mq: Client, message_id: str, topic: str | None, group: str | None
) -> int:
    """Say where the message with ID is, and why a group has it or has it not.

    ID is the producer's (receipt.message_id) or the broker's offset id. Exit code 3: not found.
    """
    answer = await mq.why(message_id, topic, group)
    if common.json:
        print_json(answer.as_dict())
    else:
        _print(answer)
    return 0 if answer.is_found else NOT_FOUND


def _print(answer: Why) -> None:
    click.echo(answer.message_id)
    for event in answer.life:
        click.echo(f"  {visible(_line(event))}")
    names = {
        row.group: "every group" if row.group == ANY_GROUP else row.group for row in answer.groups
    }
    width = max(len(name) for name in names.values())
    for row in answer.groups:
        verdict = row.verdict.value.replace("_", " ").upper()
        click.echo(f"{visible(names[row.group]):{width}}  {verdict}: {visible(row.text)}")
        if row.remedy:
            click.echo(f"{'':{width}}  -> {visible(row.remedy)}")


def _line(event: LifeEvent) -> str:
    moment = cell(time_of(event.at)) if event.at else "?"
    facts = dict(event.facts)
    broker, queue, offset = (facts.pop(name, None) for name in ("broker", "queue", "offset"))
    place = f"{event.topic}/{broker}"
    if queue is not None:
        place += f"/{queue} @ {offset}"
    texts = [text for name, value in facts.items() if (text := _describe_fact(name, value))]
    return f"{moment}  {event.event.replace('_', ' '):10}  {place}" + "".join(
        f", {text}" for text in texts
    )


def _describe_fact(name: str, value: object) -> str:
    """One fact of an event; empty when it is not known."""
    if name in ("on_disk", "visible"):
        return ("" if value else "not ") + name.replace("_", " ") if value is not None else ""
    if value in (None, "", 0):
        return ""
    if name.endswith("_at") and isinstance(value, int):
        value = cell(time_of(value))
    return f"{name.replace('_', ' ')} {value}"
