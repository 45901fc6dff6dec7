"""Logs by structlog on stderr: readable on a terminal, JSON otherwise, the level changeable.

One line per event that an operator would want, none per message. Every part of the broker has
`log = structlog.get_logger("aerobee.store")` or similar; where its lines go is decided here.
"""

import contextlib
import logging
import sys
from typing import TextIO, cast

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def _console(*, colors: bool) -> Processor:
    return structlog.dev.ConsoleRenderer(
        colors=colors, sort_keys=False, exception_formatter=structlog.dev.plain_traceback
    )


class _Output:
    """Where lines go, from which level on and in which form: one per process, as stderr is."""

    level = logging.WARNING
    stream: TextIO | None = None  # None: whatever sys.stderr is at the time
    render: Processor = _console(colors=False)


class _Logger:
    """What structlog calls at the end of its chain; it knows the name of the logger."""

    def __init__(self, name: str = "aerobee") -> None:
        self.name = name

    def write(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the reader of our log may be gone
            print(line, file=_Output.stream or sys.stderr, flush=True)

    debug = info = warning = error = critical = write


def configure_logs(level: str = "info", style: str = "auto", stream: TextIO | None = None) -> None:
    """For the daemon: set level and style of every logger, those made before included."""
    terminal = (stream or sys.stderr).isatty()
    _Output.level = LEVELS[level]
    _Output.stream = stream
    if style == "console" or (style == "auto" and terminal):
        _Output.render = _console(colors=terminal)
    else:
        _Output.render = structlog.processors.JSONRenderer(default=str, ensure_ascii=False)
    _install()


def configure_logs_of_guest() -> None:
    """For a broker embedded in another process: warnings on stderr, unless that process has
    configured structlog already."""
    if not structlog.is_configured():
        _install()


def set_level(level: str) -> None:
    _Output.level = LEVELS[level]


def _install() -> None:
    structlog.configure(
        processors=_PROCESSORS,
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=_Logger,
        cache_logger_on_first_use=False,
    )


def _drop_below_level(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    if LEVELS.get(method, logging.ERROR) < _Output.level:
        raise structlog.DropEvent
    return event


def _add_name(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    event["logger"] = logger.name
    return event


def _exception_as_text(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """JSON needs the traceback as a text; the console renderer lays it out itself."""
    if isinstance(_Output.render, structlog.processors.JSONRenderer):
        return structlog.processors.format_exc_info(logger, method, event)
    return event


def _render(logger: WrappedLogger, method: str, event: EventDict) -> str:
    return cast(str, _Output.render(logger, method, event))


_PROCESSORS: list[Processor] = [
    _drop_below_level,
    _add_name,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    _exception_as_text,
    _render,
]
