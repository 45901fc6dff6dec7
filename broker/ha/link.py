"""One slave's connection at the master: its reports, the frames sent to it, and their pace."""

from __future__ import annotations

import asyncio
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from aerobee.broker.base.clock import Clock
from aerobee.broker.ha.copies import Acknowledged, Who
from aerobee.broker.ha.epochs import Epochs
from aerobee.broker.ha.sender import Pace, Sender
from aerobee.broker.ha.serving import Serving
from aerobee.broker.ha.wire import FRAME_SIZE_MAX, StreamError
from aerobee.broker.settings import Settings

if TYPE_CHECKING:
    from aerobee.broker.store.files.mapped_file import MappedFile
    from aerobee.broker.store.message_store import MessageStore

log = structlog.get_logger("aerobee.ha")

TAIL_BYTES: Final = 1 << 20  # at most this far behind, a slave is served from the loop
GATHER_BYTES: Final = 512 << 10  # less than this waits for the ack of what was sent before it
GATHER_S: Final = 0.002  # ... and, if nobody waits for the copy, for this long after a frame
MANY_BYTES: Final = 16 << 10  # ... of at least this size: there is more to come
LONE_BYTES: Final = 8 << 10  # not more than this is sent in the turn in which it was put
FROM_FILE_BYTES: Final = 16 << 10  # from here on the kernel takes it from the file
JOB_BYTES: Final = 32 << 20  # sent by a thread before the loop decides again
MORE_FOLLOWS: Final = getattr(socket, "MSG_MORE", 0)  # Linux
_POLL_MS: Final = 500
_REPORTS_SIZE: Final = 4096


class Links(Protocol):
    """The owner of a link."""

    settings: Settings
    store: MessageStore
    clock: Clock
    copies: Acknowledged
    confirmed: Callable[[], int] | None

    def epochs(self) -> Epochs: ...
    def who_is(self, endpoint: tuple[str, int]) -> Who: ...
    def dropped(self, link: Link) -> None: ...


