"""`aerobee completion`: the script that teaches a shell to complete our commands."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of SHELL.

    For bash: `aerobee completion bash > ~/.local/share/bash-completion/completions/aerobee`.
    """
    from aerobee.client.cli import cli

    kind = get_completion_class(shell)
    assert kind is not None, "click knows bash, zsh and fish"
    click.echo(kind(cli, {}, "aerobee", "_AEROBEE_COMPLETE").source())
