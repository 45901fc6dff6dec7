"""Our end of a connection to a name server: asked like a function, opened when it is needed."""

import asyncio
import itertools
from collections.abc import Callable
from typing import cast

from aerobee.protocol.codecs import decode_command
from aerobee.protocol.command import Command
from aerobee.protocol.frame import FrameDecoder, encode_frame


class NameServerError(Exception):
    """A name server cannot be reached, or said no."""


class NameServerLink(asyncio.Protocol):
    """One name server. It forgets us when the connection closes, so it is kept open."""

    def __init__(self, address: str, on_lost: Callable[[], None]) -> None:
        self.address = address
        self.local: tuple[str, int] = ("127.0.0.1", 0)
        self.peer: tuple[str, int] = ("", 0)
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._decoder = FrameDecoder()
        self._asked: dict[int, asyncio.Future[Command]] = {}
        self._opaque = itertools.count(1)
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
                    await loop.create_connection(lambda: self, host.strip("[]"), int(port))
            except (OSError, ValueError) as error:
                raise NameServerError(
                    f"name server {self.address} cannot be reached: {error or 'no answer in time'}"
                ) from error

    async def request(self, command: Command, seconds: float) -> Command:
        """The answer of the name server; NameServerError when there is none."""
        if self._transport is None:
            raise NameServerError(f"there is no connection to name server {self.address}")
        command.opaque = next(self._opaque)
        answer: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._asked[command.opaque] = answer
        self._transport.write(encode_frame(command))
        try:
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError:
            self.close()
            raise NameServerError(
                f"name server {self.address} did not answer in {seconds:g} s"
            ) from None
        finally:
            self._asked.pop(command.opaque, None)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # --- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._decoder = FrameDecoder()
        local, peer = (transport.get_extra_info(name) for name in ("sockname", "peername"))
        self.local = (str(local[0]), int(local[1]))
        self.peer = (str(peer[0]), int(peer[1]))

    def data_received(self, data: bytes) -> None:
        for codec, header, body in self._decoder.feed(data):
            command = decode_command(codec, header, body)
            answer = self._asked.get(command.opaque)
            if command.is_response and answer is not None and not answer.done():
                answer.set_result(command)
        if self._decoder.error is not None:
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(NameServerError(f"name server {self.address} went away"))
        self._on_lost()
