"""The master's sockets: one link for each slave that follows our log.

New records go out from the loop, right after the put. A slave that is far behind is served by a
thread, which hands the kernel whole pieces of the files: neither cold pages nor a slow slave stop
the loop. What to send and what an ack is worth is `sender`'s to say.
"""

from __future__ import annotations

import asyncio
import select
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import structlog

from aerobee.broker.base.clock import Clock
from aerobee.broker.base.wake import Wake
from aerobee.broker.ha.copies import Copies, Who
from aerobee.broker.ha.sender import Pace, Sender
from aerobee.broker.ha.wire import FRAME_SIZE_MAX, HEAD, ReportReader, StreamError
from aerobee.broker.settings import Settings

if TYPE_CHECKING:
    from aerobee.broker.store.files.mapped_file import MappedFile
    from aerobee.broker.store.message_store import MessageStore

log = structlog.get_logger("aerobee.ha")

TAIL_BYTES: Final = 1 << 20  # at most this far behind, a slave is served from the loop
JOB_BYTES: Final = 32 << 20  # sent by a thread before the loop looks again
WATCH_S: Final = 0.25  # between two looks at heartbeats and silent slaves
MORE_FOLLOWS: Final = getattr(socket, "MSG_MORE", 0)  # Linux
DRAIN_LOOK_S: Final = 0.005
_POLL_MS: Final = 500
_REPORTS_SIZE: Final = 4096


class MasterLinks:
    """All slaves of this broker."""

    def __init__(
        self, settings: Settings, store: MessageStore, clock: Clock, copies: Copies
    ) -> None:
        self.settings = settings
        self.store = store
        self.clock = clock
        self.copies = copies
        self.links: list[Link] = []
        self._broker_ids: dict[tuple[str, int], int] = {}  # by the slave's end of the connection
        self._push_is_due = False
        self._came = Wake()  # a first slave
        self._loop = asyncio.get_running_loop()

    # -- what others call

    def appended(self) -> None:
        """The log has grown. Records of one turn of the loop go out together."""
        if not self._push_is_due:
            self._push_is_due = True
            self._loop.call_soon(self._push)

    def identify(self, endpoint: tuple[str, int], broker_id: int) -> None:
        """The slave at the other end of this connection says who it is."""
        self._broker_ids[endpoint] = broker_id
        for link in self.links:
            if link.peer == endpoint:
                link.identified(broker_id)

    def who_is(self, endpoint: tuple[str, int]) -> Who:
        return self._broker_ids.get(endpoint, endpoint[0])

    def status(self) -> list[dict[str, Any]]:
        """As GET_BROKER_HA_STATUS shows the connections."""
        end = self.store.committed_offset
        return [
            {
                "addr": f"{link.peer[0]}:{link.peer[1]}",
                "diff": end - max(link.sender.acked, 0),
                "inSync": link.sender.is_open and self.copies.is_in_sync(link.sender.acked),
                "slaveAckOffset": max(link.sender.acked, 0),
                "transferFromWhere": max(link.sender.position, 0),
                "transferredByteInSecond": link.rate,
            }
            for link in self.links
        ]

    # -- the life of links

    async def accept(self, listening: socket.socket) -> None:
        """Take slaves on a bound socket until cancelled."""
        listening.listen(64)
        try:
            while True:
                sock, peer = await self._loop.sock_accept(listening)
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.links.append(Link(self, sock, (str(peer[0]), int(peer[1]))))
                self.store.on_append(self.appended)
                self._came.set()
                log.info("a slave has connected", slave=f"{peer[0]}:{peer[1]}")
        finally:
            listening.close()
            for link in list(self.links):
                link.close("this broker stops")

    async def drain(self, seconds: float) -> None:
        """Before a stop: let the slaves get what they lack, for so long at most."""
        end = self.store.committed_offset
        deadline = self._loop.time() + seconds
        self._push()
        while self._loop.time() < deadline and any(
            link.sender.is_open and link.sender.acked < end for link in self.links
        ):
            await self.clock.sleep(DRAIN_LOOK_S)

    def dropped(self, link: Link) -> None:
        if link in self.links:
            self.links.remove(link)
            if not self.links:
                self.store.on_append(None)
        self._broker_ids.pop(link.peer, None)
        self.copies.left(link)

    def _push(self) -> None:
        self._push_is_due = False
        for link in list(self.links):
            link.push()

    async def watch(self) -> None:
        """Heartbeats, and an end to slaves that are silent; until cancelled."""
        while True:
            if not self.links:
                await self._came.wait()
            await self.clock.sleep(WATCH_S)
            now = self.clock.monotonic()
            for link in list(self.links):
                link.watch(now)


