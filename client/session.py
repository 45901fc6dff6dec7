"""The open connection of a client: name servers, heartbeats, routes; and closing all of it."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from aerobee.client.background import every
from aerobee.client.core import Core
from aerobee.client.errors import Closed, ConnectFailed, Misuse
from aerobee.client.from_broker import Members, answer_broker
from aerobee.client.producing.requests import Requests
from aerobee.client.producing.sender import Sender
from aerobee.client.serializers import Serializer
from aerobee.client.transport.presence import HEARTBEAT_SECONDS, Presence
from aerobee.client.transport.remoting import ConnectionEvent, Remoting
from aerobee.client.transport.routes import Routes
from aerobee.client.transport.url import parse_tls, parse_url

if TYPE_CHECKING:  # imported when first used
    from aerobee.client.telemetry import Telemetry

ROUTE_SECONDS: Final = 30.0
PRODUCER_GROUP: Final = "aerobee-sdk"


class ClientSession:
    """Opened by `open`; what it holds then is in `core`."""

    def __init__(
        self,
        url: str | None,
        *,
        timeout: float,
        wait: float,
        on_connection: Callable[[ConnectionEvent], object] | None,
        serializer: Serializer | None,
        telemetry: bool,
    ) -> None:
        if not timeout > 0:
            raise Misuse("timeout is a positive number of seconds")
        if not wait >= 0:
            raise Misuse("wait is a number of seconds, 0 or more")
        self._wait = wait
        self._on_connection = on_connection
        self._serializer = serializer
        self._telemetry = _telemetry() if telemetry else None
        self.name_servers, self._credentials = parse_url(url)
        self._tls = parse_tls(url)
        self._timeout = timeout
        self._core: Core | None = None
        self.members = Members()
        self._tasks: list[asyncio.Task[None]] = []

    def __del__(self) -> None:
        if getattr(self, "_core", None) is not None:
            warnings.warn(f"unclosed client {self!r}", ResourceWarning, source=self, stacklevel=2)

    @property
    def is_open(self) -> bool:
        return self._core is not None

    @property
    def core(self) -> Core:
        if self._core is None:
            raise Closed("this client is not connected", hint="use `async with connect(...)`")
        return self._core

    async def open(self) -> None:
        """Connect to the first name server that answers; the error says why none did."""
        if self._core is not None:
            return  # as `async with` does with what was awaited before
        remoting = Remoting(
            lambda connection, command: answer_broker(self.members, connection, command),
            credentials=self._credentials,
            timeout=self._timeout,
            on_event=self._on_connection,
            tls=self._tls.context() if self._tls is not None else None,
        )
        routes = Routes(remoting, self.name_servers)
        client_id = f"{_own_ip()}@{os.getpid()}#{secrets.token_hex(4)}"
        presence = Presence(client_id, remoting, routes)
        sender = self._make_sender(remoting, routes, client_id)
        self._core = Core(
            client_id, self._timeout, remoting, routes, presence, sender, self._telemetry
        )
        self.requests = self.members.requests = Requests(sender, routes, presence)
        try:
            await self._wait_for_a_name_server(routes)
        except BaseException:
            await self.close()
            raise
        remoting.reports = True
        self._tasks = [
            asyncio.create_task(every(HEARTBEAT_SECONDS, presence.beat), name="heartbeats"),
            asyncio.create_task(every(ROUTE_SECONDS, self._renew_routes), name="routes"),
        ]

    def _make_sender(self, remoting: Remoting, routes: Routes, client_id: str) -> Sender:
        if self._telemetry is None:
            return Sender(remoting, routes, group=PRODUCER_GROUP, serializer=self._serializer)
        from aerobee.client.producing.traced import TracedSender

        self._telemetry.client_id = client_id
        return TracedSender(
            remoting,
            routes,
            group=PRODUCER_GROUP,
            serializer=self._serializer,
            telemetry=self._telemetry,
        )

    async def _wait_for_a_name_server(self, routes: Routes) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._wait
        while True:
            try:
                return await routes.reach_a_name_server()
            except ConnectFailed:
                if loop.time() >= deadline:
                    raise
                await asyncio.sleep(0.1)

    async def _renew_routes(self) -> None:
        core = self.core
        routes = core.routes
        before = {topic: routes.cached(topic) for topic in routes.topics}
        await routes.refresh_all()
        if any(routes.cached(topic) != route for topic, route in before.items()):
            await core.presence.beat()
            for consumer in self.members.consumers.values():
                consumer._member.request_rebalance()

    async def close(self) -> None:
        """Close it and all that it opened: consumers drain and leave their groups."""
        core = self._core
        if core is None:
            return
        errors: list[Exception] = []
        try:
            for consumer in list(self.members.consumers.values()):
                try:
                    await consumer.close()
                except Exception as error:  # the others still have to commit and leave
                    errors.append(error)
        finally:
            for consumer in list(self.members.consumers.values()):  # the caller was cancelled
                consumer._close_later()
            tasks = [*self._tasks, *self.members.tasks]
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            await core.remoting.close()
            self._core = None
            self.members = Members()
        if errors:
            raise errors[0]


def _telemetry() -> Telemetry:
    from aerobee.client.telemetry import Telemetry

    return Telemetry()


def _own_ip() -> str:
    """An address of this machine as others see it; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
