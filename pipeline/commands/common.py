"""What the commands of `aerobee pipeline` share: Spark's options, and errors as one sentence."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from aerobee.pipeline.driver import own_sentence


def spark_options(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option(
        "--conf", multiple=True, metavar="KEY=VALUE", help="A Spark setting; may be repeated."
    )(command)
    return click.option(
        "--master", default="local[*]", show_default=True, help="Where Spark runs."
    )(command)


def session(name: str, master: str, conf: tuple[str, ...], **more: Any) -> Any:
    from aerobee.pipeline.jobs.session import open_session

    return open_session(name, master, config=parse_pairs(None, None, conf), **more)


def parse_pairs(_ctx: Any, _parameter: Any, pairs: tuple[str, ...]) -> dict[str, str]:
    """KEY=VALUE of an option that may be repeated."""
    table = {}
    for pair in pairs:
        key, found, value = pair.partition("=")
        if not found:
            raise click.BadParameter(f"{pair!r} is not KEY=VALUE")
        table[key] = value
    return table


def connection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What a cluster with access control or TLS needs, as in a query."""
    return click.option(
        "--option",
        "options",
        multiple=True,
        callback=parse_pairs,
        metavar="NAME=VALUE",
        help="An option of the Spark source or sink: accessKey, secretKey, useTLS, tlsCaFile, "
        "timeout.broker; may be repeated.",
    )(command)


class Job(click.Command):
    """Turns the pipeline's own errors into a sentence and exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ImportError as error:
            raise click.ClickException(f"{error}; pip install 'aerobee[spark]'") from None
        except OSError as error:
            raise click.ClickException(str(error)) from None
        except Exception as error:
            text = _sentence(error)
            if text is None:
                raise
            raise click.ClickException(text) from None


def _sentence(error: Exception) -> str | None:
    """What our own code says is wrong; else what Spark says of an argument (a path that is not
    there, a time that is none)."""
    if text := own_sentence(error):
        return text
    lines = str(error).splitlines()
    of_arguments = type(error).__name__ in ("AnalysisException", "IllegalArgumentException")
    return lines[0] if of_arguments and lines else None


def parse_time(_ctx: Any, _parameter: Any, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a time like 2026-01-31T08:00:00Z") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}  # by the first letter of the unit


def parse_duration(_ctx: Any, _parameter: Any, text: str | None) -> timedelta | None:
    """A time like 30s, or as Spark writes it, '30 seconds'."""
    if text is None:
        return None
    units = "s|m|h|d|seconds?|minutes?|hours?|days?"
    match = re.fullmatch(rf"(\d+)\s*({units})", text.strip().lower())
    if match is None:
        raise click.BadParameter(f"{text!r} is not a time like 30s, 15m, 1h, 7d or '1 minute'")
    return timedelta(seconds=int(match[1]) * _SECONDS[match[2][0]])


FORMATS = click.Choice(["parquet", "delta", "iceberg"])
