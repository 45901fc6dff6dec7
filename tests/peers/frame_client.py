"""The client of all tests that speak frames to a broker in this process. `peers.wire.Wire`, which
blocks and has an encoding of its own, is the other one, for brokers in a process of their own."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

from aerobee.protocol.wire.codecs import decode_command
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.frame import FrameDecoder, encode_frame


class FrameClient:
    """One connection. Answers are matched by opaque; `keep` gets what the broker asks."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._decoder = FrameDecoder()
        self._opaques = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Command]] = {}
        self.ended = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def open(cls, port: int, **options: Any) -> Self:
        return cls(*await asyncio.open_connection("127.0.0.1", port, **options))

    @classmethod
    @asynccontextmanager
    async def connected(cls, port: int, **options: Any) -> AsyncIterator[Self]:
        client = await cls.open(port, **options)
        try:
            yield client
        finally:
            await client.close()

    async def _read(self) -> None:
        try:
            while data := await self.reader.read(1 << 20):
                for frame in self._decoder.feed(data):
                    self._received(decode_command(*frame))
        except ConnectionError:
            pass  # a reset ends a connection as well as a close does
        finally:
            if not self.ended.done():
                self.ended.set_result(None)
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(ConnectionResetError("the broker closed the connection"))
                    future.exception()

    def _received(self, command: Command) -> None:
        if not command.is_response:
            self.keep(command)
        elif (future := self._waiting.pop(command.opaque, None)) and not future.done():
            future.set_result(command)

    def keep(self, command: Command) -> None:
        """What the broker asks."""

    def expect(self, command: Command) -> asyncio.Future[Command]:
        future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._waiting[command.opaque] = future
        return future

    def begin(self, command: Command) -> asyncio.Future[Command]:
        """Send a request; its answer comes by the future."""
        future = self.expect(command)
        self.writer.write(encode_frame(command))
        return future

    async def close(self) -> None:
        self.writer.close()
        self._reading.cancel()
        await asyncio.gather(self._reading, self.writer.wait_closed(), return_exceptions=True)
