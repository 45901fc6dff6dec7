"""One client's connection: bytes in, answers out.

It does not know what the frames mean. Every read goes to a `Feed`, which returns the answers; they
are sent in one write. Reading stops while the client does not read its answers, or while too many
of its requests wait for the disk.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, cast

import structlog

from aerobee.broker.base.turns import Turns
from aerobee.broker.net.busy_poll import BusyPoll
from aerobee.broker.net.feed import Feed, Limits, Room
from aerobee.broker.net.outbox import Outbox, Part
from aerobee.broker.net.questions import Questions
from aerobee.protocol.wire.codecs import ProtocolError
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.frame import encode_frame

log = structlog.get_logger("aerobee.connection")

CLOSE_S: Final = 15e-6  # that the loop needs to close a socket, at the end of the turn
READ_LARGE: Final = 16 << 10  # bytes; so large a read may hold many requests, and is deferred
READS_S: Final = 0.002  # ... once the turn has taken so long: a hundred clients may send such reads

Address = tuple[str, int]


class Owner(Protocol):
    """The server, as a connection needs it."""

    limits: Limits
    busy_poll: BusyPoll
    turns: Turns

    def opened(self, connection: "Connection") -> bool:
        """Accept the connection; False refuses it."""

    def refusal(self, connection: "Connection") -> Feed | None:
        """A feed that tells the client why its connection is refused; None: it is just closed."""

    def lost(self, connection: "Connection") -> None: ...

    def make_feed(self, connection: "Connection") -> Feed: ...


class Connection(asyncio.Protocol):
    """A client that is connected."""

    # There may be thousands; and with over 30 attributes an object without slots is slow to use.
    __slots__ = (
        "_busy_poll",
        "_ended",
        "_feed",
        "_frames_seen",
        "_loop",
        "_owner",
        "_read_paused",
        "_resume_scheduled",
        "_stopping",
        "_transport",
        "_unread",
        "_write_paused",
        "active_at",
        "bad_signatures",
        "certified",
        "client_id",
        "fetching",
        "frame_begun_at",
        "is_closed",
        "language",
        "local",
        "name",
        "on_close",
        "outbox",
        "peer",
        "questions",
        "refusal_logged_at",
        "suppressed_refusals",
        "turns",
        "user",
        "version",
        "waiting",
    )

    def __init__(self, owner: Owner) -> None:
        self.peer: Address = ("0.0.0.0", 0)
        self.local: Address = ("0.0.0.0", 0)
        self.name = "?"  # the peer as ip:port
        self.client_id: str | None = None  # by its heartbeat
        self.language = "OTHER"  # of its last request that was no plain send or pull
        self.version = 0
        self.on_close: list[Callable[[Connection], None]] = []
        self.is_closed = False
        self.active_at = 0.0  # loop time of the last read or write
        self.frame_begun_at = 0.0  # of the frame that is not whole yet; 0.0: none
        self.refusal_logged_at = float("-inf")  # kept by `dispatch`, which logs so many a second
        self.suppressed_refusals = 0
        self.bad_signatures = 0  # kept by `auth`
        self.user = ""  # set by `auth`: the user who signed the last request, if it was checked
        self.certified: frozenset[str] = frozenset()  # names of the certificate that it has shown
        self.waiting = 0  # requests whose answers wait for the disk
        self.fetching = 0  # bytes of answers that are being read from it
        self.outbox = Outbox()
        self.questions = Questions(self)  # requests from the broker to the client
        self.turns = owner.turns
        self._busy_poll = owner.busy_poll
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._feed: Feed | None = None
        self._unread: list[bytes] = []  # reads deferred to a later turn
        self._write_paused = False
        self._read_paused = False
        self._resume_scheduled = False
        self._stopping = False
        self._ended = False  # no more requests come; it closes once the answers due are written
        self._frames_seen = 0

    # --- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self.peer = _address(transport.get_extra_info("peername"))
        self.local = _address(transport.get_extra_info("sockname"))
        self.name = f"{self.peer[0]}:{self.peer[1]}"
        self.active_at = self._loop.time()
        self.outbox.open(transport)
        high = self._owner.limits.write_buffer_max
        transport.set_write_buffer_limits(high=high, low=high // 4)
        if self._owner.opened(self):
            self._feed = self._owner.make_feed(self)
        else:
            self._feed = self._owner.refusal(self)
            if self._feed is None:
                transport.abort()

    def use_transport(self, transport: asyncio.Transport) -> None:
        """From now on use this transport, which encrypts: the client speaks TLS."""
        self._transport = transport
        self.outbox.open(transport)

    def data_received(self, data: bytes) -> None:
        feed = self._feed
        if feed is None or self._stopping or self._ended:
            return
        if self._unread or (len(data) >= READ_LARGE and self.turns.is_over(READS_S)):
            self._unread.append(data)
            self._schedule_resume()
        else:
            self._take(feed, data)

    def receive_into(self, room: Room) -> None:
        """From the next read on, receive bytes into the buffer that the feed parses. Not possible
        with TLS or asyncio's own loop."""
        if self._transport is not None and self.outbox.is_direct:
            self._transport.set_protocol(_Receiver(self, room))

    def received(self, room: Room, count: int) -> None:
        """As `data_received`, for bytes that are already in the buffer."""
        feed = self._feed
        if feed is None or self._stopping or self._ended:
            return
        if self._unread or count < READ_LARGE or self.turns.is_over(READS_S):
            self.data_received(room.received(count))
        else:
            self._take(feed, b"", room, count)

    def _take(self, feed: Feed, data: bytes, room: Room | None = None, count: int = 0) -> None:
        now = self.active_at = self._loop.time()
        outbox = self.outbox
        answers = feed.feed(data) if room is None else room.receive(count)
        if answers and not self.is_closed:
            outbox.write(answers)
            self._busy_poll.touch()
        if feed.kept_back:
            self._schedule_resume()
        if not feed.partial:
            self.frame_begun_at = 0.0
        elif not self.frame_begun_at or feed.completed != self._frames_seen:
            self.frame_begun_at = now
            self._frames_seen = feed.completed
        if outbox.releases:
            outbox.release_sent()
        if feed.error is not None and not feed.kept_back:
            self._refuse(feed.error)

    def pause_writing(self) -> None:
        self._write_paused = True
        self._update_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._schedule_resume()

    def eof_received(self) -> bool:
        """The client has closed its side (half-close): ours stays open for deferred requests and
        for answers that wait for the disk."""
        self._ended = True
        if self.waiting or self._has_more:
            return True
        if self.turns.is_over():  # thousands may disconnect together
            self.turns.later(self.close)
            return True
        self.turns.charge(CLOSE_S)
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True
        self._write_paused = False
        self.outbox.close()
        self.questions.close()
        self.turns.run_or_defer(self._finish)

    def _finish(self) -> None:
        """Carry out the requests that the client sent before it disconnected, such as a commit of
        offsets. Then remove all registrations of this connection."""
        feed = self._feed
        if feed is not None and self._has_more and not self._stopping:
            if feed.kept_back:
                feed.resume()
            else:
                self._take_unread(feed)
            self.turns.later(self._finish)
            return
        self._feed = None
        for callback in self.on_close:
            try:
                callback(self)
            except Exception:  # the next callback must still run
                log.exception("cleaning up after a client failed", peer=self.name)
        self.on_close.clear()
        self._owner.lost(self)

    # --- answers

    def send(self, command: Command) -> None:
        """Write one frame; nothing happens when the connection is closed."""
        self.write((encode_frame(command),))

    def write(self, parts: Sequence[Part]) -> None:
        """Write frames in pieces; nothing happens when the connection is closed."""
        if not self.is_closed and self.outbox.write(parts):
            self.active_at = self._loop.time()

    def waits_begin(self, count: int = 1, size: int = 0) -> None:
        """This many answers wait for the disk. `size`: bytes that have to be read from it."""
        self.waiting += count
        self.fetching += size
        self._busy_poll.expect()
        if self.waiting >= self._owner.limits.waiting_max or self.is_full:
            self._update_reading()

    def waits_end(self, count: int = 1, size: int = 0) -> None:
        """This many answers are ready."""
        self.waiting -= count
        self.fetching -= size
        self._busy_poll.touch()
        if self._read_paused:
            self._schedule_resume()
        if self._ended and not self.waiting:
            self._loop.call_soon(self._close_when_answered)  # the answer is written next

    # --- requests to the client

    def send_oneway(self, command: Command) -> None:
        """Send a oneway request."""
        self.questions.send_oneway(command)

    def request(self, command: Command, timeout: float) -> "asyncio.Future[Command]":
        """Ask the client and await its answer; TimeoutError or ConnectionError when none comes."""
        return self.questions.ask(command, timeout)

    # --- ends and deadlines

    def stop_reading(self) -> None:
        """Take no more requests; answers still go out."""
        self._stopping = True
        self._update_reading()

    @property
    def is_full(self) -> bool:
        """Whether to make no more answers until the client has read some."""
        return self._write_paused or self.fetching > self._owner.limits.write_buffer_max

    @property
    def has_unsent(self) -> bool:
        """Whether an answer is still due or on its way."""
        if self.is_closed or self._transport is None:
            return False
        return self.waiting > 0 or self.outbox.unsent > 0

    def close(self, reason: str = "") -> None:
        """Close once everything written is sent."""
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
        self.outbox.release_sent()
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

    @property
    def _has_more(self) -> bool:
        """Whether requests that were read wait for a later turn."""
        return bool(self._unread or (self._feed is not None and self._feed.kept_back))

    def _take_unread(self, feed: Feed) -> None:
        data = b"".join(self._unread)
        self._unread.clear()
        self._take(feed, data)

    def _schedule_resume(self) -> None:
        """Answer deferred requests while the client reads, a share per turn: other clients are
        served in between."""
        self._update_reading()
        if not self._resume_scheduled and not self.is_full:
            self._resume_scheduled = True
            self.turns.later(self._resume)

    def _resume(self) -> None:
        self._resume_scheduled = False
        feed = self._feed
        if feed is None or self.is_closed:
            return
        if feed.kept_back and not self.is_full:
            answers = feed.resume()
            if answers:
                self.write(answers)
        elif self._unread and not self.is_full:
            self._take_unread(feed)
        if self._has_more and not self.is_full:
            self._schedule_resume()
        else:
            self._update_reading()
            if feed.error is not None and not self._has_more and not self._ended:
                self._refuse(feed.error)
            elif self._ended:
                self._close_when_answered()
        self.outbox.release_sent()

    def _close_when_answered(self) -> None:
        if not self.waiting and not self._has_more:
            self.close()

    def _update_reading(self) -> None:
        transport, feed = self._transport, self._feed
        if transport is None or feed is None or self._ended or transport.is_closing():
            return
        pause = (
            self._stopping
            or self.is_full
            or self._has_more
            or self.waiting >= self._owner.limits.waiting_max
        )
        if pause != self._read_paused:
            self._read_paused = pause
            if pause:
                transport.pause_reading()
            else:
                transport.resume_reading()
                if self.frame_begun_at:
                    self.frame_begun_at = self._loop.time()  # we caused the delay

    def _refuse(self, error: ProtocolError) -> None:
        log.warning("not a valid frame: connection closed", peer=self.name, reason=str(error))
        self._ended = True
        if not self.waiting:
            self.close()


class _Receiver(asyncio.BufferedProtocol):
    """The connection as a protocol whose reads go into the feed's buffer."""

    __slots__ = ("_connection", "_room")

    def __init__(self, connection: Connection, room: Room) -> None:
        self._connection = connection
        self._room = room

    def get_buffer(self, sizehint: int) -> Any:
        return self._room.room()

    def buffer_updated(self, nbytes: int) -> None:
        self._connection.received(self._room, nbytes)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def eof_received(self) -> bool:
        return self._connection.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._connection.connection_lost(error)


def _address(name: object) -> Address:
    if isinstance(name, tuple) and len(name) >= 2:
        ip = str(name[0])
        return (ip.removeprefix("::ffff:") if "." in ip else ip), int(name[1])
    return ("0.0.0.0", 0)
