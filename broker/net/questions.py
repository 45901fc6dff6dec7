"""Requests from the broker to a client, and the answers to them."""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from aerobee.broker.net.outbox import Outbox
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.conversation import Conversation

UNSENT_MAX: Final = 16 << 20  # bytes; a client that has not taken so many gets no requests


class ConnectionClosed(ConnectionError):
    """The client disconnected before it answered."""


class NotReading(ConnectionError):
    """The client does not take what is sent to it. Requests, which others may cause, would fill the
    memory."""


class Line(Protocol):
    """What `Questions` needs of a connection."""

    @property
    def name(self) -> str: ...

    @property
    def is_closed(self) -> bool: ...

    @property
    def outbox(self) -> Outbox: ...

    def write(self, parts: Sequence[bytes | memoryview]) -> None: ...


class Questions:
    """Requests to one client that are not answered yet."""

    __slots__ = ("_conversation", "_line")

    def __init__(self, line: Line) -> None:
        self._line = line
        # Created with the first request: most clients never get one.
        self._conversation: Conversation[asyncio.Future[Command]] | None = None

    def send_oneway(self, command: Command) -> None:
        """Send a request that wants no answer; it is dropped when the client does not read."""
        if self._line.outbox.unsent <= UNSENT_MAX:
            self._line.write(self._begun().oneway(command))

    def ask(self, command: Command, timeout: float) -> "asyncio.Future[Command]":
        """Ask the client and await its answer; TimeoutError, ConnectionClosed or NotReading when
        none comes."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Command] = loop.create_future()
        if self._line.is_closed:
            future.set_exception(self._gone())
        elif self._line.outbox.unsent > UNSENT_MAX:
            future.set_exception(NotReading(f"client {self._line.name} does not read"))
        else:
            self._line.write(self._begun().request(command, future, loop.time(), timeout))
            timer = loop.call_later(timeout, self._expire, loop)
            future.add_done_callback(lambda _: timer.cancel())
        return future

    def answered(self, answer: Command) -> None:
        """The client's answer to one of our requests; one that is no longer awaited is dropped."""
        if self._conversation is not None:
            self._conversation.answered(answer)

    def close(self) -> None:
        """The client has disconnected."""
        for pending in self._conversation.end() if self._conversation is not None else ():
            pending.waiter.set_exception(self._gone())
            pending.waiter.exception()  # marks it as retrieved: an unawaited failure is no bug

    def _begun(self) -> Conversation[asyncio.Future[Command]]:
        if self._conversation is None:
            self._conversation = Conversation()
        return self._conversation

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        for late in self._begun().expire(loop.time()):
            text = f"client {self._line.name} did not answer request {late.code}"
            late.waiter.set_exception(TimeoutError(f"{text} in {late.seconds:g} s"))

    def _gone(self) -> ConnectionClosed:
        return ConnectionClosed(f"client {self._line.name} went away")
