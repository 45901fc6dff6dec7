"""Outgoing bytes of one client, and what must be kept until they are sent."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

JOIN_MAX: Final = 64 << 10  # bytes up to which one buffer is cheaper to write than many pieces
PIECES_MAX: Final = 1024  # per system call (IOV_MAX)

if TYPE_CHECKING:
    from aerobee.broker.compiled import _hot

    Part = bytes | memoryview | _hot.Gathered
else:
    Part = bytes | memoryview


class Outbox:
    """The writing side of a connection. Before `open` and after `close` it takes nothing."""

    __slots__ = ("_descriptor", "_releases_unwritten", "_transport", "releases", "written")

    def __init__(self) -> None:
        self.written = 0  # bytes so far
        self._transport: asyncio.Transport | None = None
        self._descriptor = -1  # of the socket, where pieces may be written to it directly
        # Mapped files with unsent bytes: after how many bytes to call what, to release them.
        self.releases: deque[tuple[int, Callable[[], None]]] = deque()
        self._releases_unwritten: list[Callable[[], None]] = []

    def open(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        # A TLS transport hides its socket: bytes written to it directly would not be encrypted.
        sock = transport.get_extra_info("socket")
        # Some versions of asyncio's own writelines forget the high-water mark; uvloop's does not.
        is_direct = sock is not None and not type(transport).__module__.startswith("asyncio")
        self._descriptor = sock.fileno() if is_direct else -1

    def close(self) -> None:
        """The client has disconnected: release everything that was written."""
        self._transport = None
        for release in (*(each for _, each in self.releases), *self._releases_unwritten):
            release()
        self.releases.clear()
        self._releases_unwritten.clear()

    def write(self, parts: Sequence[Part]) -> bool:
        """Write frames in pieces; False when the connection is closed."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        if len(parts) == 1:
            part = parts[0]
            self.written += len(part)
            if isinstance(part, (bytes, memoryview)):
                transport.write(part)
            elif self._descriptor < 0:
                transport.write(memoryview(part))
            else:  # without a copy, as much as the socket takes now
                sent = 0 if transport.get_write_buffer_size() else part.write_to(self._descriptor)
                if sent < len(part):
                    transport.writelines(part.rest(sent))
        else:
            self.written += sum(map(len, parts))
            if self._descriptor < 0:
                transport.write(b"".join(parts))
            elif unsent := self._write_now(transport, parts):
                transport.writelines(map(memoryview, unsent))
        if self._releases_unwritten:
            self.releases += [(self.written, each) for each in self._releases_unwritten]
            self._releases_unwritten.clear()
            self.release_sent()
        return True

    def _write_now(self, transport: asyncio.Transport, parts: Sequence[Part]) -> Sequence[Part]:
        """Write many pieces with one system call; returns what the socket did not take. The
        transport would do the same, but has a higher overhead per piece."""
        if transport.get_write_buffer_size():
            return parts
        for start in range(0, len(parts), PIECES_MAX):
            pieces = parts[start : start + PIECES_MAX]
            try:
                sent = os.writev(self._descriptor, pieces)
            except OSError:  # the socket is full, or the client is gone: the transport handles that
                sent = 0
            if sent < sum(map(len, pieces)):
                for index, piece in enumerate(pieces, start):
                    if sent < len(piece):
                        return (memoryview(piece)[sent:], *parts[index + 1 :])
                    sent -= len(piece)
        return ()

    @property
    def is_direct(self) -> bool:
        """Whether pieces may be written to the socket directly (uvloop without TLS)."""
        return self._descriptor >= 0

    @property
    def unsent(self) -> int:
        """Bytes that were written and are not sent yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def release_when_sent(self, release: Callable[[], None]) -> None:
        """Call `release` once what is written next is sent, or the client is gone."""
        if self._transport is None:
            release()
        else:
            self._releases_unwritten.append(release)

    def release_sent(self) -> None:
        """Release the files whose bytes are sent."""
        if self.releases:
            sent = self.written - self.unsent
            while self.releases and self.releases[0][0] <= sent:
                self.releases.popleft()[1]()
