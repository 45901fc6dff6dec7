"""What every command needs and what imports nothing: exit codes, failures, --json."""

from __future__ import annotations

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


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)
