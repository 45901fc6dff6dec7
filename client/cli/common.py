"""What the commands share: the common options, running a coroutine, errors as exit codes."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from aerobee.client.cli.base import NOT_FOUND, UNKNOWN, UNREACHED, Failure, json_option
from aerobee.client.client import Client
from aerobee.client.errors import (
    AerobeeError,
    ConnectFailed,
    ConnectionLost,
    NotFound,
    RequestTimeout,
    Unconfirmed,
)

_EXIT_CODES: Final[list[tuple[type[AerobeeError], int]]] = [
    (Unconfirmed, UNKNOWN),
    (NotFound, NOT_FOUND),
    (ConnectFailed, UNREACHED),
    (ConnectionLost, UNREACHED),
    (RequestTimeout, UNREACHED),
]


def failure_of(error: AerobeeError) -> Failure:
    for kind, code in _EXIT_CODES:
        if isinstance(error, kind):
            return Failure(str(error), code)
    return Failure(str(error))


@dataclass(frozen=True, slots=True)
class Asked:
    """The options that every command has."""

    url: str | None
    timeout: float
    json: bool


def connected(command: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """Make a coroutine `(asked, mq, ...)` a command body, connected and with errors explained."""

    @click.option("-u", "--url", envvar="AEROBEE_URL", help="Name servers: mq://host:port[,...].")
    @click.option(
        "--timeout", type=float, default=5.0, show_default=True, help="Seconds for a request."
    )
    @json_option
    @functools.wraps(command)
    def run(url: str | None, timeout: float, as_json: bool, **options: Any) -> Any:
        asked = Asked(url, timeout, as_json)

        async def live() -> Any:
            client = Client(url, timeout=timeout)
            try:
                return await command(asked, await client.open(), **options)
            finally:
                await client.close()

        return run_loop(live())

    return run


def run_loop(work: Any) -> Any:
    """Run a coroutine; Ctrl-C ends it in order."""
    try:
        return asyncio.run(work)
    except AerobeeError as error:
        raise failure_of(error) from None
    except KeyboardInterrupt:
        raise click.exceptions.Abort from None


if TYPE_CHECKING:
    _TimeParam = click.ParamType[datetime]
else:
    _TimeParam = click.ParamType  # generic only in newer versions of click


class Moment(_TimeParam):
    """A time: ISO 8601 (local without a zone), Unix seconds, or an age such as 15m, 2h, 3d."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        if isinstance(value, datetime):
            return value
        text = str(value)
        units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
        try:
            if text[-1:] in units:
                age = timedelta(seconds=float(text[:-1]) * units[text[-1]])
                return datetime.now(UTC) - age
            try:
                return datetime.fromtimestamp(float(text), UTC)
            except ValueError:
                return datetime.fromisoformat(text)
        except (ValueError, OverflowError):
            self.fail(f"{text!r} is no time: give 2026-01-31T12:00, Unix seconds, or 15m, 2h, 3d")


MOMENT: Final = Moment()
