"""The slave's socket: follows a master's log, and finds it again whenever the link breaks."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import structlog

from aerobee.broker.base.clock import Clock
from aerobee.broker.ha.master_client import (
    MasterAddress,
    MasterClient,
    MasterFacts,
    MasterRefused,
)
from aerobee.broker.ha.receiver import Receiver
from aerobee.broker.ha.wire import REPORT, StreamError
from aerobee.broker.net.request_link import LinkError
from aerobee.broker.settings import Settings
from aerobee.broker.store.log.commitlog import LogFull
from aerobee.broker.store.results import PutStatus
from aerobee.protocol.wire.codes import RequestCode

if TYPE_CHECKING:
    from aerobee.broker.store.message_store import MessageStore

log = structlog.get_logger("aerobee.ha")

AGAIN_S: Final = 1.0  # between two tries to follow
CONNECT_S: Final = 5.0
WATCH_S: Final = 0.25
READ_BYTES: Final = 1 << 20  # of one read: the loop has others to serve
UNDISPATCHED_MAX: Final = 64 << 20  # more than this behind, dispatch goes before reading on
PAUSE_S: Final = 0.005

FIRST_BYTE: Final = b"\0"  # of every record, as none takes 16 MiB


class SlaveLink:
    """Keeps our log in step with the master's."""

    def __init__(
        self,
        settings: Settings,
        store: MessageStore,
        clock: Clock,
        find_master: Callable[[], MasterAddress | None],
    ) -> None:
        self._settings = settings
        self._store = store
        self._clock = clock
        self._find_master = find_master
        self._told = ""  # the last reason why we do not follow
        self._stream: Stream | None = None
        self.master: MasterAddress | None = None
        self.facts: MasterFacts | None = None  # of the master that we follow

    @property
    def is_following(self) -> bool:
        return self._stream is not None

    def status(self) -> dict[str, Any]:
        """As GET_BROKER_HA_STATUS shows a slave's side."""
        stream = self._stream
        return {
            "lastReadTimestamp": stream.read_ms if stream else 0,
            "lastWriteTimestamp": stream.written_ms if stream else 0,
            "masterAddr": self.master.ha if self.master and stream else "",
            "masterFlushOffset": 0,
            "maxOffset": self._store.max_physical_offset,
            "transferredByteInSecond": stream.rate if stream else 0,
        }

    async def run(self) -> None:
        """Follow, until cancelled."""
        while True:
            self.master = master = self._find_master()
            try:
                if master is None:
                    raise LinkError("no name server knows a master of this name yet")
                await self._follow(master)
            except (OSError, LinkError, StreamError, LogFull) as error:
                self._tell(str(error) or type(error).__name__)
            await self._clock.sleep(AGAIN_S)

    def _tell(self, reason: str) -> None:
        if reason != self._told:
            log.warning("the master is not followed", reason=reason, then="tried again each second")
        self._told = reason

    async def _follow(self, master: MasterAddress) -> None:
        client = MasterClient(master.main, self._settings)
        try:
            self.facts = facts = await client.facts()
            receiver = self._receiver(facts)
            await self._compare(client, facts)
            host, _, port = master.ha.rpartition(":")
            async with asyncio.timeout(CONNECT_S):
                sock = await _connect(host.strip("[]"), int(port))
            if facts.is_ours:
                await self._identify(client, sock)
        finally:
            client.close()
        stream = self._stream = Stream(self._settings, self._store, self._clock, sock, receiver)
        self._told = ""
        log.info("the master is followed", master=master.ha, from_offset=receiver.received)
        try:
            await stream.run()
        finally:
            self._stream = None

    def _receiver(self, facts: MasterFacts) -> Receiver:
        """Where to begin; StreamError when our log cannot go on with the master's."""
        size = self._settings.mapped_file_size_commit_log
        if facts.file_size != size:
            raise StreamError(
                f"the master's log files have {facts.file_size} bytes, ours {size}: set "
                f"mappedFileSizeCommitLog={facts.file_size} for an empty folder"
            )
        end = self._store.max_physical_offset
        if not self._store.commit_log.files.files:
            known = b"" if facts.log_start else FIRST_BYTE
            return Receiver(facts.log_start, size, known)
        if end > facts.log_end:
            raise StreamError(
                f"our log ends at {end}, the master's at {facts.log_end}: this is no copy of it; "
                f"send to this broker as a master, or begin with an empty folder"
            )
        if end < facts.log_start:
            raise StreamError(
                f"our log ends at {end}, the master's begins at {facts.log_start}: too much is "
                f"missing; begin with an empty folder"
            )
        return Receiver(end, size)

    async def _compare(self, client: MasterClient, facts: MasterFacts) -> None:
        """Our last message must be the master's too: one that has lost the end of its log, and has
        gone on since, is no longer ours. StreamError then."""
        last = self._store.last_entry()
        if last is None or last[0] < facts.log_start:
            return
        offset, size = last
        ours = self._store.read_log(offset, size)
        try:
            answer = await client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)})
            theirs = bytes(answer.body)
        except MasterRefused:
            theirs = b""
        if theirs != ours:
            raise StreamError(
                f"our message at {offset} is not the master's: it has lost a part of its log, or "
                f"is another's; keep this folder if it holds what you miss, and begin with an "
                f"empty one"
            )

    async def _identify(self, client: MasterClient, sock: socket.socket) -> None:
        """Tell the master which broker is at the end of this connection, so that our acks count as
        ours, whatever our host."""
        host, port = sock.getsockname()[:2]
        await client.ask(
            RequestCode.EXCHANGE_BROKER_HA_INFO,
            {"slaveId": str(self._settings.broker_id), "slaveHost": host, "slavePort": str(port)},
        )


