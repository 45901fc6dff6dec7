"""The connections of a client by address: made when needed, made anew with backoff, signed."""

from __future__ import annotations

import asyncio
import base64
import hmac
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from aerobee.client.connection import Connection, RequestHandler, open_connection
from aerobee.client.errors import (
    AerobeeError,
    Closed,
    ConnectFailed,
    ConnectionLost,
    RequestTimeout,
    refusal,
)
from aerobee.protocol.command import Command

BACKOFF_FIRST: Final = 0.05
BACKOFF_MAX: Final = 5.0


@dataclass(frozen=True, slots=True)
class Credentials:
    """An access key and its secret, as RocketMQ's ACL wants them."""

    access_key: str
    secret_key: str = field(repr=False)

    def sign(self, command: Command) -> None:
        """Add the key and the signature over all ext values and the body."""
        ext = command.ext
        ext.pop("Signature", None)
        ext["AccessKey"] = self.access_key
        data = "".join(ext[name] for name in sorted(ext)).encode() + command.body
        digest = hmac.digest(self.secret_key.encode(), data, "sha1")
        ext["Signature"] = base64.b64encode(digest).decode()


@dataclass(slots=True)
class _Backoff:
    failures: int
    until: float
    error: ConnectFailed


class Remoting:
    """Asks brokers and name servers by address."""

    def __init__(
        self,
        on_request: RequestHandler,
        *,
        credentials: Credentials | None = None,
        timeout: float = 3.0,
    ) -> None:
        self.timeout = timeout
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

        After a failure the next try waits its turn; one that is not `patient` fails at once.
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
            if task.cancelled() and self._closed:  # not the caller was cancelled, the opening was
                raise Closed("the client was closed") from None
            raise

    def _opened(self, address: str, task: asyncio.Task[Connection]) -> None:
        self._opening.pop(address, None)
        if not task.cancelled():
            task.exception()  # each waiter has seen it; none may be left

    async def _open(self, address: str) -> Connection:
        loop = asyncio.get_running_loop()
        backoff = self._backoffs.get(address)
        if backoff is not None and (wait := backoff.until - loop.time()) > 0:
            await asyncio.sleep(wait)
        try:
            connection = await open_connection(address, self._on_request, timeout=self.timeout)
            if self.introduce is not None:
                try:
                    await self.introduce(connection)
                except BaseException:
                    connection.close()
                    raise
        except ConnectFailed as error:
            failures = backoff.failures + 1 if backoff else 1
            delay = min(BACKOFF_MAX, BACKOFF_FIRST * 2 ** min(failures, 10))
            until = loop.time() + delay * random.uniform(0.5, 1.0)
            self._backoffs[address] = _Backoff(failures, until, error)
            raise
        self._backoffs.pop(address, None)
        if self._closed:
            connection.close()
            raise Closed("the client is closed")
        self._connections[address] = connection
        return connection

    async def introduce_late(self, address: str) -> None:
        """Greet a broker whose connection was made while it was known as a name server only."""
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
        if self._credentials is not None:
            self._credentials.sign(command)
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

    def sign(self, command: Command) -> Command:
        """Sign a command that is sent on a connection directly."""
        if self._credentials is not None:
            self._credentials.sign(command)
        return command

    async def oneway(self, address: str, command: Command) -> None:
        """Send without an answer; what may be lost does not wait for its turn to connect."""
        (await self.connection(address, patient=False)).oneway(self.sign(command))

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
    """Whether the request may have been carried out all the same."""
    return isinstance(error, ConnectionLost | RequestTimeout)
