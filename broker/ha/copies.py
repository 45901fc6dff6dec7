"""How much of the log the slaves have, counted by broker; and the puts that wait for copies.

A broker counts once, however many connections it has: by its brokerId if it has sent one, else
by its host. A put is acknowledged with `needed` copies beside our own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from aerobee.broker.base.clock import Clock
from aerobee.broker.store.durability.waiters import Waiters
from aerobee.broker.store.results import DurableCallback, PutStatus

Who = int | str  # brokerId or host


class Acknowledged(Protocol):
    """Receives the acks that links get from their slaves."""

    @property
    def are_awaited(self) -> bool:
        """Whether answers may wait for copies."""

    def acked(self, link: object, who: Who, end: int) -> None: ...
    def left(self, link: object) -> None: ...
    def is_in_sync(self, acked: int) -> bool: ...


class Copies:
    def __init__(
        self,
        clock: Clock,
        log_end: Callable[[], int],
        *,
        needed: int,
        behind_max: int,
        timeout_ms: int,
    ) -> None:
        """`behind_max`: a slave that lacks more bytes than this does not count as connected."""
        self._log_end = log_end
        self.needed = needed
        self._behind_max = behind_max
        self.waiters = Waiters(clock, timeout_ms / 1000, PutStatus.FLUSH_SLAVE_TIMEOUT)
        self._links: dict[object, tuple[Who, int]] = {}
        self._reached = 0

    @property
    def are_awaited(self) -> bool:
        return self.needed > 0

    # -- called by links

    def acked(self, link: object, who: Who, end: int) -> None:
        """The broker at the other end of the link has the log up to here."""
        self._links[link] = who, end
        reached = self.copied_offset
        if reached > self._reached:
            self._reached = reached
            self.waiters.reached(reached)

    def left(self, link: object) -> None:
        self._links.pop(link, None)

    # -- called by others

    def by_broker(self) -> dict[Who, int]:
        """How much of the log each has that is connected, by its newest connection: an older one
        may report a folder that is gone."""
        return dict(self._links.values())

    @property
    def copied_offset(self) -> int:
        """Up to where `needed` other brokers have the log."""
        ends = sorted(self.by_broker().values(), reverse=True)
        return ends[self.needed - 1] if 0 < self.needed <= len(ends) else 0

    def is_in_sync(self, acked: int) -> bool:
        return self._log_end() - acked < self._behind_max

    def _in_sync_count(self) -> int:
        too_few = self._log_end() - self._behind_max
        return sum([end > too_few for end in self.by_broker().values()])

    def when_copied(self, end: int, callback: DurableCallback) -> None:
        """Call back when enough brokers have it; at once when too few are connected."""
        if end <= self._reached:
            callback(PutStatus.PUT_OK)
        elif self._in_sync_count() < self.needed:
            callback(PutStatus.SLAVE_NOT_AVAILABLE)
        else:
            self.waiters.add(end, callback)
