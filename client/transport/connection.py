"""One TCP connection with a `Conversation`: futures, a timer, and asyncio's callbacks.

All frames of one turn of the loop are coalesced into one write; requests of the peer go to
`on_request`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
from collections.abc import Callable
from typing import Final

from aerobee.client.errors import AerobeeError, ConnectFailed, ConnectionLost, RequestTimeout
from aerobee.client.transport.tls import failure_text
from aerobee.protocol.wire.codecs import ProtocolError
from aerobee.protocol.wire.command import MSGPACK, Command
from aerobee.protocol.wire.conversation import Conversation, Parts, frame_parts
from aerobee.protocol.wire.signing import Credentials

log = logging.getLogger("aerobee.connection")

PARTS_MAX: Final = 16
SLOW_TURN_S: Final = 0.02  # a longer turn of the event loop must not use up requests' timeouts
RequestHandler = Callable[["Connection", Command], None]


class Connection(asyncio.Protocol):
    """A connection to a broker or name server, made by `open_connection`."""

    def __init__(
        self, address: str, on_request: RequestHandler, credentials: Credentials | None
    ) -> None:
        self.address = address
        self.conversation = Conversation[asyncio.Future[Command]](credentials, upgrade=True)
        self.flush_mode: str | None = None  # an Aerobee broker sends it with its first answer
        self.closed: AerobeeError | None = None
        self.on_end: Callable[[Connection, AerobeeError], None] | None = None
        self._on_request = on_request
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = math.inf
        self._out: list[bytes | memoryview] = []
        self._unwritten: tuple[int, float] | None = None  # the first such request, and since when
        self._writable = asyncio.Event()
        self._writable.set()
        self._gone = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport

    @property
    def is_aerobee(self) -> bool:
        """Whether the peer is Aerobee."""
        return self.conversation.codec == MSGPACK

    @property
    def peer_version(self) -> int:
        return self.conversation.peer_version

    @property
    def is_answered(self) -> bool:
        """Whether the peer has answered anything."""
        return self.conversation.peer_version != 0

    # -- requests

    def ask(self, command: Command, timeout: float) -> asyncio.Future[Command]:
        """Queue the request for the next write; the future gets the answer or an error."""
        future: asyncio.Future[Command] = self._loop.create_future()
        if self.closed is not None:
            future.set_exception(ConnectFailed(f"{self.address}: {self.closed}"))
            return future
        now = self._loop.time()
        self._write(self.conversation.request(command, future, now, timeout))
        if self._unwritten is None:
            self._unwritten = command.opaque, now
        if self.conversation.next_deadline < self._wakes_at:
            self._watch()
        return future

    async def request(self, command: Command, timeout: float) -> Command:
        """The answer, whatever its code."""
        if not self._writable.is_set():
            await self.drain(timeout)
        return await self.ask(command, timeout)

    def oneway(self, command: Command) -> None:
        """Send a one-way request; silently lost if the connection is."""
        self._write(self.conversation.oneway(command))

    def answer(self, command: Command) -> None:
        """Send an answer to a request of the peer."""
        self._write(frame_parts(command))

    async def drain(self, timeout: float) -> None:
        """Backpressure: wait until the peer has read enough of what was written."""
        try:
            async with asyncio.timeout(timeout):
                await self._writable.wait()
        except TimeoutError:
            raise RequestTimeout(
                f"{self.address} read nothing for {timeout:g} s", hint="nothing was sent"
            ) from None

    def _write(self, parts: Parts) -> None:
        if self.closed is None:
            if not self._out:
                self._loop.call_soon(self._flush)
            self._out += parts

    def _flush(self) -> None:
        out, self._out = self._out, []
        unwritten, self._unwritten = self._unwritten, None
        if unwritten is not None and (now := self._loop.time()) - unwritten[1] > SLOW_TURN_S:
            self.conversation.written_late(unwritten[0], now)
        # After the peer's EOF the transport is closing for some turns before connection_lost.
        if self.closed is None and out and not self._transport.is_closing():
            if len(out) > PARTS_MAX:
                self._transport.write(b"".join(out))
            else:  # few and large: avoid the copy
                self._transport.writelines(out)

    def _watch(self) -> None:
        """One timer for all requests; the one it was set for may have been answered."""
        if self._timer is not None:
            self._timer.cancel()
        self._wakes_at = self.conversation.next_deadline
        still = self.closed is not None or self._wakes_at == math.inf
        self._timer = None if still else self._loop.call_at(self._wakes_at, self._expire)

    def _expire(self) -> None:
        for late in self.conversation.expire(self._loop.time()):
            text = f"{self.address} did not answer request {late.code} within {late.seconds:g} s"
            late.waiter.set_exception(RequestTimeout(text))
        self._watch()

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
        for request in self.conversation.receive(data):
            self._on_request(self, request)
        if self.conversation.error is not None:
            self._fail(self.conversation.error)

    def _fail(self, error: ProtocolError) -> None:
        log.warning("%s sent something that is not a RocketMQ frame: %s", self.address, error)
        self.close(ConnectionLost(f"{self.address} does not speak RocketMQ's protocol: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        reason = f"{self.address} closed the connection" + (f": {error}" if error else "")
        is_plain = self._transport.get_extra_info("ssl_object") is None
        puzzling = self.conversation.in_flight and not self.is_answered and is_plain
        hint = "it answered nothing: if it expects TLS, use mqs://" if puzzling else ""
        self._end(ConnectionLost(reason, hint=hint))
        self._gone.set()

    def close(self, error: AerobeeError | None = None) -> None:
        """Write what is pending, then close; requests without an answer fail."""
        if self.closed is None:
            self._flush()
            self._transport.close()
            self._end(error or ConnectionLost(f"the connection to {self.address} was closed"))

    def drop(self) -> None:
        """The peer no longer answers: abort it, so that a new connection is made."""
        self._transport.abort()
        self._end(ConnectionLost(f"{self.address} no longer answers"))

    async def wait_closed(self, timeout: float) -> None:
        """After `close`: wait until pending data is written, or the peer stops reading."""
        try:
            async with asyncio.timeout(timeout):
                await self._gone.wait()
        except TimeoutError:
            log.warning("%s did not read all that was sent before closing", self.address)
            self._transport.abort()
            await self._gone.wait()

    def _end(self, error: AerobeeError) -> None:
        if self.closed is None:
            self.closed = error
            if self.on_end is not None:
                self.on_end(self, error)
        self._writable.set()
        for pending in self.conversation.end():
            pending.waiter.set_exception(ConnectionLost(str(error)))
        self._watch()


async def open_connection(
    address: str,
    on_request: RequestHandler,
    *,
    timeout: float,
    credentials: Credentials | None = None,
    tls: ssl.SSLContext | None = None,
) -> Connection:
    """Connect to `host:port`; ConnectFailed says why not."""
    host, _, port = address.rpartition(":")
    if not (host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ConnectFailed(f"no connection to {address!r}", hint="an address is host:port")
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout):
            _, connection = await loop.create_connection(
                lambda: Connection(address, on_request, credentials),
                host.strip("[]"),
                int(port),
                ssl=tls,
            )
    except TimeoutError:
        raise ConnectFailed(
            f"{address} did not accept a connection within {timeout:g} s",
            hint="check address, firewall and port mapping",
        ) from None
    except ssl.SSLError as error:
        reason, hint = failure_text(error)
        raise ConnectFailed(f"no TLS with {address}: {reason}", hint=hint) from None
    except OSError as error:
        raise ConnectFailed(
            f"no connection to {address}: {error.strerror or error}",
            hint="is the broker or name server running there?",
        ) from None
    except UnicodeError as error:  # from the name lookup
        raise ConnectFailed(
            f"no connection to {address}: {error}", hint="that is not a host name"
        ) from None
    return connection
