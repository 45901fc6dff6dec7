"""The slave's socket: follows a master's log, and reconnects whenever the link breaks."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import structlog

from aerobee.broker.base.clock import Clock
from aerobee.broker.ha.admission import under_tls
from aerobee.broker.ha.epochs import FOREVER, EpochFile
from aerobee.broker.ha.follower import Follower
from aerobee.broker.ha.master_client import (
    MasterAddress,
    MasterClient,
    MasterFacts,
    MasterRefused,
)
from aerobee.broker.ha.receiver import Receiver
from aerobee.broker.ha.rejoin import Cut
from aerobee.broker.ha.stream import READ_BYTES, Stream, epoch_ack, plain_report
from aerobee.broker.ha.wire import StreamError, decode_welcome, encode_hello
from aerobee.broker.net.inner_client import inner_tls
from aerobee.broker.net.request_link import LinkError
from aerobee.broker.settings import Settings
from aerobee.broker.store.log.commitlog import LogFull
from aerobee.broker.store.results import PutStatus
from aerobee.protocol.files.record_layout import BLANK_MAGIC, BLANK_SIZE, SIZE_AND_MAGIC
from aerobee.protocol.wire.codes import RequestCode

if TYPE_CHECKING:
    from aerobee.broker.store.message_store import MessageStore

log = structlog.get_logger("aerobee.ha")

AGAIN_S: Final = 1.0  # between two tries to follow
SOON_S: Final = 0.2  # with an arbiter: the master it names is up, or about to be
CONNECT_S: Final = 5.0
JOIN_S: Final = 20.0

_OTHER: Final = (
    ": it has lost a part of its log, or is another log; keep this folder if you need its "
    "messages, and start with an empty one"
)
_NO_MASTER: Final = (
    "no name server knows a master of this name yet",
    "{} knows no running master of this name",
)
FIRST_BYTE: Final = b"\0"  # of every record, as none takes 16 MiB


class SlaveLink:
    """Replicates the master's log."""

    def __init__(
        self,
        settings: Settings,
        store: MessageStore,
        clock: Clock,
        find_master: Callable[[], MasterAddress | None],
        epoch_file: EpochFile,
        on_cut: Callable[[int], None],
        on_confirm: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`on_cut` is called with the offset at which our log must be cut before we can follow:
        beyond it, it differs from the master's."""
        self._epoch_file = epoch_file
        self._on_cut = on_cut
        self._on_confirm = on_confirm
        # The master's confirm offset, at first and now; -1: not known yet.
        self.first_confirmed = self._confirmed = -1
        self._settings = settings
        self._store = store
        self._clock = clock
        self._find_master = find_master
        self._logged = ""  # the last logged reason why we do not follow
        self._stream: Stream | None = None
        self.master: MasterAddress | None = None
        self.facts: MasterFacts | None = None  # of the master that we follow

    @property
    def _ha_address(self) -> str:
        reported = self.facts.ha_address if self.facts is not None else ""
        return (self.master.ha if self.master is not None else "") or reported

    @property
    def is_following(self) -> bool:
        return self._stream is not None

    def status(self) -> dict[str, Any]:
        """As GET_BROKER_HA_STATUS shows a slave's side."""
        stream = self._stream
        return {
            "lastReadTimestamp": stream.read_ms if stream else 0,
            "lastWriteTimestamp": stream.written_ms if stream else 0,
            "masterAddr": self._ha_address if stream else "",
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
                    text = _NO_MASTER[self._settings.has_arbiter]
                    raise LinkError(text.format(self._settings.arbiter_name))
                await self._follow(master)
            except (OSError, LinkError, StreamError, LogFull, ValueError) as error:
                self._log_failure(str(error) or type(error).__name__)
            await self._clock.sleep(SOON_S if self._settings.has_arbiter else AGAIN_S)

    def _log_failure(self, reason: str) -> None:
        if reason != self._logged:
            log.warning("not following the master", reason=reason, then="retried every second")
        self._logged = reason

    async def _follow(self, master: MasterAddress) -> None:
        client = MasterClient(master.main, self._settings)
        self.first_confirmed = self._confirmed = -1
        try:
            self.facts = facts = await client.facts()
            self._check_file_size(facts)
            await self._settle()
            ha = master.ha or facts.ha_address  # a controller does not know it
            host, _, port = ha.rpartition(":")
            async with asyncio.timeout(CONNECT_S):
                sock = await _connect(host.strip("[]"), int(port))
            try:
                if facts.is_ours:
                    await self._identify(client, sock)
                    if (context := inner_tls(self._settings)) is not None:
                        sock = await under_tls(sock, context, host.strip("[]"))
                has_epochs = facts.has_epochs or self._settings.enable_controller_mode
                join = self._join_with_epochs if has_epochs else self._join_plain
                async with asyncio.timeout(JOIN_S):
                    joined = await join(client, facts, sock)
            except BaseException:
                sock.close()
                raise
        finally:
            client.close()
        if joined is None:  # our log must be cut first
            sock.close()
            return
        stream, first = joined
        self._stream, self._logged = stream, ""
        log.info(
            "following the master",
            master=ha,
            from_offset=self._store.max_physical_offset,
            epoch=self._epoch_file.epochs.last,
        )
        try:
            await stream.run(first)
        finally:
            self._stream = None

    def _on_confirmed_offset(self, end: int) -> None:
        if self.first_confirmed < 0:
            self.first_confirmed = end
        if end > self._confirmed:
            self._confirmed = end
            self._on_confirm(end)

    async def _settle(self) -> None:
        """Flush first if SYNC_FLUSH: our first report acknowledges all that we have."""
        store = self._store
        if Follower(store, self._epoch_file).is_settled:
            return
        flushed: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()

        def on_flushed(status: PutStatus) -> None:
            if not flushed.done():
                flushed.set_result(status)

        store.when_durable(store.max_physical_offset, on_flushed)
        if (status := await flushed) is not PutStatus.PUT_OK:
            raise StreamError(f"our log is not on disk: {status.name}")

    def _check_file_size(self, facts: MasterFacts) -> None:
        size = self._settings.mapped_file_size_commit_log
        if facts.file_size != size:
            raise StreamError(
                f"the master's log files have {facts.file_size} bytes, ours {size}: set "
                f"mappedFileSizeCommitLog={facts.file_size} for an empty folder"
            )

    def _stream_of(
        self,
        facts: MasterFacts,
        sock: socket.socket,
        receiver: Receiver,
        encode_report: Callable[[int], bytes],
    ) -> Stream:
        acks_are_awaited = facts.role != "ASYNC_MASTER" or self._settings.has_arbiter
        return Stream(
            self._settings,
            self._store,
            self._clock,
            sock,
            receiver,
            encode_report,
            may_gather=not acks_are_awaited,
        )

    # -- the stream with epochs

    async def _join_with_epochs(
        self, client: MasterClient, facts: MasterFacts, sock: socket.socket
    ) -> tuple[Stream, bytes] | None:
        """None: our log has to be cut first, which was requested."""
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(sock, encode_hello(self._settings.broker_id))
        received = b""
        while (answer := decode_welcome(received)) is None:
            data = await loop.sock_recv(sock, READ_BYTES)
            if not data:
                raise StreamError("the master has closed the connection at our handshake")
            received += data
        welcome, rest = answer
        follower = Follower(self._store, self._epoch_file, self._on_confirmed_offset)
        plan = follower.plan(welcome, facts.log_start)
        if isinstance(plan, Cut):
            if self._store.min_physical_offset < self._store.max_physical_offset:
                await self._compare(client, facts, plan.end)
            self._on_cut(plan.end)
            return None
        await self._compare(client, facts)
        receiver = follower.begin(plan)
        return self._stream_of(facts, sock, receiver, epoch_ack), rest

    # -- the plain stream

    async def _join_plain(
        self, client: MasterClient, facts: MasterFacts, sock: socket.socket
    ) -> tuple[Stream, bytes]:
        receiver = self._receiver(facts)
        await self._compare(client, facts)
        return self._stream_of(facts, sock, receiver, plain_report), b""

    def _receiver(self, facts: MasterFacts) -> Receiver:
        """Where to start; StreamError when our log is not a prefix of the master's."""
        size = self._settings.mapped_file_size_commit_log
        end = self._store.max_physical_offset
        if not self._store.commit_log.files.files:
            known = b"" if facts.log_start else FIRST_BYTE
            return Receiver(facts.log_start, size, known)
        if end > facts.log_end:
            raise StreamError(
                f"our log ends at {end}, the master's at {facts.log_end}: this is not a copy of "
                f"it; send to this broker as a master, or begin with an empty folder"
            )
        if end < facts.log_start:
            raise StreamError(
                f"our log ends at {end}, the master's begins at {facts.log_start}: too much is "
                f"missing; begin with an empty folder"
            )
        return Receiver(end, size)

    async def _compare(
        self, client: MasterClient, facts: MasterFacts, before: int = FOREVER
    ) -> None:
        """Our last message, before this offset, must be the master's as well: it may have lost the
        end of its log and written other messages there since. StreamError then."""
        tail = self._store.log_tail(before)
        if tail.end > before:
            raise StreamError(
                f"the master has a record's end at {before}, where we have none{_OTHER}"
            )
        blank_at = tail.blank_at if tail.blank_at is not None else -1
        if blank_at >= facts.log_start and await self._record_at(client, blank_at):
            raise StreamError(f"our file ends at {blank_at}, the master's does not{_OTHER}")
        if tail.record is None or tail.record[0] < facts.log_start:
            return
        ours = self._store.read_log(*tail.record)
        if ours != await self._record_at(client, tail.record[0]):
            raise StreamError(f"our message at {tail.record[0]} is not the master's{_OTHER}")

    async def _record_at(self, client: MasterClient, offset: int) -> bytes:
        """The master's record at this offset; empty: it has none."""
        try:
            answer = await client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)})
        except MasterRefused:
            return b""
        found = bytes(answer.body)
        is_blank = len(found) >= BLANK_SIZE and SIZE_AND_MAGIC.unpack_from(found)[1] == BLANK_MAGIC
        return b"" if is_blank else found  # Java brokers take the end of a file for a record

    async def _identify(self, client: MasterClient, sock: socket.socket) -> None:
        """Tell the master which broker uses this connection, so that our acks count for our
        brokerId, whatever our host."""
        host, port = sock.getsockname()[:2]
        await client.ask(
            RequestCode.EXCHANGE_BROKER_HA_INFO,
            {"slaveId": str(self._settings.broker_id), "slaveHost": host, "slavePort": str(port)},
        )


async def _connect(host: str, port: int) -> socket.socket:
    """Connect to the first address of the host that accepts."""
    loop = asyncio.get_running_loop()
    failure: OSError | None = None
    for family, kind, protocol, _, address in await loop.getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    ):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(sock, address)
            if sock.getsockname() == sock.getpeername():  # nobody listens: TCP self-connect
                raise ConnectionRefusedError(f"connected to ourselves at {host}:{port}")
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure or OSError(f"{host} has no address")