class Link:
    """One slave's connection."""

    def __init__(self, master: MasterLinks, sock: socket.socket, peer: tuple[str, int]) -> None:
        settings = master.settings
        self.peer = peer
        self.rate = 0  # bytes in the last second
        self._master = master
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._reports = ReportReader()
        batch = min(settings.ha_transfer_batch_size, FRAME_SIZE_MAX)
        self._batch = batch
        self.sender = Sender(batch, master.store.settings.mapped_file_size_commit_log)
        limited = settings.ha_flow_control_enable
        self._pace = Pace(settings.max_ha_transfer_byte_in_second if limited else 0)
        self._unsent = memoryview(b"")
        self._job: asyncio.Task[None] | None = None
        self._closed = False
        self._sent_in_second = 0
        self._second_began = self._heard_at = self._sent_at = master.clock.monotonic()
        self._loop.add_reader(sock, self._readable)

    def identified(self, broker_id: int) -> None:
        if self.sender.is_open:
            self._master.copies.acked(self, broker_id, self.sender.acked)

    # -- what comes

    def _readable(self) -> None:
        try:
            data = self._sock.recv(_REPORTS_SIZE)
        except BlockingIOError:
            return
        except OSError as error:
            return self.close(str(error))
        if not data:
            return self.close("it has closed the connection")
        self._heard_at = self._master.clock.monotonic()
        end = self._reports.feed(data)
        if end is None:
            return None
        store = self._master.store
        was_open = self.sender.is_open
        try:
            self.sender.report(end, store.min_physical_offset, store.committed_offset)
        except StreamError as error:
            return self.close(str(error))
        self._master.copies.acked(self, self._master.who_is(self.peer), self.sender.acked)
        if not was_open:
            log.info(
                "a slave follows", slave=self.peer[0], has=end, from_offset=self.sender.position
            )
            self.push()
        return None

    # -- what goes

    def push(self) -> None:
        """Send what the log has beyond what was sent, as far as the socket takes it now."""
        if self._closed or self._job is not None or self._unsent or not self.sender.is_open:
            return
        store = self._master.store
        log_end = store.committed_offset
        while (frame := self.sender.next_frame(log_end)) is not None:
            offset, size = frame
            if log_end - offset > TAIL_BYTES:
                self._job = self._loop.create_task(self._catch_up())
                return
            if self._pace.take(size, self._master.clock.monotonic()):
                return  # `watch` goes on with it
            try:
                data = store.read_log(offset, size)
            except OSError as error:
                return self.close(f"the log cannot be read: {error}")
            if len(data) < size:
                return self.close("the part of the log that it lacks was removed meanwhile")
            self.sender.claim(size)
            if not self._write(HEAD.pack(offset, size), data):
                return

    def _write(self, head: bytes, data: bytes) -> bool:
        """Send a frame; False when the socket has not taken all of it, or is broken."""
        self._sent_in_second += len(data)
        self._sent_at = self._master.clock.monotonic()
        try:
            sent = self._sock.sendmsg((head, data))
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self.close(str(error))
            return False
        if sent == len(head) + len(data):
            return True
        self._unsent = memoryview(head + data)[sent:]
        self._loop.add_writer(self._sock, self._writable)
        return False

    def _writable(self) -> None:
        try:
            self._unsent = self._unsent[self._sock.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError as error:
            self.close(str(error))
            return
        if not self._unsent:
            self._loop.remove_writer(self._sock)
            self.push()

    # -- a slave that is far behind

    async def _catch_up(self) -> None:
        """Have a thread send until the slave is near the log's end."""
        store, sender = self._master.store, self.sender
        try:
            while not self._closed:
                log_end = store.committed_offset
                if log_end - sender.position <= TAIL_BYTES:
                    break
                file = store.commit_log.files.find(sender.position)
                if file is None or not file.hold():
                    self.close("the part of the log that it lacks was removed meanwhile")
                    break
                try:
                    until = min(log_end, file.end, sender.position + JOB_BYTES)
                    await asyncio.to_thread(self._send_range, file, until)
                finally:
                    file.release()
        except OSError as error:
            self.close(str(error))
        finally:
            self._job = None
            if self._closed:
                self._sock.close()
        self.push()

    def _send_range(self, file: MappedFile, until: int) -> None:
        """In the thread: the log from the sender's position to `until`, which is in this file."""
        sender, clock = self.sender, self._master.clock
        while not self._closed and (frame := sender.next_frame(until)) is not None:
            offset, size = frame
            if wait_s := self._pace.take(size, clock.monotonic()):
                time.sleep(min(wait_s, 0.1))
                continue
            sender.claim(size)
            self._send_head(HEAD.pack(offset, size))
            position, end = offset - file.start, offset - file.start + size
            while position < end and not self._closed:
                try:
                    position += file.file.send_to(self._sock.fileno(), position, end - position)
                except BlockingIOError:
                    self._wait_writable(_POLL_MS)
            self._sent_in_second += size
            self._sent_at = clock.monotonic()

    def _send_head(self, head: bytes) -> None:
        left = memoryview(head)
        while left and not self._closed:
            try:
                left = left[self._sock.send(left, MORE_FOLLOWS) :]
            except BlockingIOError:
                self._wait_writable(_POLL_MS)

    def _wait_writable(self, timeout_ms: int) -> None:
        poll = select.poll()
        poll.register(self._sock, select.POLLOUT)
        poll.poll(timeout_ms)

    # -- the end, and before

    def watch(self, now: float) -> None:
        settings = self._master.settings
        if (now - self._heard_at) * 1000 > settings.ha_housekeeping_interval:
            return self.close(f"silent for {now - self._heard_at:.0f} s (haHousekeepingInterval)")
        if now - self._second_began >= 1:
            self.rate = round(self._sent_in_second / (now - self._second_began))
            self._sent_in_second, self._second_began = 0, now
        if self._job is not None or self._unsent or not self.sender.is_open:
            return None
        self.push()  # what the pace has held back
        if (now - self._sent_at) * 1000 >= settings.ha_send_heartbeat_interval:
            self._write(HEAD.pack(self.sender.position, 0), b"")
        return None

    def close(self, reason: str) -> None:
        if self._closed:
            return
        self._closed = True
        log.warning("a slave's connection is closed", slave=self.peer[0], reason=reason)
        self._loop.remove_reader(self._sock)
        if self._unsent:
            self._loop.remove_writer(self._sock)
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        if self._job is None:  # else the thread still has the socket
            self._sock.close()
        self._master.dropped(self)
