"""The console's process: started at the first request, and handed the connections of viewers.

Pages are made there, so that they cost the broker's loop no time; a broker without
viewers neither starts nor imports anything of it. It ends when idle, or when the channel closes.
"""

import contextlib
import ipaddress
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Final

import structlog

from aerobee.broker.settings import Settings

log = structlog.get_logger("aerobee.console")

MODULE: Final = "aerobee.client.cli.console"
VARIABLE: Final = "AEROBEE_CONSOLE_CHILD"
_OURS: Final = "AEROBEE_CREDENTIALS_FILE"
PATH: Final = "/console"
_LOOPBACK: Final = ("", "127.0.0.1", "localhost", "::1")
_END_S: Final = 5.0


class ConsoleChild:
    """Called by threads of the HTTP server, one connection each."""

    def __init__(self, settings: Settings, url: Callable[[], str]) -> None:
        self._settings = settings
        self._url = url  # our own name service, once it listens
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None

    @property
    def refusal(self) -> str:
        """Why there is no console here, "" when there is."""
        settings = self._settings
        if not settings.console_enable:
            return "the console is off: consoleEnable=true switches it on"
        if bool(settings.console_auth_header) != bool(settings.console_proxies):
            return "consoleAuthHeader and consoleProxies need each other"
        for name in filter(None, settings.console_proxies.split(",")):
            try:
                ipaddress.ip_network(name.strip(), strict=False)
            except ValueError as error:
                return f"consoleProxies has addresses and networks: {error}"
        is_open = not settings.console_token and not settings.console_auth_header
        if settings.metrics_prom_exporter_host not in _LOOPBACK and is_open:
            return (
                "beyond loopback the console needs consoleToken or consoleAuthHeader, or whoever "
                "reaches this port could read messages"
            )
        return ""

    def hand_over(self, connection: socket.socket) -> None:
        """Pass a connection to the child, starting it again if it has ended; closes our copy."""
        with self._lock:
            if not self._send(connection):
                self._end()
                self._start()
                if not self._send(connection):
                    log.warning("the console cannot be started; its error is above")
        connection.close()

    def _send(self, connection: socket.socket) -> bool:
        if self._channel is None:
            return False
        try:
            socket.send_fds(self._channel, [b"c"], [connection.fileno()])
        except OSError:
            return False
        return True

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        settings = self._settings
        options = {
            "url": self._url(),
            "write": settings.console_write,
            "token": settings.console_token,
            "hosts": [name for name in settings.console_hosts.split(",") if name],
            "auth_header": settings.console_auth_header,
            "proxies": [name for name in settings.console_proxies.split(",") if name],
            "hide_bodies": not settings.console_bodies,
            "channel": theirs.fileno(),
            "idle": settings.console_idle_seconds,
        }
        # A viewer is anonymous until logged in, also where the SDK here would sign its requests.
        env = {name: value for name, value in os.environ.items() if name != _OURS}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", MODULE],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=env | {VARIABLE: json.dumps(options)},
                pass_fds=[theirs.fileno()],
                # Ctrl-C is for the broker, which then closes the channel. No session of its own:
                # Linux divides the CPU between sessions first, so it would get as much as we.
                process_group=0,
            )
        self._channel = ours
        log.info("console started", pid=self._process.pid)

    def _end(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
        process, self._process = self._process, None
        if process is not None:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def stop(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            self._end()


def own_url(settings: Settings, namesrv_port: int) -> str:
    """How a process on this machine reaches our name service, or the ones we register with."""
    if namesrv_port < 0:
        return "mq://" + ",".join(filter(None, settings.namesrv_addr.split(";")))
    host = settings.bind_address
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    host = f"[{host}]" if ":" in host else host
    if settings.tls_server_mode == "enforcing":  # our own process at our own port
        return f"mqs://{host}:{namesrv_port}?verify=none"
    return f"mq://{host}:{namesrv_port}"
