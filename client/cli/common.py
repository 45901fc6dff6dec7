"""What the commands share: the common options, running a coroutine, errors as exit codes."""

from __future__ import annotations

import asyncio
import functools
import os
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from aerobee.client.cli.failures import (
    FAILED,
    NOT_FOUND,
    UNKNOWN,
    UNREACHED,
    WRONG_USAGE,
    Failure,
    drop_output,
    json_option,
)
from aerobee.client.client import Client
from aerobee.client.errors import (
    AerobeeError,
    ConnectFailed,
    ConnectionLost,
    Misuse,
    NoRoute,
    NotFound,
    RequestTimeout,
    SendsFailed,
    Unconfirmed,
)
from aerobee.protocol.names import RETRY_PREFIX

_EXIT_CODES: Final[list[tuple[type[AerobeeError], int]]] = [
    (Misuse, WRONG_USAGE),
    (Unconfirmed, UNKNOWN),
    (NotFound, NOT_FOUND),
    (ConnectFailed, UNREACHED),
    (ConnectionLost, UNREACHED),
    (RequestTimeout, UNREACHED),
]


# The SDK's advice about its arguments, in terms of the command's options.
_OPTIONS: Final = {
    "give several keys as a list": "repeat --key for several",
    "give a delay of 0 or more, or deliver_at, not both": (
        "give a --delay of 0 or more, or --deliver-at, not both"
    ),
    "give tags or sql, not both": "give --tag or --sql, not both",
    "leave tags out to get all messages": "leave --tag out to get all messages",
    "timeout is a positive number": "--timeout is a positive number",
    "a unique id needs the topic too": "a producer's unique id needs --topic",
    "Then name the topic too": "Then name its topic by --topic",
    "name the topic too": "name its topic by --topic, or ask `aerobee why`",
}


def failure_of(error: AerobeeError) -> Failure:
    text = str(error)
    for said, option in _OPTIONS.items():
        text = text.replace(said, option)
    return Failure(text, _exit_code(error))


def _exit_code(error: AerobeeError) -> int:
    if isinstance(error, SendsFailed):  # that of its messages; an unknown outcome is the worst
        codes = {_exit_code(one) for _, one in error.failures}
        return UNKNOWN if UNKNOWN in codes else codes.pop() if len(codes) == 1 else FAILED
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), FAILED)


@dataclass(frozen=True, slots=True)
class CommonOptions:
    """The options that every command has."""

    url: str | None = field(repr=False)  # it may hold a secret
    timeout: float
    json: bool


def connected(command: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """Make a coroutine `(common, mq, ...)` a command body, connected and with errors explained."""

    @click.option("-u", "--url", envvar="AEROBEE_URL", help="Name servers: mq://host:port[,...].")
    @click.option(
        "--timeout", type=float, default=5.0, show_default=True, help="Seconds for a request."
    )
    @json_option
    @functools.wraps(command)
    def run(url: str | None, timeout: float, as_json: bool, **options: Any) -> Any:
        common = CommonOptions(url, timeout, as_json)

        async def live() -> Any:
            client = Client(url, timeout=timeout)
            try:
                return await command(common, await client.open(), **options)
            finally:
                await client.close()

        return run_loop(live())

    return run


def run_loop(work: Any) -> Any:
    """Run a coroutine; Ctrl-C shuts it down cleanly."""
    try:
        return asyncio.run(work)
    except AerobeeError as error:
        raise failure_of(error) from None
    except UnicodeEncodeError as error:
        raise Failure(f"{error.object!a} cannot be written as UTF-8", WRONG_USAGE) from None
    except KeyboardInterrupt:
        raise click.exceptions.Abort from None
    except BrokenPipeError:
        raise
    except OSError as error:  # from writing the output: network errors are AerobeeErrors
        drop_output()
        raise Failure(str(error.strerror or error)) from None


def pair(text: str, option: str) -> tuple[str, str]:
    """The two sides of an option's NAME=VALUE."""
    name, found, value = text.partition("=")
    if not (name and found):
        raise click.UsageError(f"{option} {text!r}: expected NAME=VALUE")
    return name, value


async def require_topic(mq: Client, topic: str) -> None:
    try:
        await mq.queues(topic)
    except NoRoute:
        raise Failure(f"there is no topic {topic}", NOT_FOUND) from None


async def forget_group(mq: Client, group: str) -> None:
    """Delete a temporary group and its retry topic."""
    try:
        await mq.admin.delete_group(group)
        await mq.admin.delete_topic(RETRY_PREFIX + group)
    except AerobeeError as error:
        click.echo(f"aerobee: group {group} stays behind: {error}", err=True)


async def read_input() -> AsyncIterator[bytes]:
    """Standard input piece by piece.

    Each is read in a thread that Ctrl-C does not wait for, and bypassing `sys.stdin`, whose
    lock such a thread would keep.
    """
    if sys.stdin is None:  # closed: its descriptor may be another file's by now
        raise Failure("standard input is closed")
    loop = asyncio.get_running_loop()

    def settle(done: asyncio.Future[bytes], piece: bytes | OSError) -> None:
        if done.done():
            return
        if isinstance(piece, OSError):
            done.set_exception(Failure(f"standard input cannot be read: {piece.strerror}"))
        else:
            done.set_result(piece)

    def read(done: asyncio.Future[bytes]) -> None:
        piece: bytes | OSError
        try:
            piece = os.read(0, 1 << 16)
        except OSError as error:
            piece = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, done, piece)

    while True:
        done: asyncio.Future[bytes] = loop.create_future()
        threading.Thread(target=read, args=(done,), daemon=True).start()
        piece = await done
        if not piece:
            return
        yield piece


if TYPE_CHECKING:
    _TimeParam = click.ParamType[datetime]
else:
    _TimeParam = click.ParamType  # generic only in newer versions of click


class Moment(_TimeParam):
    """A time: ISO 8601 (local without a zone), Unix seconds, or an age such as 15m, 2h, 3d."""

    name = "time"

    def __init__(self, *, ahead: bool = False) -> None:
        self._ahead = ahead  # 2h then means in two hours, not two hours ago

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        if isinstance(value, datetime):
            return value
        text = str(value)
        try:
            moment = _read_moment(text, self._ahead)
            moment.timestamp()  # raises for years out of range
        except (ValueError, OverflowError):
            self.fail(
                f"{text!r} is not a time: give 2026-01-31T12:00, Unix seconds, or 15m, 2h, 3d"
            )
        return moment


def _read_moment(text: str, ahead: bool) -> datetime:
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    if text[-1:] in units:
        age = timedelta(seconds=float(text[:-1]) * units[text[-1]])
        return datetime.now(UTC) + (age if ahead else -age)
    try:
        return datetime.fromtimestamp(float(text), UTC)
    except ValueError:
        return datetime.fromisoformat(text)


MOMENT: Final = Moment()
MOMENT_AHEAD: Final = Moment(ahead=True)
