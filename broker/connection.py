"""One client's connection: bytes in, answers out, and our own requests to the client.

It knows nothing of what the frames mean. `feed` (see `hot_path`) is given every read and returns
the answers, which leave in one write. Reading stops while the client does not take what it asked
for, or while too many of its requests wait for the disk.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from aerobee.protocol.command import ONEWAY_FLAG, Command

if TYPE_CHECKING:
    from aerobee.broker.broker import Address

log = structlog.get_logger("aerobee.connection")


class ConnectionClosed(ConnectionError):
    """The client went before it answered."""


class Connection(asyncio.Protocol):
    """A client that is connected."""

    peer: "Address" = ("0.0.0.0", 0)
    local: "Address" = ("0.0.0.0", 0)
    name: str = "?"  # the peer as ip:port

    def __init__(self) -> None:
        self.client_id: str | None = None  # by its heartbeat
        self.language = "OTHER"  # of its last request that was not a plain send or pull
        self.version = 0
        self.on_close: list[Callable[[Connection], None]] = []
        self.is_closed = False

    def send(self, command: Command) -> None:
        """Write one frame; nothing happens when the connection is closed."""

    def send_oneway(self, command: Command) -> None:
        """Send a request of ours that wants no answer."""
        command.flag |= ONEWAY_FLAG
        self.send(command)

    async def request(self, command: Command, timeout: float) -> Command:
        """Ask the client; TimeoutError or ConnectionClosed when no answer comes."""
        raise ConnectionClosed(self.name)

    def close(self, reason: str = "") -> None:
        """Send what is written, then close."""
