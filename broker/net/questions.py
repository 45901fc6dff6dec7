"""Requests from the broker to a client, and the answers to them."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.conversation import Conversation


class ConnectionClosed(ConnectionError):
    """The client disconnected before it answered."""


class Line(Protocol):
    """What `Questions` needs of a connection."""

    @property
    def name(self) -> str: ...

    @property
    def is_closed(self) -> bool: ...

    def write(self, parts: Sequence[bytes | memoryview]) -> None: ...


class Questions:
    """Requests to one client that are not answered yet."""

    __slots__ = ("_conversation", "_line")

    def __init__(self, line: Line) -> None:
        self._line = line
        # Created with the first request: most clients never get one.
        self._conversation: Conversation[asyncio.Future[Command]] | None = None

    def send_oneway(self, command: Command) -> None:
        """Send a request that wants no answer."""
        self._line.write(self._begun().oneway(command))

    def ask(self, command: Command, timeout: float) -> "asyncio.Future[Command]":
        """Ask the client and await its answer; TimeoutError or ConnectionClosed when none comes."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Command] = loop.create_future()
        if self._line.is_closed:
            future.set_exception(self._gone())
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