class Link:
    """One slave's connection."""

    def __init__(self, master: Links, sock: socket.socket, peer: tuple[str, int]) -> None:
        settings = master.settings
        self.peer = peer
        self.rate = 0  # bytes in the last second
        self._master = master
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        batch = min(settings.ha_transfer_batch_size, FRAME_SIZE_MAX)
        store = master.store
        self._serving = Serving(
            batch,
            store.settings.mapped_file_size_commit_log,
            lambda: (store.min_physical_offset, store.committed_offset),
            master.epochs,
            master.confirmed,
        )
        self._follows = False
        limited = settings.ha_flow_control_enable
        self._pace = Pace(settings.max_ha_transfer_byte_in_second if limited else 0)
        self._unsent = memoryview(b"")
        self._sent_all_to = 0  # the log's end when the slave was last sent all of it
        self._sent_last = 0  # bytes, then
        self.gathers_until = 0  # appends that end before this can be ignored
        self._gathered_later: asyncio.TimerHandle | None = None
        self._job: asyncio.Task[None] | None = None
        self._closed = False
        self._sent_in_second = 0
        self._second_began = self._heard_at = self._sent_at = master.clock.monotonic()
        self._loop.add_reader(sock, self._readable)

    @property
    def sender(self) -> Sender:
        return self._serving.sender

    @property
    def broker_id(self) -> int | None:
        return self._serving.broker_id

    def identified(self, broker_id: int) -> None:
        self._serving.broker_id = broker_id
        if self.sender.is_open:
            self._master.copies.acked(self, broker_id, self.sender.acked)

    # -- receiving

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
        try:
            answer, has_reported = self._serving.feed(data)
            if answer:
                self._sock.send(answer)
            if has_reported:
                self._reported()
        except (StreamError, OSError) as error:
            self.close(str(error))
        return None

    def _reported(self) -> None:
        """The slave has acknowledged. Send pending records before producers get their answers, so
        that the slave works in parallel."""
        known, sender = self.broker_id, self.sender
        who = self._master.who_is(self.peer) if known is None else known
        if not self._follows:
            self._follows = True
            log.info(
                "a slave follows", slave=self.peer[0], has=sender.acked, from_offset=sender.position
            )
        self.gathers_until = 0
        self.appended()
        if not self._closed:
            self._master.copies.acked(self, who, sender.acked)

    # -- sending

    def appended(self, *, may_wait: bool = False) -> bool:
        """The log has grown, or the slave has acknowledged. False: there is something to send, but
        other puts of this turn may add to it. A small amount is sent at once, because somebody
        may wait for its copy."""
        if self._is_due():
            if may_wait and self._behind > LONE_BYTES:
                return False
            self.push()
        return True

    @property
    def _behind(self) -> int:
        return self._master.store.committed_offset - self.sender.position

    def _is_due(self) -> bool:
        """Records are gathered until the slave has acknowledged the last frame: a busy slave gets
        fewer and larger frames. If nobody waits for the copy they are gathered for a moment
        longer, but a single record never is."""
        behind = self._behind
        if behind >= GATHER_BYTES:
            return True
        if not behind:
            return False
        if self.sender.acked < self._sent_all_to:
            self._gather()
            return False
        if self._master.copies.are_awaited or self._sent_last < MANY_BYTES:
            return True
        if self._master.clock.monotonic() - self._sent_at >= GATHER_S:
            return True
        if self._gathered_later is None:
            self._gathered_later = self._loop.call_later(GATHER_S, self._gathered)
        self._gather()
        return False

    def _gather(self) -> None:
        self.gathers_until = self.sender.position + GATHER_BYTES

    def _gathered(self) -> None:
        self._gathered_later = None
        self.gathers_until = 0
        self.push()

    def push(self) -> None:
        """Send what the log has beyond what was sent, as far as the socket takes it now."""
        if self._closed or self._job is not None or self._unsent or not self.sender.is_open:
            return
        store, start = self._master.store, self.sender.position
        log_end = store.committed_offset
        if log_end == start:
            return
        while (frame := self._serving.next_frame(log_end)) is not None:
            offset, size = frame
            if log_end - offset > TAIL_BYTES:
                self._job = self._loop.create_task(self._catch_up())
                return
            if self._pace.take(size, self._master.clock.monotonic()):
                return  # `watch` continues
            self.sender.claim(size)
            head = self._serving.head(offset, size)
            if not (self._write_file if size >= FROM_FILE_BYTES else self._write_copy)(
                head, offset, size
            ):
                return
        self._sent_all_to, self._sent_last = log_end, log_end - start

    def _write_copy(self, head: bytes, offset: int, size: int) -> bool:
        """Send a frame; False when the socket has not taken all of it, or is broken."""
        data = self._read(offset, size)
        return data is not None and self._write(head, data)

    def _write_file(self, head: bytes, offset: int, size: int) -> bool:
        """The same, straight from the file; what the socket does not take at once is copied."""
        file = self._master.store.commit_log.files.find(offset)
        if file is None or not file.hold():
            return self._write_copy(head, offset, size)
        self._note_sent(size)
        sent = 0
        try:
            sent = self._sock.send(head, MORE_FOLLOWS)
            if sent == len(head):
                sent += file.file.send_to(self._sock.fileno(), offset - file.start, size)
        except BlockingIOError:
            pass
        except OSError as error:
            self.close(str(error))
            return False
        finally:
            file.release()
        if sent == len(head) + size:
            return True
        taken = max(sent - len(head), 0)
        rest = self._read(offset + taken, size - taken)
        if rest is not None:
            self._keep(head[sent:] + rest)
        return False

    def _read(self, offset: int, size: int) -> bytes | None:
        try:
            data = self._master.store.read_log(offset, size)
        except OSError as error:
            self.close(f"the log cannot be read: {error}")
            return None
        if len(data) < size:
            self.close("the part of the log that it lacks was removed meanwhile")
            return None
        return data

    def _write(self, head: bytes, data: bytes) -> bool:
        self._note_sent(len(data))
        try:
            sent = self._sock.sendmsg((head, data))
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self.close(str(error))
            return False
        if sent == len(head) + len(data):
            return True
        self._keep((head + data)[sent:])
        return False

    def _note_sent(self, size: int) -> None:
        self._sent_in_second += size
        self._sent_at = self._master.clock.monotonic()

    def _keep(self, unsent: bytes) -> None:
        """Send the rest of a frame when the socket takes it."""
        self._unsent = memoryview(unsent)
        self._loop.add_writer(self._sock, self._writable)

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
        while not self._closed and (frame := self._serving.next_frame(until)) is not None:
            offset, size = frame
            if wait_s := self._pace.take(size, clock.monotonic()):
                time.sleep(min(wait_s, 0.1))
                continue
            sender.claim(size)
            self._send_head(self._serving.head(offset, size))
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

    # -- housekeeping and closing

    def watch(self, now: float) -> None:
        settings = self._master.settings
        if (now - self._heard_at) * 1000 > settings.ha_housekeeping_interval:
            return self.close(f"silent for {now - self._heard_at:.0f} s (haHousekeepingInterval)")
        if now - self._second_began >= 1:
            self.rate = round(self._sent_in_second / (now - self._second_began))
            self._sent_in_second, self._second_began = 0, now
        if self._job is not None or self._unsent or not self.sender.is_open:
            return None
        self.push()  # what the pace limit has deferred
        is_due = (now - self._sent_at) * 1000 >= settings.ha_send_heartbeat_interval
        if is_due or self._serving.has_news:
            self._write(self._serving.head(self.sender.position, 0), b"")
        return None

    def close(self, reason: str) -> None:
        if self._closed:
            return
        self._closed = True
        if self._gathered_later is not None:
            self._gathered_later.cancel()
        log.warning("a slave's connection is closed", slave=self.peer[0], reason=reason)
        self._loop.remove_reader(self._sock)
        if self._unsent:
            self._loop.remove_writer(self._sock)
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        if self._job is None:  # else the thread still has the socket
            self._sock.close()
        self._master.dropped(self)
