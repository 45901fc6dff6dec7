"""One client's connection: bytes in, answers out, and our own requests to the client.

It knows nothing of what the frames mean. A `Feed` (see `hot_path`) is given every read and returns
the answers, which leave in one write. Reading stops while the client does not take what it asked
for, or while too many of its requests wait for the disk.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, cast

import structlog

from aerobee.broker.busy_poll import BusyPoll
from aerobee.broker.turns import Turns
from aerobee.protocol.codecs import ProtocolError
from aerobee.protocol.command import JSON, ONEWAY_FLAG, Command
from aerobee.protocol.frame import FRAME_SIZE_MAX, encode_frame

log = structlog.get_logger("aerobee.connection")

JOIN_MAX: Final = 64 << 10  # bytes up to which one buffer is cheaper to write than many pieces
PIECES_MAX: Final = 1024  # that one call of the system takes
CLOSE_S: Final = 15e-6  # that the loop needs to close a socket, after we have asked for it

Part = bytes | memoryview
Address = tuple[str, int]


class ConnectionClosed(ConnectionError):
    """The client went before it answered."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one connection may take of us."""

    frame_size_max: int = FRAME_SIZE_MAX
    write_buffer_max: int = 1 << 20  # unsent bytes at which we stop reading
    waiting_max: int = 10_000  # requests that wait for the disk, at which we stop reading
    idle_seconds: float = 120.0
    header_seconds: float = 10.0  # a frame's lengths and header must be here so soon
    frame_seconds: float = 30.0  # and all of it so soon


class Feed(Protocol):
    """What makes answers of bytes: the hot path in Python, or a compiled twin of it."""

    error: ProtocolError | None  # set once the bytes are no frames; nothing more is answered
    completed: int  # frames that were whole, so far

    def feed(self, data: bytes) -> Sequence[Part]:
        """The answers that can be given at once to the requests that `data` completes."""

    def resume(self) -> Sequence[Part]:
        """Answers to requests that were kept back, because the answers before were too large or
        the loop had others to serve."""

    @property
    def kept_back(self) -> Sequence[object]:
        """Requests that `resume` will answer."""

    @property
    def partial(self) -> bool:
        """Whether a frame has begun and not ended."""

    @property
    def header_missing(self) -> bool:
        """Whether not even the header of that frame is whole."""


class Owner(Protocol):
    """The server, as a connection needs it."""

    limits: Limits
    busy_poll: BusyPoll
    turns: Turns

    def opened(self, connection: "Connection") -> bool:
        """Take the connection in; False refuses it."""

    def lost(self, connection: "Connection") -> None: ...

    def make_feed(self, connection: "Connection") -> Feed: ...


