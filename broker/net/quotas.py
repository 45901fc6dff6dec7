"""Limits per address and per user: connections, requests in flight, bytes per second.

They exist only in a broker with such a limit. A connection counts for its address, and for the user
that authenticated its last request. Over a limit, requests that carry messages are answered with
SYSTEM_BUSY and the reason; heartbeats, offset commits and administration are not limited, so that a
client stays in its group while it waits.
"""

import asyncio
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog

from aerobee.broker.base.clock import Clock
from aerobee.broker.net.connection import Connection
from aerobee.broker.net.general_feed import GeneralFeed, is_message_request
from aerobee.broker.net.outbox import Part
from aerobee.broker.net.requests import Dispatcher
from aerobee.protocol.wire.codecs import ProtocolError, decode_command
from aerobee.protocol.wire.codes import ResponseCode
from aerobee.protocol.wire.command import RESPONSE_FLAG
from aerobee.protocol.wire.frame import RawFrame, encode_frame

log = structlog.get_logger("aerobee.quotas")

LOG_EVERY_S: Final = 1.0
COUNTED_FOR_S: Final = 0.01  # how long a count of many connections' requests stays valid
KEPT_MAX: Final = 10_000  # shares without a connection, kept for the bytes that they have used

InFlight = Callable[[Connection], int]


@dataclass(frozen=True, slots=True)
class Most:
    """Limits of one address, or of one user; 0: none."""

    connections: int = 0
    requests: int = 0
    bytes_per_second: int = 0


class Share:
    """What one address or one user has used."""

    __slots__ = ("_counted", "_counted_at", "_left", "_left_at", "connections", "name")

    def __init__(self, name: str, most: Most, now: float) -> None:
        self.name = name
        self.connections: set[Connection] = set()
        self._left = float(most.bytes_per_second)  # of a second's worth; less than 0: in debt
        self._left_at = now
        self._counted = 0
        self._counted_at = float("-inf")

    def charge(self, size: int, most: Most, now: float) -> None:
        """Count bytes that are sent already, even beyond the limit."""
        per_second = most.bytes_per_second
        self._left = min(per_second, self._left + (now - self._left_at) * per_second) - size
        self._left_at = now

    def take(self, size: int, most: Most, now: float) -> float:
        """Count bytes if the limit is not reached; returns 0.0 then, else the seconds to wait. One
        read may exceed what is left: then the next one has to wait."""
        self.charge(0, most, now)
        if self._left <= 0:
            return max(0.001, -self._left / most.bytes_per_second)
        self._left -= size
        return 0.0

    def in_flight(self, count: InFlight, now: float) -> int:
        if now - self._counted_at > COUNTED_FOR_S or len(self.connections) < 16:
            self._counted = sum(map(count, self.connections))
            self._counted_at = now
        return self._counted

    def admit(self, count: int) -> None:
        """More requests are in flight; a count of all connections includes them."""
        self._counted += count


class Shares:
    """All addresses, or all users."""

    def __init__(self, kind: str, most: Most, clock: Clock, in_flight: InFlight) -> None:
        self.kind = kind  # Address, User: also the end of the settings' names
        self.most = most
        self._clock = clock
        self._in_flight = in_flight
        self._by_name: dict[str, Share] = {}

    def join(self, name: str, connection: Connection) -> Share:
        share = self._by_name.get(name)
        if share is None:
            if len(self._by_name) > KEPT_MAX:
                self._by_name = {
                    key: each for key, each in self._by_name.items() if each.connections
                }
            share = self._by_name[name] = Share(name, self.most, self._clock.monotonic())
        share.connections.add(connection)
        return share

    def charge(self, share: Share, size: int) -> None:
        if self.most.bytes_per_second:
            share.charge(size, self.most, self._clock.monotonic())

    def has_too_many(self, share: Share) -> bool:
        return 0 < self.most.connections < len(share.connections)

    def why_over(self, share: Share, size: int) -> str:
        """Which limit is reached, as a sentence; "" if none is."""
        most, now = self.most, self._clock.monotonic()
        if self.has_too_many(share):
            return (
                f"{self.kind}:{share.name} has {len(share.connections)} connections, at most "
                f"{most.connections} are allowed (maxConnectionsPer{self.kind})"
            )
        if most.requests and share.in_flight(self._in_flight, now) >= most.requests:
            return self._why_full(share.name)
        if most.bytes_per_second and (wait := share.take(size, most, now)):
            return (
                f"{self.kind}:{share.name} is over {most.bytes_per_second} bytes a second "
                f"(maxBytesPerSecondPer{self.kind}); try again in {wait:.3f} s"
            )
        return ""

    def room(self, share: Share | None) -> tuple[float, str]:
        """How many more requests may be in flight, and the reason for the limit. For a user that is
        not known yet: as many as any user may have."""
        most = self.most.requests
        if not most:
            return math.inf, ""
        if share is None:
            return most, self._why_full("of this connection")
        used = share.in_flight(self._in_flight, self._clock.monotonic())
        return most - used, self._why_full(share.name)

    def _why_full(self, name: str) -> str:
        return (
            f"{self.kind}:{name} has {self.most.requests} requests in flight, more are not "
            f"allowed (maxRequestsPer{self.kind}); await answers first"
        )


