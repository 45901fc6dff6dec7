"""A connection to a name server or another broker: requests with answers, opened when needed."""

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.conversation import Conversation
from aerobee.protocol.wire.signing import Credentials


class LinkError(Exception):
    """The other side cannot be reached, or has refused."""


class RequestLink(asyncio.Protocol):
    """The connection to one server. A name server drops us when it closes, so it is kept open."""

    def __init__(
        self,
        address: str,
        on_lost: Callable[[], None],
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
        kind: str = "name server",
    ) -> None:
        """`kind`: what it is, for the texts of errors."""
        self.address = address
        self._name = f"{kind} {address}"
        self._credentials = credentials
        self._tls = tls
        self.local: tuple[str, int] = ("127.0.0.1", 0)
        self.peer: tuple[str, int] = ("", 0)
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._conversation = Conversation[asyncio.Future[Command]]()
        self._connecting = asyncio.Lock()

    async def connect(self, seconds: float) -> None:
        """Open the connection unless it is open."""
        async with self._connecting:
            if self._transport is not None:
                return
            host, _, port = self.address.rpartition(":")
            loop = asyncio.get_running_loop()
            try:
                async with asyncio.timeout(seconds):
                    await loop.create_connection(
                        lambda: self, host.strip("[]"), int(port), ssl=self._tls
                    )
            except (OSError, ValueError) as error:
                raise LinkError(
                    f"{self._name} cannot be reached: {error or 'no answer in time'}"
                ) from error

    async def request(self, command: Command, seconds: float) -> Command:
        """The answer; LinkError when there is none."""
        if self._transport is None or self._transport.is_closing():
            raise LinkError(f"there is no connection to {self._name}")
        answer: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._transport.writelines(self._conversation.request(command, answer))
        try:
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError:
            if self._transport is not None:  # not closed: that waits until all is sent
                self._transport.abort()
            raise LinkError(f"{self._name} did not answer in {seconds:g} s") from None

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # --- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._conversation = Conversation(self._credentials)
        local, peer = (transport.get_extra_info(name) for name in ("sockname", "peername"))
        self.local = (str(local[0]), int(local[1]))
        self.peer = (str(peer[0]), int(peer[1]))

    def data_received(self, data: bytes) -> None:
        self._conversation.receive(data)
        if self._conversation.error is not None:
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        for pending in self._conversation.end():
            pending.waiter.set_exception(LinkError(f"{self._name} closed the connection"))
        self._on_lost()
