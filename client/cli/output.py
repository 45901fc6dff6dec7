"""Tables for people, JSON for programs."""

from __future__ import annotations

import base64
import codecs
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from aerobee.client.errors import AerobeeError

if TYPE_CHECKING:
    from aerobee.client.message import Message


def plain(value: Any) -> Any:
    """A value as JSON can carry it."""
    if isinstance(value, datetime):
        return value.isoformat()
    if hasattr(value, "_asdict"):
        return {name: plain(item) for name, item in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return value


def print_json(value: Any) -> None:
    click.echo(json.dumps(plain(value), ensure_ascii=False))


def print_rows(
    rows: Sequence[Mapping[str, Any]], *, as_json: bool, empty: str, title: str | None = None
) -> None:
    """The rows as a table, or as a JSON list."""
    if as_json:
        print_json(list(rows))
        return
    if not rows:
        click.echo(empty)
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    for name in rows[0]:
        numeric = all(isinstance(row.get(name), int | float) for row in rows)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        # As text: what a message holds is no markup of ours.
        table.add_row(*(Text(visible(cell(row.get(name)))) for name in rows[0]))
    console = Console()
    if console.is_terminal:
        console.print(table)
        return
    page = io.StringIO()  # for a file or a pipe: lines are not cut
    Console(file=page, width=10_000, soft_wrap=True).print(table)
    click.echo(page.getvalue(), nl=False)


def visible(text: str) -> str:
    """The text without what a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else "·" for sign in text)


def cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return value.astimezone().isoformat(sep=" ", timespec="milliseconds")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return str(value)


@contextmanager
def progress(label: str, total: int, *, hidden: bool) -> Iterator[Callable[[int], None]]:
    """A bar on stderr while the block lasts; call what it gives with each step done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    console = Console(stderr=True)
    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), Remaining())
    shown = console.is_terminal and not hidden
    with Progress(*columns, console=console, disable=not shown) as bar:
        task = bar.add_task(label, total=total)
        yield lambda step: bar.advance(task, step)


def print_done(text: str, value: Any, *, as_json: bool) -> None:
    """One sentence, or the JSON of what was done."""
    if as_json:
        print_json(value)
    else:
        click.echo(text)


def message_row(message: Message) -> dict[str, Any]:
    """A message for a line of a table."""
    return {
        "stored": message.stored_at,
        "queue": f"{message.queue.broker_name}/{message.queue.queue_id}",
        "offset": message.queue_offset,
        "id": message.message_id,
        "tag": message.tag,
        "keys": message.keys,
        "body": message_text(message),
    }


def message_text(message: Message, limit: int = 120) -> str:
    """The beginning of a message's body for people."""
    try:
        return body_text(message.body, limit)
    except AerobeeError as error:
        return f"({error})"


def message_json(message: Message) -> dict[str, Any]:
    """All of a message; the body as text, or base64 where it is none."""
    found: dict[str, Any] = {
        "topic": message.topic,
        "message_id": message.message_id,
        "offset_message_id": message.offset_message_id,
        "queue": message.queue,
        "queue_offset": message.queue_offset,
        "stored_at": message.stored_at,
        "born_at": message.born_at,
        "reconsume_times": message.reconsume_times,
        "tag": message.tag,
        "keys": message.keys,
        "properties": message.properties,
    }
    try:
        found["body"] = message.body.decode()
    except UnicodeDecodeError:
        found["body_base64"] = base64.b64encode(message.body).decode()
    except AerobeeError as error:
        found["body_error"] = str(error)
        found["body_base64"] = base64.b64encode(bytes(message.stored.body)).decode()
    return found


def body_text(body: bytes, limit: int = 120) -> str:
    """The beginning of a body for people."""
    begin = body[: limit * 4]
    try:  # a sign that the cut has parted is left out
        text = visible(codecs.getincrementaldecoder("utf-8")().decode(begin, begin == body))
    except UnicodeDecodeError:
        text = body[: limit // 2].hex(" ", 4)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def print_message(message: Message) -> None:
    """All of a message, for people."""
    found = message_json(message)
    queue = found.pop("queue")
    found["queue"] = f"{queue.broker_name}/{queue.topic}/{queue.queue_id}"
    properties = found.pop("properties")
    body = found.pop("body", None)
    packed = found.pop("body_base64", None)
    width = max(map(len, found)) + 2
    for name, value in found.items():
        click.echo(f"{name:<{width}}{visible(cell(value))}")
    _print_block("properties", (f"{name} = {value}" for name, value in properties.items()))
    _print_block("body", (body if body is not None else f"base64 {packed}").splitlines())


def _print_block(title: str, lines: Iterable[str]) -> None:
    click.echo(f"{title}:")
    for line in lines:
        click.echo("  " + "\t".join(map(visible, line.split("\t"))))
