"""`aerobee console`: a cluster in the browser; and the child that a broker starts for its own."""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import webbrowser
from typing import Any, Final

import click

from aerobee.client.cli.common import failure_of
from aerobee.client.cli.failures import WRONG_USAGE, Failure
from aerobee.client.console.options import ConsoleOptions
from aerobee.client.console.serve import serve, serve_handed
from aerobee.client.errors import AerobeeError
from aerobee.client.transport.url import parse_tls, parse_url

CHILD_VARIABLE: Final = "AEROBEE_CONSOLE_CHILD"
CHILD_NICENESS: Final = 10  # while it starts; then it gives way


@click.command()
@click.option("-u", "--url", envvar="AEROBEE_URL", help="Name servers: mq://host:port[,...].")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8085, show_default=True)
@click.option("--allow-changes", is_flag=True, help="Allow sends, resets and replays.")
@click.option(
    "--token", envvar="AEROBEE_CONSOLE_TOKEN", default="", help="Required of every browser."
)
@click.option("--allow-host", "hosts", multiple=True, help="A further name of this machine.")
@click.option("--auth-header", default="", help="The header in which a proxy names the viewer.")
@click.option("--proxy", "proxies", multiple=True, help="A proxy's address; needs --auth-header.")
@click.option("--hide-bodies", is_flag=True, help="Show no bodies of messages.")
@click.option("--open", "open_browser", is_flag=True, help="Open the browser.")
def console(
    url: str | None,
    host: str,
    port: int,
    allow_changes: bool,
    token: str,
    hosts: tuple[str, ...],
    auth_header: str,
    proxies: tuple[str, ...],
    hide_bodies: bool,
    open_browser: bool,
) -> None:
    """Show a cluster, Aerobee's or Apache's, in the browser until Ctrl-C.

    It changes nothing unless --allow-changes is given. On other addresses than loopback it needs a
    --token, or a --proxy that names the user in --auth-header. Credentials for the cluster can be
    given in the URL, or entered on the page.
    """
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    options = ConsoleOptions(
        url=url,
        write=allow_changes,
        token=token,
        hosts=(*hosts, host),
        auth_header=auth_header,
        proxies=proxies,
        hide_bodies=hide_bodies,
        known_settings=known_settings(),
    )

    def ready(address: str) -> None:
        state = "changes are allowed" if allow_changes else "read-only"
        click.echo(f"console at {address} ({state}); Ctrl-C ends it")
        if open_browser:
            webbrowser.open(address)

    try:
        parse_url(url)
        parse_tls(url)
        serve(options, host, port, ready)
    except AerobeeError as error:
        raise Failure(str(error), failure_of(error).status or WRONG_USAGE) from None
    except KeyboardInterrupt:
        return


def known_settings() -> dict[str, dict[str, Any]]:
    """The settings of a broker, with the defaults of Aerobee and of RocketMQ."""
    try:
        from aerobee.broker.settings import setting_rows
    except ModuleNotFoundError:  # the SDK alone: the page shows names and values
        return {}
    return {
        row.key: {
            "default": row.default,
            "upstream_default": row.upstream_default or row.default,
            "unit": row.unit,
            "meaning": row.meaning,
            "live": row.runtime,
        }
        for row in setting_rows()
    }


def main_child() -> None:
    """Run by `python -m aerobee.client.cli.console`: the console of the broker that started it."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s console: %(message)s")
    os.nice(CHILD_NICENESS)
    given = json.loads(os.environ.pop(CHILD_VARIABLE))
    options = ConsoleOptions(
        url=given["url"],
        write=given["write"],
        token=given["token"],
        hosts=tuple(given["hosts"]),
        auth_header=given["auth_header"],
        proxies=tuple(given["proxies"]),
        hide_bodies=given["hide_bodies"],
        known_settings=known_settings(),
    )
    give_way()
    serve_handed(options, socket.socket(fileno=given["channel"]), given["idle"])


def give_way() -> None:
    """Lower our scheduling priority: other processes on this core, above all the broker, run first;
    on a busy machine the console still gets a share. Later threads inherit it."""
    if sys.platform == "linux":
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


if __name__ == "__main__":
    try:
        main_child()
    except KeyboardInterrupt:
        sys.exit(130)
