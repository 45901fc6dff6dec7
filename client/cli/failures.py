"""What every command needs, without heavy imports: exit codes, failures, --json."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable
from typing import Any, Final

import click

FAILED: Final = 1
WRONG_USAGE: Final = 2
NOT_FOUND: Final = 3
UNREACHED: Final = 4
UNKNOWN: Final = 5
INTERRUPTED: Final = 130
_KINDS: Final = {
    FAILED: "failed",
    WRONG_USAGE: "wrong_usage",
    NOT_FOUND: "not_found",
    UNREACHED: "unreached",
    UNKNOWN: "unknown_outcome",
    INTERRUPTED: "interrupted",
}


class Failure(click.ClickException):
    """An error as scripts see it: one line on stderr and an exit code."""

    def __init__(self, text: str, status: int = FAILED) -> None:
        super().__init__(text)
        self.status = status

    def show(self, file: Any = None) -> None:
        click.echo(f"aerobee: {self.message}", err=True)


def show_as_json(text: str, exit_code: int) -> None:
    """A failure for programs: one object on stderr."""
    failure = {"error": text, "kind": _KINDS.get(exit_code, "failed"), "exit_code": exit_code}
    click.echo(json.dumps(failure, ensure_ascii=False), err=True)


def drop_output() -> None:
    """Drop what is still buffered for stdout: else the interpreter reports an error at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def confirmed(question: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Ask for confirmation before the command runs, naming its arguments; --yes skips that."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @click.option("--yes", is_flag=True, help="Do it without asking.")
        @functools.wraps(command)
        def run(yes: bool, **options: Any) -> Any:
            text = question.format(**options)
            if not yes:
                if sys.stdin is None or not sys.stdin.isatty():
                    raise click.UsageError(f"{text} Without a terminal --yes says so")
                click.confirm(text, abort=True, err=True)  # stdout may be a file or a pipe
            return command(**options)

        return run

    return decorate


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)
