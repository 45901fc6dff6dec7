"""Notices to systemd: READY, STATUS, WATCHDOG, and more time for a long start or stop."""

import contextlib
import os
import socket
from typing import Final

_PATIENCE_S: Final = 1.0  # for notices that systemd must receive


class Notifier:
    """Sends to $NOTIFY_SOCKET; does nothing where there is none."""

    def __init__(self, environment: dict[str, str] | None = None) -> None:
        env = os.environ if environment is None else environment
        address = env.get("NOTIFY_SOCKET", "")
        # A name in the abstract namespace is written with @, and sent with a zero byte.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        pid = env.get("WATCHDOG_PID", "")
        ours = not pid or pid == str(os.getpid())
        microseconds = env.get("WATCHDOG_USEC", "") if ours else ""
        self._is_ready = False  # a reload is reported between READY and STOPPING only
        self.watchdog_seconds = int(microseconds) / 1e6 if microseconds.isdigit() else 0.0

    def ready(self, status: str) -> None:
        self._is_ready = True
        self._send(f"READY=1\nSTATUS={status}", _PATIENCE_S)

    def status(self, text: str) -> None:
        self._send(f"STATUS={text}")

    def reloading(self, monotonic_ns: int) -> None:
        if self._is_ready:
            self._send(f"RELOADING=1\nMONOTONIC_USEC={monotonic_ns // 1000}", _PATIENCE_S)

    def reloaded(self, status: str) -> None:
        """READY ends a reload. Not sent during the start, because it would end that as well."""
        if self._is_ready:
            self.ready(status)

    def stopping(self) -> None:
        self._is_ready = False
        self._send("STOPPING=1\nSTATUS=stopping", _PATIENCE_S)

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def extend(self, seconds: float) -> None:
        """Extend the timeout of the start or the stop to this long from now."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def _send(self, text: str, patience_s: float = 0.0) -> None:
        """`patience_s`: how long to wait for a busy receiver; 0 for notices that are repeated."""
        if not self._address:
            return
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock,
        ):
            sock.settimeout(patience_s)
            sock.sendto(text.encode(), self._address)
