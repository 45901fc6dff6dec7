"""What every command needs and what imports nothing: exit codes, failures, --json."""

from __future__ import annotations

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


class Failure(click.ClickException):
    """An error as scripts see it: one line on stderr and an exit code."""

    def __init__(self, text: str, status: int = FAILED) -> None:
        super().__init__(text)
        self.status = status

    def show(self, file: Any = None) -> None:
        click.echo(f"aerobee: {self.message}", err=True)


def drop_output() -> None:
    """Nobody takes what is still in the buffer of stdout: else the interpreter's end complains."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)
