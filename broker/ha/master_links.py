"""The master's sockets: one link for each slave that follows our log.

New records go out from the loop, right after the put. A slave that is far behind is served by a
thread, which hands the kernel whole pieces of the files: neither cold pages nor a slow slave stop
the loop. `sender` decides what to send and which acks count.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

from aerobee.broker.base.clock import Clock
from aerobee.broker.base.wake import Wake
from aerobee.broker.ha.admission import SIGN_IN_S, NotAdmitted, admitted
from aerobee.broker.ha.copies import Acknowledged, Who
from aerobee.broker.ha.epochs import EpochFile, Epochs
from aerobee.broker.ha.lag import behind_ms
from aerobee.broker.ha.link import Link
from aerobee.broker.net.tls import Tls
from aerobee.broker.settings import Settings
from aerobee.protocol.files.ids import parse_ip

if TYPE_CHECKING:
    from aerobee.broker.store.message_store import MessageStore

log = structlog.get_logger("aerobee.ha")

WATCH_S: Final = 0.25  # between two checks for due heartbeats and silent slaves
DRAIN_CHECK_S: Final = 0.005
SIGNING_IN_MAX: Final = 64  # connections that have not signed in ...
SIGNING_IN_PER_HOST_MAX: Final = 8  # ... of one host: a stranger must not keep the slaves out


class MasterLinks:
    """All slaves of this broker."""

    def __init__(
        self,
        settings: Settings,
        store: MessageStore,
        clock: Clock,
        copies: Acknowledged,
        epoch_file: EpochFile,
    ) -> None:
        self._epoch_file = epoch_file
        self.settings = settings
        self.store = store
        self.clock = clock
        self.copies = copies
        self.confirmed: Callable[[], int] | None = None  # an in-sync set's confirm offset
        self.links: list[Link] = []
        self.must_sign_in = False  # with a signed request on another port
        self.tls: Tls | None = None
        self._signing_in: dict[asyncio.Task[None], str] = {}  # and their hosts
        self._broker_ids: dict[tuple[str, int], int] = {}  # by the slave's end of the connection
        self._next_sign_in = asyncio.Event()
        self._push_is_due = False
        self._first_slave = Wake()  # wakes `watch`
        self._loop = asyncio.get_running_loop()

    # -- called by others

    def appended(self, end: int) -> None:
        """The log has grown to `end`. Many records of one turn of the loop are sent together."""
        if self._push_is_due:
            return
        for link in self.links[:]:
            if end >= link.gathers_until and not link.appended(may_wait=True):
                self._push_is_due = True
        if self._push_is_due:
            self._loop.call_soon(self._push)

    def identify(self, endpoint: tuple[str, int], broker_id: int) -> None:
        """The slave at the other end of this connection has sent its brokerId."""
        endpoint = _plain(*endpoint)
        self._broker_ids[endpoint] = broker_id
        self._loop.call_later(2 * SIGN_IN_S, self._forget_unless_linked, endpoint)
        self._next_sign_in.set()
        self._next_sign_in = asyncio.Event()
        for link in self.links:
            if link.peer == endpoint:
                link.identified(broker_id)

    def _forget_unless_linked(self, endpoint: tuple[str, int]) -> None:
        """Drop a sign-in whose connection never came: another process may get that port later."""
        if all(link.peer != endpoint for link in self.links):
            self._broker_ids.pop(endpoint, None)

    def who_is(self, endpoint: tuple[str, int]) -> Who:
        return self._broker_ids.get(endpoint, endpoint[0])

    def epochs(self) -> Epochs:
        """The epochs of our log. A log without slaves so far gets one, from its start on."""
        file = self._epoch_file
        if not file.epochs:
            file.save(Epochs().begun(1, self.store.min_physical_offset))
        return file.epochs

    def status(self) -> list[dict[str, Any]]:
        """As GET_BROKER_HA_STATUS shows the connections; `brokerId` and `behindMs` are ours."""
        end = self.store.committed_offset
        return [
            {
                "addr": f"{link.peer[0]}:{link.peer[1]}",
                "behindMs": behind_ms(self.store, link.sender.acked, self.clock.now_ms()),
                "brokerId": link.broker_id,
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
        """Accept slaves on a bound socket until cancelled."""
        listening.listen(64)
        failed = ""
        try:
            while True:
                try:
                    self._accept_slave(*await self._loop.sock_accept(listening))
                    failed = ""
                except OSError as error:  # temporary, such as no file descriptor left
                    if failed != str(error):
                        failed = str(error)
                        log.error("slaves cannot connect", reason=failed)
                    await self.clock.sleep(WATCH_S)
        finally:
            listening.close()
            for task in self._signing_in:
                task.cancel()
            for link in list(self.links):
                link.close("this broker stops")

    def _accept_slave(self, sock: socket.socket, address: tuple[Any, ...]) -> None:
        peer = _plain(str(address[0]), int(address[1]))
        hosts = list(self._signing_in.values())
        if len(hosts) >= SIGNING_IN_MAX or hosts.count(peer[0]) >= SIGNING_IN_PER_HOST_MAX:
            sock.close()
            log.warning("too many slaves are signing in", refused=f"{peer[0]}:{peer[1]}")
            return
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            sock.close()
            raise
        task = self._loop.create_task(self._admit(sock, peer))
        self._signing_in[task] = peer[0]
        task.add_done_callback(self._signing_in.pop)

    async def _admit(self, sock: socket.socket, peer: tuple[str, int]) -> None:
        tls = self.tls
        try:
            admitted_sock = await admitted(
                sock,
                signed_in=partial(self._signed_in, peer) if self.must_sign_in else None,
                context=tls.context if tls is not None else None,
                tls_only=tls is not None and tls.is_enforced,
            )
        except NotAdmitted as reason:
            sock.close()
            self._broker_ids.pop(peer, None)
            log.warning("a slave is refused", slave=f"{peer[0]}:{peer[1]}", reason=str(reason))
            return
        except asyncio.CancelledError:
            sock.close()
            raise
        self.links.append(Link(self, admitted_sock, peer))
        self.store.on_append(self.appended)
        self._first_slave.set()
        log.info("a slave has connected", slave=f"{peer[0]}:{peer[1]}")

    async def _signed_in(self, peer: tuple[str, int]) -> None:
        while peer not in self._broker_ids:
            await self._next_sign_in.wait()

    async def drain(self, seconds: float) -> None:
        """Before a stop: wait until the slaves have caught up, for so long at most."""
        end = self.store.committed_offset
        deadline = self._loop.time() + seconds
        for link in self.links[:]:
            link.push()
        while self._loop.time() < deadline and any(
            link.sender.is_open and link.sender.acked < end for link in self.links
        ):
            await self.clock.sleep(DRAIN_CHECK_S)

    def dropped(self, link: Link) -> None:
        if link in self.links:
            self.links.remove(link)
            if not self.links:
                self.store.on_append(None)
        self._broker_ids.pop(link.peer, None)
        self.copies.left(link)

    def _push(self) -> None:
        self._push_is_due = False
        for link in self.links[:]:
            link.appended()

    async def watch(self) -> None:
        """Send heartbeats and close silent connections, until cancelled."""
        while True:
            if not self.links:
                await self._first_slave.wait()
            await self.clock.sleep(WATCH_S)
            now = self.clock.monotonic()
            for link in list(self.links):
                link.watch(now)


def _plain(host: str, port: int) -> tuple[str, int]:
    """As both ends of a connection know it: a socket for IPv6 and IPv4 shows the latter inside the
    former, and each end names the interface of a link-local address by its own name."""
    try:
        return str(parse_ip(host)), port
    except ValueError:
        return host, port  # a host name
