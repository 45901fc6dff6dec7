"""The `aerobee` command. Each subcommand is imported only when it is used.

Exit codes: 0 done; 1 refused or failed; 2 wrong usage; 3 not found; 4 no server could be reached;
5 it is unknown whether the message was stored; 130 interrupted.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, Final

import click

from aerobee.client.cli.commands import COMMANDS
from aerobee.client.cli.failures import INTERRUPTED, Failure, drop_output, show_as_json

_NOT_IN_SDK: Final = ("aerobee.broker", "aerobee.pipeline")  # sdk/pyproject.toml leaves them out


class _Lazy(click.Group):
    """A group whose commands are imported when they are run or their help is shown."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[name]
        found: click.Command = getattr(import_module(f"aerobee.client.cli.{module}"), attribute)
        return found

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # the reader of our output has exited: not an error
            drop_output()
            raise click.exceptions.Exit(0) from None
        except ModuleNotFoundError as error:
            if error.name not in _NOT_IN_SDK:
                raise
            raise Failure(
                "this command is not in aerobee-sdk: it comes with the whole installation, aerobee"
            ) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])


def _show_version(context: click.Context, _option: click.Parameter, common: bool) -> None:
    if common and not context.resilient_parsing:
        from importlib.metadata import version

        try:
            path = import_module("aerobee.broker.compiled").PATH
        except ModuleNotFoundError:
            click.echo(f"aerobee-sdk, version {version('aerobee-sdk')} (no broker)")
        else:
            click.echo(f"aerobee, version {version('aerobee')} (broker: {path})")
        context.exit()


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version, and whether the broker's compiled part is used.",
)
def cli() -> None:
    """Aerobee: a message broker that speaks Apache RocketMQ's protocol, and its tools.

    Clients connect to mq://127.0.0.1:9876 unless --url or AEROBEE_URL say otherwise.
    Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 not found, 4 unreachable,
    5 unknown outcome, 130 interrupted.
    """


def main(arguments: list[str] | None = None) -> Any:
    """The entry point of the `aerobee` script."""
    as_json = "--json" in (sys.argv[1:] if arguments is None else arguments)
    try:
        result = cli.main(args=arguments, prog_name="aerobee", standalone_mode=False)
    except click.exceptions.Abort:
        if as_json:
            show_as_json("interrupted", INTERRUPTED)
        else:
            click.echo("aerobee: interrupted", err=True)
        sys.exit(INTERRUPTED)
    except click.ClickException as error:
        exit_code = error.status if isinstance(error, Failure) else error.exit_code
        if as_json:
            show_as_json(error.format_message(), exit_code)
        else:
            error.show()
        sys.exit(exit_code)
    sys.exit(result if isinstance(result, int) else 0)
