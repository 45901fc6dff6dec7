"""One TCP connection: frames out and in, and which answer belongs to which question.

All frames of one turn of the loop leave in one write. Both sides ask: answers are matched by
`opaque` among our own questions, questions of the other side go to `on_request`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Final

from aerobee.client.errors import AerobeeError, ConnectFailed, ConnectionLost, RequestTimeout
from aerobee.protocol.codecs import ProtocolError, decode_command
from aerobee.protocol.command import JSON, MSGPACK, ONEWAY_FLAG, Command
from aerobee.protocol.frame import FrameDecoder, encode_frame_head

log = logging.getLogger("aerobee.connection")

PARTS_MAX: Final = 16
RequestHandler = Callable[["Connection", Command], None]


class Connection(asyncio.Protocol):
    """A connection to a broker or name server, made by `open_connection`."""

    def __init__(self, address: str, on_request: RequestHandler) -> None:
        self.address = address
        self.codec = JSON
        self.peer_version = 0
        self.flush_mode: str | None = None  # a broker of ours says it with its first answer
        self.closed: AerobeeError | None = None
        self._on_request = on_request
        self._decoder = FrameDecoder()
        self._opaques = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Command]] = {}
        self._out: list[bytes | memoryview] = []
        self._writable = asyncio.Event()
        self._writable.set()
        self._gone = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport

    @property
    def is_aerobee(self) -> bool:
        """Whether the other side is ours: Aerobee's answers alone say that they are Python's."""
        return self.codec == MSGPACK

    @property
    def local_ip(self) -> str:
        return str(self._transport.get_extra_info("sockname")[0])

    # -- asking

    def ask(self, command: Command, timeout: float) -> asyncio.Future[Command]:
        """Put the request into the next write; the future gets the answer or an error."""
        future: asyncio.Future[Command] = self._loop.create_future()
        if self.closed is not None:
            future.set_exception(ConnectFailed(f"{self.address}: {self.closed}"))
            return future
        opaque = command.opaque = next(self._opaques) & 0x7FFFFFFF
        self._send(command)
        self._pending[opaque] = future
        timer = self._loop.call_later(timeout, self._expire, opaque, command.code, timeout)
        future.add_done_callback(lambda _: self._forget(opaque, timer))
        return future

    async def request(self, command: Command, timeout: float) -> Command:
        """The answer, whatever its code."""
        if not self._writable.is_set():
            await self.drain(timeout)
        return await self.ask(command, timeout)

    def oneway(self, command: Command) -> None:
        """Send without an answer; lost in silence when the connection is."""
        command.flag |= ONEWAY_FLAG
        command.opaque = next(self._opaques) & 0x7FFFFFFF
        self._send(command)

    def answer(self, command: Command) -> None:
        """Send an answer to a request of the other side."""
        self._send(command)

    async def drain(self, timeout: float) -> None:
        """Wait until the other side has taken enough of what was written."""
        try:
            async with asyncio.timeout(timeout):
                await self._writable.wait()
        except TimeoutError:
            raise RequestTimeout(
                f"{self.address} took no bytes for {timeout:g} s", hint="nothing was sent"
            ) from None

    def _send(self, command: Command) -> None:
        if self.closed is not None:
            return
        command.codec = self.codec if not command.is_response else command.codec
        head = encode_frame_head(command, len(command.body))
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(head)
        if command.body:
            self._out.append(command.body)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self.closed is None and out:
            if len(out) > PARTS_MAX:
                self._transport.write(b"".join(out))
            else:  # few and large: spare the copy
                self._transport.writelines(out)

    def _expire(self, opaque: int, code: int, timeout: float) -> None:
        future = self._pending.pop(opaque, None)
        if future is not None and not future.done():
            text = f"{self.address} did not answer request {code} within {timeout:g} s"
            future.set_exception(RequestTimeout(text))

    def _forget(self, opaque: int, timer: asyncio.TimerHandle) -> None:
        timer.cancel()
        self._pending.pop(opaque, None)

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]  # uvloop's has no common base
        self._transport.set_write_buffer_limits(high=4 << 20)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        try:
            for codec, header, body in self._decoder.feed(data):
                self._take(decode_command(codec, header, body))
        except ProtocolError as error:
            self._fail(error)
        else:
            if self._decoder.error is not None:
                self._fail(self._decoder.error)

    def _take(self, command: Command) -> None:
        if not command.is_response:
            self._on_request(self, command)
            return
        if self.peer_version == 0:
            self.peer_version = command.version
            if command.language == "PYTHON":
                self.codec = MSGPACK
        future = self._pending.pop(command.opaque, None)
        if future is not None and not future.done():
            future.set_result(command)

    def _fail(self, error: ProtocolError) -> None:
        log.warning("%s sent what is no RocketMQ frame: %s", self.address, error)
        self.close(ConnectionLost(f"{self.address} does not speak RocketMQ's protocol: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        reason = f"{self.address} closed the connection" + (f": {error}" if error else "")
        self._end(ConnectionLost(reason))
        self._gone.set()

    def close(self, error: AerobeeError | None = None) -> None:
        """Write what is waiting, then close; questions without an answer fail."""
        if self.closed is None:
            self._flush()
            self._transport.close()
            self._end(error or ConnectionLost(f"the connection to {self.address} was closed"))

    def drop(self) -> None:
        """The other side answers no more: end it at once, so that a new one is made."""
        self._transport.abort()
        self._end(ConnectionLost(f"{self.address} answers no more"))

    async def wait_closed(self, timeout: float) -> None:
        """After `close`: until what was waiting is written, or the other side took none of it."""
        try:
            async with asyncio.timeout(timeout):
                await self._gone.wait()
        except TimeoutError:
            log.warning("%s took not all that was sent before closing", self.address)
            self._transport.abort()
            await self._gone.wait()

    def _end(self, error: AerobeeError) -> None:
        if self.closed is None:
            self.closed = error
        self._writable.set()
        pending, self._pending = self._pending, {}
        for future in pending.values():
            if not future.done():
                future.set_exception(ConnectionLost(str(error)))


async def open_connection(
    address: str, on_request: RequestHandler, *, timeout: float
) -> Connection:
    """Connect to `host:port`; ConnectFailed says why not."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout):
            _, connection = await loop.create_connection(
                lambda: Connection(address, on_request), host.strip("[]"), int(port)
            )
    except TimeoutError:
        raise ConnectFailed(
            f"{address} did not accept a connection within {timeout:g} s",
            hint="check address, firewall and port mapping",
        ) from None
    except OSError as error:
        raise ConnectFailed(
            f"no connection to {address}: {error.strerror or error}",
            hint="is the broker or name server running there?",
        ) from None
    except UnicodeError as error:  # by the look-up
        raise ConnectFailed(
            f"no connection to {address}: {error}", hint="that is no host name"
        ) from None
    return connection
