"""`aerobee broker`, `namesrv`, `config`, `install-service` and `pipeline`.

These live in the broker's and the pipeline's packages and are imported only when they are run.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from aerobee.client.cli.completing import setting_keys, setting_pairs
from aerobee.client.cli.failures import FAILED, Failure, json_option
from aerobee.client.cli.output import print_done, print_rows


def _daemon_options(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option(
        "--set",
        "sets",
        multiple=True,
        shell_complete=setting_pairs,
        metavar="KEY=VALUE",
        help="A setting; may be repeated.",
    )(command)
    return click.option(
        "-c",
        "--config",
        type=click.Path(dir_okay=False, path_type=str),
        help="Settings in RocketMQ's format.",
    )(command)


@click.command()
@_daemon_options
def broker(config: str | None, sets: tuple[str, ...]) -> int:
    """Run a broker with its name service in the foreground until SIGTERM or Ctrl-C.

    Prints one line when it is ready. `aerobee config` lists the settings.
    """
    from aerobee.broker.base.lean_import import lean_import

    with lean_import():
        from aerobee.broker.daemon.main import main_broker

    return main_broker(config, list(sets))


@click.command()
@_daemon_options
def namesrv(config: str | None, sets: tuple[str, ...]) -> int:
    """Run a name server alone in the foreground until SIGTERM or Ctrl-C."""
    from aerobee.broker.base.lean_import import lean_import

    with lean_import():
        from aerobee.broker.daemon.main import main_namesrv

    return main_namesrv(config, list(sets))


@click.command()
@click.argument("text", required=False, shell_complete=setting_keys)
@_daemon_options
@click.option("--all", "everything", is_flag=True, help="Also keys that have no effect here.")
@json_option
def config(
    text: str | None,
    config: str | None,
    sets: tuple[str, ...],
    everything: bool,
    as_json: bool,
) -> None:
    """Every setting (or those with TEXT in key or meaning): value, default, unit, meaning."""
    from aerobee.broker.settings import SettingsError, load_settings, setting_rows

    try:
        rows = setting_rows(load_settings(config, list(sets)))
    except SettingsError as error:
        raise Failure(str(error), FAILED) from None
    wanted = (text or "").lower()
    found = [
        {
            "key": row.key,
            "value": row.value,
            "default": row.default,
            "unit": row.unit,
            "effect": row.effect,
            "live": row.runtime,
            "given_by": row.source or None,
            "meaning": row.meaning,
        }
        for row in rows
        if (everything or row.effect == "yes" or row.source or wanted)
        and wanted in f"{row.key} {row.meaning}".lower()
    ]
    print_rows(found, as_json=as_json, empty=f"no setting has {text!r} in its key or meaning")


@click.command("install-service")
@click.option(
    "--root",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("/"),
    show_default=True,
    help="Write below this folder.",
)
@json_option
def install_service(root: Path, as_json: bool) -> None:
    """Install the broker as a systemd service, with a first settings file."""
    from aerobee.broker.daemon.install_service import InstallError
    from aerobee.broker.daemon.install_service import install_service as install

    try:
        written = [str(path) for path in install(root)]
    except InstallError as error:
        raise Failure(str(error)) from None
    text = "\n".join(
        [
            *(f"wrote {path}" for path in written),
            "now: systemctl daemon-reload && systemctl enable --now aerobee-broker",
        ]
    )
    print_done(text, {"written": written}, as_json=as_json)


class _Elsewhere(click.Group):
    """A group whose commands another package brings."""

    def __init__(self, name: str, *, module: str, what: str, help: str) -> None:
        super().__init__(name, help=help)
        self._module = module
        self._what = what

    def _group(self) -> click.Group:
        if find_spec(self._module) is None:
            raise Failure(f"this installation has no {self._what}")
        try:
            found: click.Group = getattr(import_module(self._module), str(self.name))
        except ImportError as error:
            raise Failure(f"{self._what} cannot be loaded: {error}") from None
        return found

    def list_commands(self, ctx: click.Context) -> list[str]:
        return self._group().list_commands(ctx)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return self._group().get_command(ctx, name)


pipeline = _Elsewhere(
    "pipeline",
    module="aerobee.pipeline.cli",
    what="pipeline commands",
    help="The Spark pipeline's jobs.",
)
