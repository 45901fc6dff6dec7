"""Runs the console: standalone, or with connections that a broker hands over."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

from aerobee.client.console.app import Console
from aerobee.client.console.http import BASE, ConsoleServer
from aerobee.client.console.options import LOOPBACK, ConsoleOptions
from aerobee.client.errors import Misuse

log = logging.getLogger("aerobee.console")

IDLE_SECONDS: Final = 15 * 60.0
CHECK_SECONDS: Final = 5.0


def serve(options: ConsoleOptions, host: str, port: int, ready: Callable[[str], object]) -> None:
    """Serve until Ctrl-C. Beyond loopback only with a token, or behind a proxy."""
    options.check()
    if host not in LOOPBACK and not options.may_be_public:
        raise Misuse(
            f"on {host} anyone who reaches this machine could read messages: give a --token, "
            "or an --auth-header with its --proxy, or stay on 127.0.0.1"
        )
    console = Console(options)
    try:
        server = ConsoleServer(console, (host, port))
    except OSError as error:
        console.close()
        raise Misuse(f"cannot listen on {host}:{port}: {error.strerror}") from None
    try:
        shown = f"[{host}]" if ":" in host else host
        ready(f"http://{shown}:{server.server_address[1]}{BASE}")
        server.serve_forever(0.2)
    finally:
        server.server_close()
        console.close()


def serve_handed(
    options: ConsoleOptions, channel: socket.socket, idle: float = IDLE_SECONDS
) -> None:
    """Serve connections from `channel` until it is closed, or the console is idle for long."""
    console = Console(options)
    server = ConsoleServer(console, None)
    watch = threading.Thread(target=_watch, args=(console, channel, idle), daemon=True)
    watch.start()
    try:
        while connection := _receive(channel):
            console.asked_at = time.monotonic()
            server.process_request(connection, _peer(connection))
    finally:
        server.server_close()
        console.close()


def _receive(channel: socket.socket) -> socket.socket | None:
    try:
        data, descriptors, _flags, _address = socket.recv_fds(channel, 1, 1)
    except OSError:
        return None
    if not data or not descriptors:
        return None
    return socket.socket(fileno=descriptors[0])


def _watch(console: Console, channel: socket.socket, idle: float) -> None:
    """End when idle."""
    while not console.is_idle(idle):
        time.sleep(min(CHECK_SECONDS, idle))
    log.info("idle for %g s", idle)
    with contextlib.suppress(OSError):
        channel.shutdown(socket.SHUT_RD)


def _peer(connection: socket.socket) -> tuple[str, int]:
    try:
        host, port = connection.getpeername()[:2]
    except OSError:
        return "", 0
    return str(host), int(port)
