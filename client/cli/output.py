"""Tables for people, JSON for programs."""

from __future__ import annotations

import codecs
import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from aerobee.client.errors import AerobeeError
from aerobee.client.tools.messages import message_json

if TYPE_CHECKING:
    from rich.table import Table

    from aerobee.client.message import Message

BODY_WIDTH_MIN: Final = 20  # a body may be cut into lines, an id may not


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


def snake_keys(configs: Any) -> Any:
    """Mappings by name (of a broker, a topic), with RocketMQ's keys in snake_case."""
    return {name: _snake(entry) for name, entry in configs.items()}


def _snake(value: Any) -> Any:
    if isinstance(value, list):
        return [_snake(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower(): (
            item if key == "attributes" else _snake(item)
        )
        for key, item in value.items()
    }


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
    from rich.console import Console

    names = list(rows[0])
    headings = [name.replace("_per_second", "/s").replace("_", " ") for name in names]
    texts = [[visible(cell(row.get(name))) for name in names] for row in rows]
    widths = [
        min(BODY_WIDTH_MIN if name == "body" else sys.maxsize, _longest_word(heading, *column))
        for name, heading, column in zip(names, headings, zip(*texts, strict=True), strict=True)
    ]
    console = Console()
    room = console.width - sum(widths) if console.is_terminal else sys.maxsize
    if room < 2 * len(widths) + 1:
        _print_blocks(headings, texts, title)
        return
    numeric = [all(isinstance(row.get(name), int | float) for row in rows) for name in names]
    table = _table(headings, texts, widths, numeric, title)
    if room < 3 * len(widths) + 1:
        table.padding = (0, 1, 0, 0)
    if console.is_terminal:
        console.print(table)
        return
    page = io.StringIO()  # for a file or a pipe: lines are not cut
    Console(file=page, width=10_000, soft_wrap=True).print(table)
    click.echo(page.getvalue(), nl=False)


def _table(
    headings: list[str],
    texts: list[list[str]],
    widths: list[int],
    numeric: list[bool],
    title: str | None,
) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    for heading, width, right in zip(headings, widths, numeric, strict=True):
        justify: Literal["right", "left"] = "right" if right else "left"
        table.add_column(heading, justify=justify, overflow="fold", min_width=width)
    for row in texts:
        table.add_row(*map(Text, row))  # as text: a message's content is not markup
    return table


def _longest_word(*texts: str) -> int:
    from rich.cells import cell_len

    return max(cell_len(word) for text in texts for word in text.split() or [""])


def _print_blocks(headings: list[str], texts: list[list[str]], title: str | None) -> None:
    """A block of lines for each row, where a table would have to split words such as ids."""
    if title:
        click.echo(title)
    width = max(map(len, headings)) + 2
    for row in texts:
        for heading, text in zip(headings, row, strict=True):
            click.echo(f"{heading:<{width}}{text}")
        click.echo()


def visible(text: str) -> str:
    """The text without control characters and escape sequences."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else "·" for sign in text)


def cell(value: Any) -> str:
    if value is None or value == [] or value == ():
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
    """A progress bar on stderr while the block runs; call the yielded function for each step."""
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


def body_text(body: bytes, limit: int = 120) -> str:
    """The beginning of a body for people."""
    begin = body[: limit * 4]
    try:  # drop a character that the cut has split
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
