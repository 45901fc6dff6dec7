"""A connected client as services see it: requests to it, and a callback when it disconnects."""

import asyncio
from collections.abc import Callable
from typing import Protocol, Self

from aerobee.protocol.wire.command import Command


class Peer(Protocol):
    """What a service may use of a connection."""

    name: str  # the client's ip:port
    peer: tuple[str, int]
    local: tuple[str, int]
    is_closed: bool
    on_close: list[Callable[[Self], None]]

    def send_oneway(self, command: Command) -> None: ...

    def request(self, command: Command, timeout: float) -> asyncio.Future[Command]: ...

    def close(self, reason: str = "") -> None: ...
