"""One connection to a master: received log is appended and acknowledged."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from aerobee.broker.base.clock import Clock
from aerobee.broker.ha.follower import held
from aerobee.broker.ha.receiver import Receiver
from aerobee.broker.ha.wire import ACK, REPORT, TRANSFER, StreamError
from aerobee.broker.net.busy_poll import BusyPoll
from aerobee.broker.settings import Settings
from aerobee.broker.store.log.commitlog import LogFull
from aerobee.broker.store.results import PutStatus

if TYPE_CHECKING:
    from aerobee.broker.store.message_store import MessageStore

WATCH_S: Final = 0.25
READ_BYTES: Final = 1 << 20  # per read, so that the event loop can serve others
UNDISPATCHED_MAX: Final = 64 << 20  # backpressure: with more than this, dispatch comes first
WAKE_BYTES: Final = 512 << 10  # of a frame at most, before it is read
PAUSE_S: Final = 0.005
MANY_BYTES: Final = 64 << 10  # in a read: more follows, and if nobody waits for our acks ...
GATHER_S: Final = 0.003  # ... it gathers for so long
ACK_S: Final = 0.05  # a frame that takes longer to come is acknowledged in parts
FEW_BYTES: Final = 16 << 10  # in a read: somebody waits for each record, the next may come at once


def plain_report(end: int) -> bytes:
    return REPORT.pack(end)


def epoch_ack(end: int) -> bytes:
    return ACK.pack(TRANSFER, end)


class Stream:
    """One connection to a master's replication port."""

    def __init__(
        self,
        settings: Settings,
        store: MessageStore,
        clock: Clock,
        sock: socket.socket,
        receiver: Receiver,
        encode_report: Callable[[int], bytes] = plain_report,
        *,
        may_gather: bool = False,
    ) -> None:
        """`may_gather`: nobody waits for our acks, so that many records may be read together."""
        self._encode_report = encode_report
        self._settings = settings
        self._store = store
        self._clock = clock
        self._sock = sock
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._first_report = receiver.received
        self._reported = -1
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._paused = False
        self._busy_poll = BusyPoll(self._loop)
        self._may_gather = may_gather
        self._gathered_later: asyncio.TimerHandle | None = None
        self._wake_bytes = 1  # the socket is readable from so many bytes on
        self._bytes = 0
        self.rate = 0
        self.read_ms = self.written_ms = clock.now_ms()
        self._heard_at = self._reported_at = clock.monotonic()

    async def run(self, first: bytes = b"") -> None:
        """Follow until the link ends; the exception says why. `first`: bytes already read."""
        self._report()
        if first:
            self._take(memoryview(first))
        self._loop.add_reader(self._sock, self._readable)
        watching = self._loop.create_task(self._watch())
        try:
            await self._ended
        finally:
            watching.cancel()
            self._ended.cancel()
            if self._gathered_later is not None:
                self._gathered_later.cancel()
            self._loop.remove_reader(self._sock)
            self._sock.close()

    def _end(self, error: Exception) -> None:
        if not self._ended.done():
            self._ended.set_exception(error)

    def _readable(self) -> None:
        if self._ended.done():
            return
        try:
            count = self._sock.recv_into(self._buffer)
            if not count:
                raise ConnectionResetError("the master has closed the connection")
            self._heard_at = self._clock.monotonic()
            self.read_ms = self._clock.now_ms()
        except BlockingIOError:
            return
        except OSError as error:
            self._end(error)
            return
        self._busy_poll.came()
        self._take(self._buffer[:count])
        if self._may_gather and MANY_BYTES <= count < READ_BYTES:
            self._gather()
        else:
            self._wake_up_from(max(min(self._receiver.frame_rest, WAKE_BYTES), 1))
        if count < FEW_BYTES:
            self._busy_poll.expect()

    def _gather(self) -> None:
        """Much is on its way, and nobody waits for our acks: read it in one piece after a
        moment."""
        self._wake_up_from(READ_BYTES)
        if self._gathered_later is None:
            self._gathered_later = self._loop.call_later(GATHER_S, self._gathered)

    def _gathered(self) -> None:
        self._gathered_later = None
        self._wake_up_from(1)
        if not self._paused:
            self._readable()

    def _wake_up_from(self, least: int) -> None:
        """Wake up once for the rest of a frame, not for each piece of it: a wake-up costs the
        master as much as us."""
        if least != self._wake_bytes:
            self._wake_bytes = least
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)

    def _take(self, data: memoryview) -> None:
        """Append the complete records, and acknowledge them."""
        self._bytes += len(data)
        try:
            for offset, lot in self._receiver.feed(data):
                self._store.append_copy(offset, lot)
        except (OSError, StreamError, LogFull) as error:
            self._end(error)
            return
        whole = self._receiver.whole
        if self._store.sync_flush:  # an ack says that it is on disk
            self._store.when_durable(whole, self._durable)
        elif self._has_unreported and (
            self._receiver.is_between_frames or self._heard_at - self._reported_at > ACK_S
        ):
            self._report()
        if self._undispatched() > UNDISPATCHED_MAX:
            self._pause()

    @property
    def _has_unreported(self) -> bool:
        """Whether records are appended that no report has acknowledged yet."""
        return not self._store.sync_flush and self._receiver.whole > self._reported

    def _durable(self, status: PutStatus) -> None:
        if status is PutStatus.PUT_OK:
            self._report()

    def _report(self) -> None:
        """Acknowledge what we have; if the socket is full, a later ack covers it. After a failed
        write the log has less than the receiver."""
        if self._ended.done():
            return
        has = held(self._store, self._receiver, self._first_report)
        try:
            self._sock.send(self._encode_report(has))
        except BlockingIOError:
            return
        except OSError as error:
            self._end(error)
            return
        self._reported = has
        self._reported_at = self._clock.monotonic()
        self.written_ms = self._clock.now_ms()

    def _undispatched(self) -> int:
        """The bytes that dispatch could process now. With an arbiter it stops at the confirm
        offset, which arrives only on this connection: we must not stop reading for the rest."""
        return self._store.confirmed_end - self._store.dispatched_offset

    def _pause(self) -> None:
        self._paused = True
        self._loop.remove_reader(self._sock)
        self._loop.call_later(PAUSE_S, self._resume)

    def _resume(self) -> None:
        if self._ended.done():
            return
        if self._undispatched() > UNDISPATCHED_MAX // 2:
            self._loop.call_later(PAUSE_S, self._resume)
            return
        self._paused = False
        self._loop.add_reader(self._sock, self._readable)

    async def _watch(self) -> None:
        """Send heartbeats, and end the link when the master is silent."""
        settings = self._settings
        second_began, count = self._clock.monotonic(), 0
        while not self._ended.done():
            await self._clock.sleep(WATCH_S)
            now = self._clock.monotonic()
            if now - second_began >= 1:
                self.rate = round((self._bytes - count) / (now - second_began))
                second_began, count = now, self._bytes
            if self._paused:
                self._heard_at = now
            elif self._wake_bytes > 1:
                self._readable()  # over a slow link the rest of a frame takes long
            silent_s = now - self._heard_at
            if silent_s * 1000 > settings.ha_housekeeping_interval:
                self._end(StreamError(f"the master was silent for {silent_s:.0f} s"))
            elif (now - self._reported_at) * 1000 >= settings.ha_send_heartbeat_interval or (
                self._has_unreported and now - self._reported_at > ACK_S
            ):
                self._report()
