"""Logs by structlog on stderr: readable on a terminal, JSON otherwise, the level changeable.

One line per event that an operator would want, none per message. Use:

    from aerobee.broker.logs import get_logger
    log = get_logger("store")
    log.info("store opened", path=..., messages=...)

A broker inside somebody's test never calls configure_logs: it shows warnings only, and leaves the
structlog configuration of that process alone.
"""

import logging
import sys
from typing import TextIO, cast

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

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

    def write(self, line: str) -> None:
        print(line, file=self.stream or sys.stderr, flush=True)

    debug = info = warning = error = critical = write


_output = _Output()


def get_logger(part: str) -> FilteringBoundLogger:
    """A logger whose lines carry the part of the broker that speaks."""
    logger = structlog.wrap_logger(
        _output,
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        processors=_PROCESSORS,
        part=part,
    )
    return cast(FilteringBoundLogger, logger)


def configure_logs(level: str = "info", style: str = "auto", stream: TextIO | None = None) -> None:
    """Set level and style of every logger, those made before included."""
    terminal = (stream or sys.stderr).isatty()
    _output.level = LEVELS[level]
    _output.stream = stream
    if style == "console" or (style == "auto" and terminal):
        _output.render = _console(colors=terminal)
    else:
        _output.render = structlog.processors.JSONRenderer(default=str, ensure_ascii=False)


def set_level(level: str) -> None:
    _output.level = LEVELS[level]


def _drop_below_level(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    if LEVELS.get(method, logging.ERROR) < _output.level:
        raise structlog.DropEvent
    return event


def _exception_as_text(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """JSON needs the traceback as a text; the console renderer lays it out itself."""
    if isinstance(_output.render, structlog.processors.JSONRenderer):
        return structlog.processors.format_exc_info(logger, method, event)
    return event


def _render(logger: WrappedLogger, method: str, event: EventDict) -> str:
    return cast(str, _output.render(logger, method, event))


_PROCESSORS: list[Processor] = [
    _drop_below_level,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    _exception_as_text,
    _render,
]
