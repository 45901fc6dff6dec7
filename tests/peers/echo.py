"""An echo server on the broker's own connection class."""

import asyncio

from aerobee.broker.net.connection import Connection
from aerobee.broker.net.feed import Limits
from aerobee.broker.net.general_feed import GeneralFeed
from aerobee.broker.net.requests import Dispatcher, Request
from aerobee.broker.net.server import Server, bind
from aerobee.protocol.wire.command import JSON, Command
from peers.in_process import Client


def echo(request: Request) -> Command:
    return request.command.answer(0, {"echo": request.command.ext.get("say", "")})


class Echo:
    """A server that echoes request 1; 2 raises."""

    def __init__(self, limits: Limits | None = None, connections_max: int = 0) -> None:
        self.seen: list[Connection] = []

        def broken(_request: Request) -> Command:
            raise RuntimeError("planted")

        dispatcher = Dispatcher({1: echo, 2: broken})
        self.server = Server(
            lambda connection: GeneralFeed(connection, dispatcher, 16 << 20),
            limits,
            connections_max=connections_max,
        )
        self.server.on_open.append(self.seen.append)
        self.port = 0

    async def __aenter__(self) -> "Echo":
        sock = bind("127.0.0.1", 0)
        self.port = sock.getsockname()[1]
        await self.server.listen(sock)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop(1.0)

    async def connect(self) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        return Client(reader, writer, JSON)


async def ended(client: Client, seconds: float = 10.0) -> None:
    """Wait until the broker has closed the connection."""
    await asyncio.wait_for(asyncio.shield(client.ended), seconds)