class Quota:
    """One connection's use of the limits of its address and of its user."""

    def __init__(self, connection: Connection, addresses: Shares, users: Shares) -> None:
        self._connection = connection
        self._addresses = addresses
        self._users = users
        self._address = addresses.join(connection.peer[0], connection)
        self._user: Share | None = None
        self._written = 0
        self._unpaid = 0  # bytes sent before the user was known
        self._logged_at = float("-inf")
        connection.on_close.append(self._closed)

    def gate(self, frames: Sequence[RawFrame]) -> tuple[Sequence[Part], Sequence[RawFrame]]:
        """Answers to the requests over a limit, and the other requests."""
        reason = self._why_over(frames)
        room = 0.0
        if not reason:
            room, reason = min(self._addresses.room(self._address), self._users.room(self._user))
            if room == math.inf:
                return (), frames
        refused: list[RawFrame] = []
        others: list[RawFrame] = []
        admitted = 0
        for frame in frames:
            if not is_message_request(frame):
                others.append(frame)
            elif admitted < room:
                others.append(frame)
                admitted += 1
            else:
                refused.append(frame)
        self._address.admit(admitted)
        if self._user is not None:
            self._user.admit(admitted)
        if refused:
            self._log_refusal(reason)
        return refusals(refused, reason), others

    def _why_over(self, frames: Sequence[RawFrame]) -> str:
        connection = self._connection
        self._settle()
        size = sum(len(header) + len(body) for _, header, body in frames)
        reason = self._addresses.why_over(self._address, size)
        if not reason and self._user is None:
            self._unpaid += size
        elif not reason and self._user is not None:
            reason = self._users.why_over(self._user, size)
            if reason and self._users.has_too_many(self._user):
                _close_soon(connection, reason)
        return reason

    def _log_refusal(self, reason: str) -> None:
        connection = self._connection
        if connection.active_at - self._logged_at >= LOG_EVERY_S:
            self._logged_at = connection.active_at
            log.warning("over a limit: requests refused", peer=connection.name, reason=reason)

    def _settle(self) -> None:
        """Count the answers since the last requests, even if the new ones are refused."""
        written = self._connection.outbox.written
        answered, self._written = written - self._written, written
        self._follow_user()
        self._addresses.charge(self._address, answered)
        if self._user is None:
            self._unpaid += answered
        else:
            self._users.charge(self._user, answered + self._unpaid)
            self._unpaid = 0

    def _follow_user(self) -> None:
        name = self._connection.user
        if name != (self._user.name if self._user is not None else ""):
            if self._user is not None:
                self._user.connections.discard(self._connection)
            self._user = self._users.join(name, self._connection) if name else None

    def _closed(self, connection: Any) -> None:
        self._settle()
        self._address.connections.discard(connection)
        if self._user is not None:
            self._user.connections.discard(connection)


class RefusingFeed(GeneralFeed):
    """The feed of a connection over the limit: answers every request with the reason."""

    def __init__(self, connection: Connection, frame_size_max: int, reason: str) -> None:
        super().__init__(connection, Dispatcher({}), frame_size_max)
        self._reason = reason

    def _answer(self, frames: Sequence[RawFrame], claim: int) -> Sequence[Part]:
        _close_soon(self.connection, self._reason)
        return refusals(frames, self._reason)


def _close_soon(connection: Connection, reason: str) -> None:
    """Once the answer is written."""
    asyncio.get_running_loop().call_soon(connection.close, reason)


def refusals(frames: Collection[RawFrame], reason: str) -> list[Part]:
    """SYSTEM_BUSY to each that wants an answer."""
    out: list[Part] = []
    for frame in frames:
        try:
            command = decode_command(*frame)
        except ProtocolError:
            continue
        if not command.is_oneway and not command.flag & RESPONSE_FLAG:
            out.append(encode_frame(command.answer(ResponseCode.SYSTEM_BUSY, remark=reason)))
    return out


class Quotas:
    """The limits of a broker."""

    def __init__(self, address: Most, user: Most, clock: Clock, in_flight: InFlight) -> None:
        # `Server` checks the number of connections of an address when one opens.
        self._addresses = Shares("Address", address, clock, in_flight)
        self._users = Shares("User", user, clock, in_flight)

    def apply(self, feed: GeneralFeed) -> GeneralFeed:
        """The feed of a connection, with the limits before it."""
        feed.gate = Quota(feed.connection, self._addresses, self._users).gate
        return feed