class Connection(asyncio.Protocol):
    """A client that is connected."""

    def __init__(self, owner: Owner) -> None:
        self.peer: Address = ("0.0.0.0", 0)
        self.local: Address = ("0.0.0.0", 0)
        self.name = "?"  # the peer as ip:port
        self.client_id: str | None = None  # by its heartbeat
        self.language = "OTHER"  # of its last request that was no plain send or pull
        self.version = 0
        self.on_close: list[Callable[[Connection], None]] = []
        self.is_closed = False
        self.active_at = 0.0  # the loop's time of the last read or write
        self.frame_begun_at = 0.0  # of the frame that is not whole yet; 0.0: none
        self.refusal_said_at = float("-inf")  # kept by `dispatch`, which logs so many a second
        self.refusals_unsaid = 0
        self.waiting = 0  # requests whose answers wait for the disk
        self.fetching = 0  # bytes of answers that are being read from it
        self.written = 0  # bytes, so far
        self.turns = owner.turns
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._descriptor = -1  # of the socket, where pieces may be written to it directly
        self._feed: Feed | None = None
        self._write_paused = False
        self._read_paused = False
        self._going_on = False
        self._stopping = False
        self._ended = False  # no more requests come; it closes once the answers due are written
        # Of mapped files whose bytes are under way: what to call, and after how many bytes.
        self._releases: deque[tuple[int, Callable[[], None]]] = deque()
        self._releases_unwritten: list[Callable[[], None]] = []
        self._asked: dict[int, asyncio.Future[Command]] = {}
        self._last_opaque = 0
        self._frames_seen = 0

    # --- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self.peer = _address(transport.get_extra_info("peername"))
        self.local = _address(transport.get_extra_info("sockname"))
        self.name = f"{self.peer[0]}:{self.peer[1]}"
        self.active_at = self._loop.time()
        # Some versions of asyncio's own writelines forget the high-water mark; uvloop's does not.
        if not type(transport).__module__.startswith("asyncio"):
            self._descriptor = transport.get_extra_info("socket").fileno()
        high = self._owner.limits.write_buffer_max
        transport.set_write_buffer_limits(high=high, low=high // 4)
        if self._owner.opened(self):
            self._feed = self._owner.make_feed(self)
        else:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        feed = self._feed
        if feed is None or self._stopping or self._ended:
            return
        now = self.active_at = self._loop.time()
        answers = feed.feed(data)
        if answers:
            self.write(answers)
            self._owner.busy_poll.touch()
        if feed.kept_back:
            self._go_on_soon()
        if not feed.partial:
            self.frame_begun_at = 0.0
        elif not self.frame_begun_at or feed.completed != self._frames_seen:
            self.frame_begun_at = now
            self._frames_seen = feed.completed
        if self._releases:
            self._release_sent()
        if feed.error is not None and not feed.kept_back:
            self._refuse(feed.error)

    def pause_writing(self) -> None:
        self._write_paused = True
        self._update_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._go_on_soon()

    def eof_received(self) -> bool:
        """The client has closed its side: ours stays open for requests that were kept back and
        for answers that wait for the disk."""
        self._ended = True
        if self.waiting or (self._feed is not None and self._feed.kept_back):
            return True
        if self.turns.is_over():  # thousands may go at once
            self.turns.later(self.close)
            return True
        self.turns.charge(CLOSE_S)
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True
        self._write_paused = False
        for release in (*(each for _, each in self._releases), *self._releases_unwritten):
            release()
        self._releases.clear()
        self._releases_unwritten.clear()
        for future in self._asked.values():
            if not future.done():
                future.set_exception(ConnectionClosed(f"client {self.name} went away"))
                future.exception()  # whoever waits sees it; nobody waiting is no mistake
        self._asked.clear()
        self.turns.now_or_later(self._finish)

    def _finish(self) -> None:
        """What the client has sent counts, though it did not wait for the answers: it may have
        told how far it has come. Then all that was registered by this connection goes."""
        feed = self._feed
        if feed is not None and feed.kept_back and not self._stopping:
            feed.resume()
            self.turns.later(self._finish)
            return
        self._feed = None
        for callback in self.on_close:
            try:
                callback(self)
            except Exception:  # the next callback must run all the same
                log.exception("cleaning up after a client failed", peer=self.name)
        self.on_close.clear()
        self._owner.lost(self)

    # --- answers

    def send(self, command: Command) -> None:
        """Write one frame; nothing happens when the connection is closed."""
        self.write((encode_frame(command),))

    def write(self, parts: Sequence[Part]) -> None:
        """Write frames in pieces; nothing happens when the connection is closed."""
        transport = self._transport
        if transport is None or self.is_closed or transport.is_closing():
            return
        self.active_at = self._loop.time()
        if len(parts) == 1:
            self.written += len(parts[0])
            transport.write(parts[0])
        else:
            self.written += sum(map(len, parts))
            if self._descriptor < 0:
                transport.write(b"".join(parts))
            elif unsent := self._write_now(transport, parts):
                transport.writelines(unsent)
        if self._releases_unwritten:
            self._releases += [(self.written, each) for each in self._releases_unwritten]
            self._releases_unwritten.clear()
            self._release_sent()

    def _write_now(self, transport: asyncio.Transport, parts: Sequence[Part]) -> Sequence[Part]:
        """Hand many pieces to the system in one call; what it did not take is returned. The
        transport would do the same, but spends more on each piece than on its bytes."""
        if transport.get_write_buffer_size():
            return parts
        for start in range(0, len(parts), PIECES_MAX):
            pieces = parts[start : start + PIECES_MAX]
            try:
                sent = os.writev(self._descriptor, pieces)
            except OSError:  # it takes nothing now, or the client has gone: the transport finds out
                sent = 0
            if sent < sum(map(len, pieces)):
                for index, piece in enumerate(pieces, start):
                    if sent < len(piece):
                        return (memoryview(piece)[sent:], *parts[index + 1 :])
                    sent -= len(piece)
        return ()

    def release_when_sent(self, release: Callable[[], None]) -> None:
        """Call `release` once what is written next has left, or the client has gone."""
        if self.is_closed:
            release()
        else:
            self._releases_unwritten.append(release)

    def waits_begin(self, count: int = 1, size: int = 0) -> None:
        """That many requests' answers wait for the disk, and have to be read from it if they have
        a size."""
        self.waiting += count
        self.fetching += size
        if self.waiting >= self._owner.limits.waiting_max or self.is_full:
            self._update_reading()

    def waits_end(self, count: int = 1, size: int = 0) -> None:
        """That many answers have come."""
        self.waiting -= count
        self.fetching -= size
        if self._read_paused:
            self._go_on_soon()
        if self._ended and not self.waiting:
            self._loop.call_soon(self._close_when_answered)  # which is written next

    # --- requests of ours

    def send_oneway(self, command: Command) -> None:
        """Send a request of ours that wants no answer."""
        command.flag |= ONEWAY_FLAG
        command.opaque = self._next_opaque()
        command.codec = JSON
        self.send(command)

    def request(self, command: Command, timeout: float) -> "asyncio.Future[Command]":
        """Ask the client and await its answer; TimeoutError or ConnectionClosed when none comes."""
        future: asyncio.Future[Command] = self._loop.create_future()
        if self.is_closed:
            future.set_exception(ConnectionClosed(f"client {self.name} went away"))
            return future
        opaque = command.opaque = self._next_opaque()
        command.codec = JSON  # every client reads it
        self._asked[opaque] = future
        timer = self._loop.call_later(timeout, self._give_up, opaque, command.code, timeout)
        future.add_done_callback(partial(self._asked_done, opaque, timer))
        self.send(command)
        return future

    def answered(self, answer: Command) -> None:
        """The client's answer to a request of ours; one that nobody waits for is dropped."""
        future = self._asked.get(answer.opaque)
        if future is not None and not future.done():
            future.set_result(answer)

    def _asked_done(
        self, opaque: int, timer: asyncio.TimerHandle, _future: "asyncio.Future[Command]"
    ) -> None:
        timer.cancel()
        self._asked.pop(opaque, None)

    def _give_up(self, opaque: int, code: int, timeout: float) -> None:
        future = self._asked.get(opaque)
        if future is not None and not future.done():
            future.set_exception(
                TimeoutError(f"client {self.name} did not answer request {code} in {timeout:g} s")
            )

    def _next_opaque(self) -> int:
        self._last_opaque = (self._last_opaque + 1) & 0x7FFFFFFF
        return self._last_opaque

    # --- ends and deadlines

    def stop_reading(self) -> None:
        """Take no more requests; answers still go out."""
        self._stopping = True
        self._update_reading()

    @property
    def is_full(self) -> bool:
        """Whether no more answers should be made before the client has taken some."""
        return self._write_paused or self.fetching > self._owner.limits.write_buffer_max

    @property
    def has_unsent(self) -> bool:
        """Whether an answer is still due or on its way."""
        if self.is_closed or self._transport is None:
            return False
        return self.waiting > 0 or self._transport.get_write_buffer_size() > 0

    def close(self, reason: str = "") -> None:
        """Send what is written, then close."""
        if self._transport is None or self.is_closed or self._transport.is_closing():
            return
        if reason:
            log.info("connection closed", peer=self.name, client_id=self.client_id, reason=reason)
        self.turns.charge(CLOSE_S)
        self._transport.close()

    def abort(self) -> None:
        """Close without sending the rest."""
        if self._transport is not None and not self.is_closed:
            self._transport.abort()

    def check_deadlines(self, now: float) -> None:
        """Close when the client has been silent, or slow with a frame, for too long."""
        limits = self._owner.limits
        if self._releases:
            self._release_sent()
        if now - self.active_at > limits.idle_seconds:
            self.close(f"silent for {limits.idle_seconds:g} s")
            self.abort()
        elif self.frame_begun_at and not self._read_paused and self._feed is not None:
            age = now - self.frame_begun_at
            if age > limits.header_seconds and self._feed.header_missing:
                self.close(f"a frame's header was not whole after {limits.header_seconds:g} s")
            elif age > limits.frame_seconds:
                self.close(f"a frame was not whole after {limits.frame_seconds:g} s")

    # --- inside

    def _go_on_soon(self) -> None:
        """Answer what was kept back as long as the client takes it, share by share: other clients
        come in between."""
        self._update_reading()
        if not self._going_on and not self.is_full:
            self._going_on = True
            self.turns.later(self._go_on)

    def _go_on(self) -> None:
        self._going_on = False
        feed = self._feed
        if feed is None or self.is_closed:
            return
        if feed.kept_back and not self.is_full:
            answers = feed.resume()
            if answers:
                self.write(answers)
        if feed.kept_back and not self.is_full:
            self._go_on_soon()
        else:
            self._update_reading()
            if feed.error is not None and not feed.kept_back and not self._ended:
                self._refuse(feed.error)
            elif self._ended:
                self._close_when_answered()
        if self._releases:
            self._release_sent()

    def _close_when_answered(self) -> None:
        if not self.waiting and not (self._feed is not None and self._feed.kept_back):
            self.close()

    def _update_reading(self) -> None:
        transport, feed = self._transport, self._feed
        if transport is None or feed is None or self._ended or transport.is_closing():
            return
        pause = (
            self._stopping
            or self.is_full
            or bool(feed.kept_back)
            or self.waiting >= self._owner.limits.waiting_max
        )
        if pause != self._read_paused:
            self._read_paused = pause
            if pause:
                transport.pause_reading()
            else:
                transport.resume_reading()
                if self.frame_begun_at:
                    self.frame_begun_at = self._loop.time()  # the delay was ours

    def _release_sent(self) -> None:
        if self._transport is not None:
            sent = self.written - self._transport.get_write_buffer_size()
            while self._releases and self._releases[0][0] <= sent:
                self._releases.popleft()[1]()

    def _refuse(self, error: ProtocolError) -> None:
        log.warning("bytes that are no frame: connection closed", peer=self.name, reason=str(error))
        self._ended = True
        if not self.waiting:
            self.close()


def _address(name: object) -> Address:
    if isinstance(name, tuple) and len(name) >= 2:
        ip = str(name[0])
        return (ip.removeprefix("::ffff:") if "." in ip else ip), int(name[1])
    return ("0.0.0.0", 0)
