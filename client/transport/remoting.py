"""The connections of a client by address: opened on demand, reopened with backoff."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from aerobee.client.errors import (
    AerobeeError,
    Closed,
    ConnectFailed,
    ConnectionLost,
    RequestTimeout,
    refusal,
)
from aerobee.client.transport.connection import Connection, RequestHandler, open_connection
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.signing import Credentials

log = logging.getLogger("aerobee.connection")

BACKOFF_FIRST: Final = 0.05
BACK_AFTER_S: Final = 0.5  # a connection without an answer yet counts as restored after this long
BACKOFF_MAX: Final = 2.0  # a broker expects consumers back within 3 s after a clean restart


class ConnectionEvent(NamedTuple):
    """A connection to a broker or name server was lost, could not be made, or is restored."""

    address: str
    connected: bool
    reason: str  # "" when connected


@dataclass(slots=True)
class _Backoff:
    failures: int
    until: float
    error: ConnectFailed


class Remoting:
    """Sends requests to brokers and name servers by address."""

    def __init__(
        self,
        on_request: RequestHandler,
        *,
        credentials: Credentials | None = None,
        timeout: float = 3.0,
        on_event: Callable[[ConnectionEvent], object] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.timeout = timeout
        self.reports = False  # while connecting, the caller of `connect` gets the error instead
        self._tls = tls
        self._on_event = on_event
        self._lost: dict[
            str, tuple[float, int]
        ] = {}  # (since when, level at which that was logged)
        # Called with each new connection before anything else uses it (brokers: heartbeat).
        self.introduce: Callable[[Connection], Awaitable[None]] | None = None
        self._on_request = on_request
        self._credentials = credentials
        self._connections: dict[str, Connection] = {}
        self._opening: dict[str, asyncio.Task[Connection]] = {}
        self._backoffs: dict[str, _Backoff] = {}
        self._closed = False

    def known(self, address: str) -> Connection | None:
        """The open connection to `address`, if there is one."""
        connection = self._connections.get(address)
        return connection if connection is not None and connection.closed is None else None

    async def connection(self, address: str, *, patient: bool = True) -> Connection:
        """An open connection; tasks that ask together share the opening.

        After a failure the next try waits for the backoff; one that is not `patient` fails at once.
        """
        connection = self._connections.get(address)
        if connection is not None and connection.closed is None:
            return connection
        if self._closed:
            raise Closed("the client is closed")
        backoff = self._backoffs.get(address)
        if not patient and backoff and backoff.until > asyncio.get_running_loop().time():
            raise backoff.error
        task = self._opening.get(address)
        if task is None:
            task = asyncio.create_task(self._open(address), name=f"connect {address}")
            self._opening[address] = task
            task.add_done_callback(lambda done: self._opened(address, done))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and self._closed:  # the opening was cancelled, not the caller
                raise Closed("the client was closed") from None
            raise

    def _opened(self, address: str, task: asyncio.Task[Connection]) -> None:
        self._opening.pop(address, None)
        if not task.cancelled():
            task.exception()  # mark it as retrieved: there may be no waiter left

    async def _open(self, address: str) -> Connection:
        loop = asyncio.get_running_loop()
        backoff = self._backoffs.get(address)
        if backoff is not None and (wait := backoff.until - loop.time()) > 0:
            await asyncio.sleep(wait)
        try:
            connection = await open_connection(
                address,
                self._on_request,
                timeout=self.timeout,
                credentials=self._credentials,
                tls=self._tls,
            )
            if self.introduce is not None:
                try:
                    await self.introduce(connection)
                except BaseException:
                    connection.close()
                    raise
        except ConnectFailed as error:
            self._back_off(address, error)
            self._log_lost(address, error, logging.WARNING)
            raise
        if connection.is_answered:
            self._backoffs.pop(address, None)
        if self._closed:
            connection.close()
            raise Closed("the client is closed")
        self._connections[address] = connection
        connection.on_end = self._ended
        if connection.is_answered:
            self._log_restored(address)
        elif address in self._lost or backoff is not None:
            loop.call_later(BACK_AFTER_S, self._mark_restored, connection)
        return connection

    def _back_off(self, address: str, error: ConnectFailed) -> None:
        known = self._backoffs.get(address)
        failures = known.failures + 1 if known else 1
        delay = min(BACKOFF_MAX, BACKOFF_FIRST * 2 ** min(failures, 10))
        until = asyncio.get_running_loop().time() + delay * random.uniform(0.5, 1.0)
        self._backoffs[address] = _Backoff(failures, until, error)

    def _mark_restored(self, connection: Connection) -> None:
        if connection.closed is None and self._connections.get(connection.address) is connection:
            self._backoffs.pop(connection.address, None)
            self._log_restored(connection.address)

    def _ended(self, connection: Connection, error: AerobeeError) -> None:
        address = connection.address
        if self._connections.get(address) is connection:
            # An unused connection is not worth reporting: brokers close idle ones.
            used = connection.conversation.in_flight > 0
            if used and not connection.is_answered:  # a new connection would fail in the same way
                self._back_off(address, ConnectFailed(f"{address}: {error}"))
            self._log_lost(address, error, logging.WARNING if used else logging.INFO)

    def _log_lost(self, address: str, error: AerobeeError, level: int) -> None:
        """Logged once, until the connection is restored."""
        if self.reports and not self._closed and address not in self._lost:
            self._lost[address] = asyncio.get_running_loop().time(), level
            log.log(level, "%s is lost: %s", address, error)
            self._emit(ConnectionEvent(address, False, str(error)))

    def _log_restored(self, address: str) -> None:
        if address in self._lost:
            since, level = self._lost.pop(address)
            seconds = asyncio.get_running_loop().time() - since
            log.log(level, "%s is back after %.1f s", address, seconds)
            self._emit(ConnectionEvent(address, True, ""))

    def _emit(self, event: ConnectionEvent) -> None:
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception:
                log.exception("the callback for connections failed")

    async def introduce_late(self, address: str) -> None:
        """Send the first heartbeat to a broker that was known as a name server only until now."""
        connection = self.known(address)
        if connection is None or self.introduce is None:
            return
        try:
            await self.introduce(connection)
        except ConnectFailed:
            connection.close()  # the next request makes a new one

    async def request(
        self,
        address: str,
        command: Command,
        *,
        timeout: float | None = None,
        patient: bool = True,
    ) -> Command:
        """The answer, whatever its code."""
        connection = await self.connection(address, patient=patient)
        return await connection.request(command, timeout or self.timeout)

    async def ask(
        self,
        address: str,
        code: int,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        what: str,
        timeout: float | None = None,
    ) -> Command:
        """The answer when its code is SUCCESS; the matching error otherwise."""
        answer = await self.request(address, Command(code, ext or {}, body), timeout=timeout)
        if answer.code != 0:
            raise refusal(answer.code, answer.remark, what=f"{what} at {address}")
        return answer

    async def oneway(self, address: str, command: Command) -> None:
        """Send a one-way request; it does not wait for the backoff of a lost connection."""
        (await self.connection(address, patient=False)).oneway(command)

    async def close(self) -> None:
        self._closed = True
        for task in list(self._opening.values()):
            task.cancel()
        connections = list(self._connections.values())
        self._connections.clear()
        for connection in connections:
            connection.close(Closed("the client was closed"))
        await asyncio.gather(*(row.wait_closed(self.timeout) for row in connections))


def is_outcome_unknown(error: AerobeeError) -> bool:
    """Whether the request may have been executed nevertheless."""
    return isinstance(error, ConnectionLost | RequestTimeout)


def log_level(error: AerobeeError) -> int:
    """The log level for a failed request: a lost connection is logged once, elsewhere."""
    return logging.DEBUG if isinstance(error, ConnectFailed | ConnectionLost) else logging.WARNING
