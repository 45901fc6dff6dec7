"""Listens, keeps the connections, closes those that are silent or slow, and stops in order."""

import asyncio
import contextlib
import resource
import socket
from collections import Counter
from collections.abc import Callable
from typing import Final

import structlog

from aerobee.broker.base.turns import Turns
from aerobee.broker.net.busy_poll import BusyPoll
from aerobee.broker.net.connection import Connection
from aerobee.broker.net.feed import Feed, Limits
from aerobee.broker.net.quotas import RefusingFeed
from aerobee.broker.net.tls import Tls, protocol_factory

log = structlog.get_logger("aerobee.server")

SWEEP_SECONDS: Final = 0.5  # between two sweeps
SWEEP_AT_ONCE: Final = 8  # before the clock is read
FILES_RESERVED: Final = 256  # open files that are left to the store, at least
FILES_RESERVED_SHARE: Final = 0.2  # ... and of all: many queues have many files
REFUSALS_LOGGED_EVERY: Final = 5.0
REFUSING_MAX: Final = 64  # refused connections that wait for the reason
REFUSING_S: Final = 5.0  # for their first request


class Server:
    """The listening ports of one process and their connections."""

    def __init__(
        self,
        make_feed: Callable[[Connection], Feed],
        limits: Limits | None = None,
        *,
        connections_max: int = 0,
        per_address_max: int = 0,
        turns: Turns | None = None,
        tls: Tls | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.busy_poll = BusyPoll(asyncio.get_running_loop())
        self.turns = Turns() if turns is None else turns
        self.make_feed = make_feed
        self.tls = tls
        self.connections: set[Connection] = set()
        self.connections_max = connections_max or _connections_allowed()
        self.per_address_max = per_address_max or self.connections_max
        self._by_address: Counter[str] = Counter()
        self._refusing: set[Connection] = set()  # refused; they get the reason
        self.on_open: list[Callable[[Connection], None]] = []
        self._listeners: list[asyncio.Server] = []
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._to_sweep: list[Connection] = []
        self._emptied: asyncio.Event = asyncio.Event()
        self._refused = 0
        self._refusal_logged_at = 0.0
        self._stopping = False

    async def listen(self, sock: socket.socket, *, backlog: int = 1024) -> None:
        """Accept connections on a bound socket, which is ours from now on."""
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(
            protocol_factory(lambda: Connection(self), self.tls),
            sock=sock,
            backlog=backlog,
            start_serving=False,
        )
        self._listeners.append(listener)  # before it can be cancelled: `stop` closes it
        await listener.start_serving()
        if self._sweep_timer is None:
            self._sweep_timer = loop.call_later(SWEEP_SECONDS, self._sweep)

    # --- called by connections

    def opened(self, connection: Connection) -> bool:
        if self._stopping:
            return False
        address = connection.peer[0]
        if (
            len(self.connections) >= self.connections_max
            or self._by_address[address] >= self.per_address_max
        ):
            self._log_refusal(connection)
            return False
        self.connections.add(connection)
        self._by_address[address] += 1
        for callback in self.on_open:
            callback(connection)
        return True

    def refusal(self, connection: Connection) -> Feed | None:
        """A few refused clients get the reason; telling all would cost as much as serving them."""
        if self._stopping or len(self._refusing) >= REFUSING_MAX:
            return None
        address = connection.peer[0]
        if self._by_address[address] < self.per_address_max:
            reason = f"the broker has {self.connections_max} connections, the most that are allowed"
            reason += " (maxConnections)"
        else:
            reason = f"Address:{address} has {self.per_address_max} connections, the most "
            reason += "that are allowed (maxConnectionsPerAddress)"
        self._refusing.add(connection)
        asyncio.get_running_loop().call_later(REFUSING_S, connection.abort)
        return RefusingFeed(connection, self.limits.frame_size_max, reason)

    def lost(self, connection: Connection) -> None:
        self._refusing.discard(connection)
        if connection in self.connections:
            self.connections.discard(connection)
            address = connection.peer[0]
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]
        if not self.connections:
            self._emptied.set()

    # --- ends

    async def stop(self, grace_seconds: float = 30.0) -> None:
        """Accept no connections and no requests, send the pending answers, close."""
        self._stopping = True
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        for connection in self.connections:
            connection.stop_reading()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace_seconds
        while any(connection.has_unsent for connection in self.connections):
            if loop.time() >= deadline:
                unsent = sum(connection.has_unsent for connection in self.connections)
                log.warning("stopped before clients had read all answers", connections=unsent)
                break
            await asyncio.sleep(0.005)
        await self._close_all()

    async def _close_all(self) -> None:
        self._emptied.clear()
        for connection in (*self.connections, *self._refusing):
            connection.close()
        if self.connections:
            try:
                await asyncio.wait_for(self._emptied.wait(), 1.0)
            except TimeoutError:
                for connection in list(self.connections):
                    connection.abort()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._emptied.wait(), 1.0)

    def _sweep(self) -> None:
        """Close connections that are idle or slow with a frame; there may be thousands."""
        self._to_sweep = list(self.connections)
        self._sweep_on()

    def _sweep_on(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._to_sweep:
            for connection in self._to_sweep[-SWEEP_AT_ONCE:]:
                connection.check_deadlines(now)
            del self._to_sweep[-SWEEP_AT_ONCE:]
            if self._to_sweep and self.turns.is_over():
                self.turns.later(self._sweep_on)
                return
        if not self._stopping:
            self._sweep_timer = loop.call_later(SWEEP_SECONDS, self._sweep)

    def _log_refusal(self, connection: Connection) -> None:
        self._refused += 1
        now = asyncio.get_running_loop().time()
        if now - self._refusal_logged_at >= REFUSALS_LOGGED_EVERY:
            log.warning(
                "connections refused: raise maxConnections or the limit of open files",
                most=self.connections_max,
                most_per_address=self.per_address_max,
                refused=self._refused,
                peer=connection.name,
            )
            self._refusal_logged_at = now
            self._refused = 0


def bind(host: str, port: int, *, is_found: bool = False) -> socket.socket:
    """A socket bound to `host` and `port` (0: a free one); OSError says which address failed.

    With SO_REUSEADDR two processes that start at the same time may bind one port, and the second
    fails when it listens. A configured port needs the option, to be bound again after a stop; a
    free port that we choose (`is_found`, or 0) gets it only once it is bound."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    reuse = socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
    try:
        if port and not is_found:
            sock.setsockopt(*reuse)
        sock.bind((host, port))
        sock.setsockopt(*reuse)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise OSError(
            error.errno,
            f"cannot listen on {host}:{port}: {error.strerror}; free the port or choose another",
        ) from None
    return sock


def bind_pair(host: str, port: int) -> tuple[socket.socket, socket.socket]:
    """Sockets for `port` and `port - 2`; with port 0 a free pair is found."""
    if port:
        main = bind(host, port)
        try:
            return main, bind(host, port - 2)
        except OSError:
            main.close()
            raise
    for _ in range(100):
        main = bind(host, 0)
        try:
            return main, bind(host, main.getsockname()[1] - 2, is_found=True)
        except (OSError, OverflowError):
            main.close()
    raise OSError(f"found no two free ports of {host} that lie 2 apart")


def _connections_allowed() -> int:
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 1_000_000
    return max(64, soft - max(FILES_RESERVED, int(soft * FILES_RESERVED_SHARE)))
