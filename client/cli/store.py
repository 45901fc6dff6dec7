"""`aerobee store`: look into a store folder of Aerobee or RocketMQ, or copy it; never change it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from itertools import islice
from typing import Any

import click

from aerobee.client.cli.common import MOMENT
from aerobee.client.cli.failures import FAILED, Failure, json_option
from aerobee.client.cli.output import body_text, cell, print_done, print_json, print_rows, progress

SHOWN = 20  # problems for people; --json has all


@click.group()
def store() -> None:
    """Look into a store folder of Aerobee or RocketMQ, or copy it."""


def _directory(command: Callable[..., Any]) -> Callable[..., Any]:
    place = click.Path(exists=True, file_okay=False)
    for decorate in (
        json_option,
        click.option("--commitlog", type=place, help="The log's folder elsewhere."),
        click.argument("directory", metavar="DIR", type=place),
    ):
        command = decorate(command)
    return command


@contextmanager
def _failures() -> Iterator[None]:
    from aerobee.broker.store.errors import StoreError

    try:
        yield
    except StoreError as error:
        raise Failure(str(error), FAILED) from None
    except BrokenPipeError:
        raise  # not from the store, but from writing the output
    except OSError as error:
        raise Failure(f"{error.filename or 'the store'}: {error.strerror or error}") from None


def _open(directory: str, commitlog: str | None) -> Any:
    from aerobee.broker.store.inspect.files import open_directory

    return open_directory(directory, commitlog or "")


def _moment(ms: int | None) -> str:
    try:
        return cell(datetime.fromtimestamp(ms / 1000).astimezone()) if ms else "-"
    except (ValueError, OverflowError, OSError):  # a damaged record may hold any number
        return f"{ms} ms"


@store.command()
@_directory
def stat(directory: str, commitlog: str | None, as_json: bool) -> None:
    """What DIR holds: topics, queues, offsets, times and sizes."""
    with _failures():
        from aerobee.broker.store.inspect.stat import stat as stat_store

        found = stat_store(_open(directory, commitlog))
    if as_json:
        print_json(found)
        return
    log = found["commitlog"]
    click.echo(f"{found['directory']}: {_state(found['stopped_cleanly'])}")
    for name in ("commitlog", "consumequeue", "index"):
        part = found[name]
        click.echo(
            f"  {name:<13}{part['files']:>6} files {part['bytes']:>16,} bytes, "
            f"{part['bytes_on_disk']:,} on disk"
        )
    click.echo(
        f"  log from {log['begin_offset']} to {log['end_offset']}, stored "
        f"{_moment(log['first_stored'])} to {_moment(log['last_stored'])}"
    )
    rows = [
        row
        | {"first_stored": _moment(row["first_stored"]), "last_stored": _moment(row["last_stored"])}
        for row in found["queues"]
    ]
    print_rows(rows, as_json=False, empty="no queues")
    for text in found["problems"]:
        click.echo(f"problem: {text}")


def _state(stopped_cleanly: bool) -> str:
    return "stopped cleanly" if stopped_cleanly else "in use, or not stopped cleanly"


@store.command()
@_directory
def verify(directory: str, commitlog: str | None, as_json: bool) -> int:
    """Whether every record, queue entry and index entry of DIR agrees; exit code 1 if not."""
    with _failures():
        from aerobee.broker.store.inspect.files import kept_at_rest
        from aerobee.broker.store.inspect.verify import verify as verify_store

        with kept_at_rest(directory):
            opened = _open(directory, commitlog)
            with progress("verify", opened.log_bytes, hidden=as_json) as report_progress:
                report = verify_store(opened, report_progress)
    if as_json:
        print_json(
            {
                "sound": not report.problems,
                "records": report.records,
                "queue_entries": report.queue_entries,
                "index_entries": report.index_entries,
                "log_begin": report.log_begin,
                "log_end": report.log_end,
                "stopped_cleanly": report.stopped_cleanly,
                "problems": report.problems,
                "notes": report.notes,
            }
        )
        return FAILED if report.problems else 0
    for note in report.notes:
        click.echo(f"note: {note}")
    counted = (
        f"{report.records:,} records, {report.queue_entries:,} queue entries, "
        f"{report.index_entries:,} index entries"
    )
    if not report.problems:
        click.echo(f"sound: {counted}")
        return 0
    click.echo(f"NOT SOUND: {counted}; first: {report.problems[0]}")
    for problem in report.problems[1:SHOWN]:
        click.echo(f"  then: {problem}")
    return FAILED


@store.command()
@_directory
@click.argument("destination", metavar="DEST", type=click.Path())
def snapshot(directory: str, commitlog: str | None, as_json: bool, destination: str) -> None:
    """Copy DIR to DEST, a folder that is not there yet, also while a broker runs on DIR.

    The copy holds all that was acknowledged before; a broker that is started on it recovers it as
    after a kill. Full files of the log are hard links where DEST is on the same file system.
    """
    with _failures():
        from aerobee.broker.store.inspect.snapshot import listed
        from aerobee.broker.store.inspect.snapshot import snapshot as copy_store

        total = listed(directory, commitlog or "").log_bytes
        with progress("snapshot", total, hidden=as_json) as report_progress:
            made = copy_store(directory, destination, commitlog or "", report_progress)
    text = (
        f"{made.path} holds the log up to {made.log_end}: {made.linked} files linked, "
        f"{made.cloned} cloned, {made.copied} copied ({made.copied_bytes:,} bytes)"
    )
    print_done(text, asdict(made), as_json=as_json)


@store.command()
@_directory
@click.option("-t", "--topic", help="Messages of this topic.")
@click.option("-q", "--queue", type=int, help="... of this queue.")
@click.option("--offset", type=int, help="From this queue offset on.")
@click.option("--to-offset", type=int, help="Before this queue offset.")
@click.option("--since", type=MOMENT, help="Stored at or after: a time, Unix seconds, 15m, 2h.")
@click.option("--until", type=MOMENT, help="Stored before.")
@click.option("-k", "--key", help="With this key, or unique key.")
@click.option("-n", "--limit", type=click.IntRange(min=1), help="At most this many.")
def dump(
    directory: str,
    commitlog: str | None,
    as_json: bool,
    topic: str | None,
    queue: int | None,
    offset: int | None,
    to_offset: int | None,
    since: datetime | None,
    until: datetime | None,
    key: str | None,
    limit: int | None,
) -> int:
    """Messages of DIR, one a line, as text or (--json) JSON; exit code 1 if damage hid some."""
    damage: list[Any] = []
    with _failures():
        from aerobee.broker.store.inspect.dump import Wanted, select, work_of
        from aerobee.broker.store.inspect.dump import as_json as json_of

        opened = _open(directory, commitlog)
        wanted = Wanted(topic, queue, offset, to_offset, _ms(since), _ms(until), key)
        work = work_of(opened, wanted)
        with progress("dump", work, hidden=not work) as report_progress:
            for message in islice(select(opened, wanted, report_progress, damage.append), limit):
                if as_json:
                    click.echo(json.dumps(json_of(message), ensure_ascii=False))
                else:
                    click.echo(_line(message))
    for problem in damage[:SHOWN]:
        click.echo(f"damaged: {problem}", err=True)
    if len(damage) > SHOWN:
        click.echo(f"damaged: {len(damage) - SHOWN} more places; see verify", err=True)
    return FAILED if damage else 0


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp() * 1000)


def _line(message: Any) -> str:
    pairs = message.property_map()
    words = [
        _moment(message.store_timestamp),
        f"{message.topic}/{message.queue_id}",
        str(message.queue_offset),
        message.message_id,
        f"tag={pairs.get('TAGS', '-')}",
        f"keys={pairs.get('KEYS', '-')}",
        body_text(bytes(message.body)),
    ]
    return "  ".join(words)