async def _connect(host: str, port: int) -> socket.socket:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, kind, protocol, _, address = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.sock_connect(sock, address)
        if sock.getsockname() == sock.getpeername():  # while nobody listens there
            raise ConnectionRefusedError(f"we met ourselves at {host}:{port}")
    except BaseException:
        sock.close()
        raise
    return sock


class Stream:
    """One connection to a master's replication port."""

    def __init__(
        self,
        settings: Settings,
        store: MessageStore,
        clock: Clock,
        sock: socket.socket,
        receiver: Receiver,
    ) -> None:
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
        self._bytes = 0
        self.rate = 0
        self.read_ms = self.written_ms = clock.now_ms()
        self._heard_at = self._reported_at = clock.monotonic()

    async def run(self) -> None:
        """Follow until the link ends; the exception says why."""
        self._report()
        self._loop.add_reader(self._sock, self._readable)
        watching = self._loop.create_task(self._watch())
        try:
            await self._ended
        finally:
            watching.cancel()
            self._ended.cancel()
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
            self._bytes += count
            for offset, data in self._receiver.feed(self._buffer[:count]):
                self._store.append_copy(offset, data)
        except BlockingIOError:
            return
        except (OSError, StreamError, LogFull) as error:
            self._end(error)
            return
        if self._store.sync_flush:  # an ack says that it is on disk
            self._store.when_durable(self._receiver.whole, self._durable)
        elif self._receiver.whole > self._reported:
            self._report()
        if self._store.max_physical_offset - self._store.dispatched_offset > UNDISPATCHED_MAX:
            self._pause()

    def _durable(self, status: PutStatus) -> None:
        if status is PutStatus.PUT_OK and not self._ended.done():
            self._report()

    def _report(self) -> None:
        """Say how much of the log we have; what the socket does not take now is said again."""
        has = self._store.flushed_offset if self._store.sync_flush else self._receiver.whole
        has = max(min(has, self._receiver.whole), self._first_report)
        try:
            self._sock.send(REPORT.pack(has))
        except BlockingIOError:
            return
        except OSError as error:
            self._end(error)
            return
        self._reported = has
        self._reported_at = self._clock.monotonic()
        self.written_ms = self._clock.now_ms()

    def _pause(self) -> None:
        self._paused = True
        self._loop.remove_reader(self._sock)
        self._loop.call_later(PAUSE_S, self._resume)

    def _resume(self) -> None:
        if self._ended.done():
            return
        if self._store.max_physical_offset - self._store.dispatched_offset > UNDISPATCHED_MAX // 2:
            self._loop.call_later(PAUSE_S, self._resume)
            return
        self._paused = False
        self._loop.add_reader(self._sock, self._readable)

    async def _watch(self) -> None:
        """A word in time, and an end when the master says none."""
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
            silent_s = now - self._heard_at
            if silent_s * 1000 > settings.ha_housekeeping_interval:
                self._end(StreamError(f"the master was silent for {silent_s:.0f} s"))
            elif (now - self._reported_at) * 1000 >= settings.ha_send_heartbeat_interval:
                self._report()
