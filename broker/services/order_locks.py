"""Which client of a group may consume a queue in order: locks that expire, in memory only."""

from typing import Final

from aerobee.broker.base.clock import Clock
from aerobee.broker.base.refused import Refused
from aerobee.protocol.json.fastjson import MessageQueue
from aerobee.protocol.wire.codes import ResponseCode

LIFE_MS: Final = 60_000  # clients renew every 20 s and stop consuming after 30 s without
LOCKS_MAX: Final = 100_000  # some 20 MB
_SWEPT_AT_ONCE: Final = 64  # expired locks that a request removes beyond those that it may add


class _Lock:
    __slots__ = ("client_id", "queue", "refreshed_at_ms")

    def __init__(self, client_id: str, queue: MessageQueue, refreshed_at_ms: float) -> None:
        self.client_id = client_id
        self.queue = queue
        self.refreshed_at_ms = refreshed_at_ms


_Place = tuple[str, int]  # topic and queue id: a queue of ours has them whatever the broker's name


class OrderLocks:
    """Group -> queue -> the client that holds it."""

    def __init__(self, clock: Clock, life_ms: int = LIFE_MS, locks_max: int = LOCKS_MAX) -> None:
        self._clock = clock
        self._life_ms = life_ms
        self._locks_max = locks_max
        self._groups: dict[str, dict[_Place, _Lock]] = {}
        self._by_age: dict[tuple[str, _Place], _Lock] = {}  # the longest without refreshing first

    def __len__(self) -> int:
        """How many locks are kept, including expired ones not yet removed."""
        return len(self._by_age)

    def lock(self, group: str, client_id: str, queues: list[MessageQueue]) -> list[MessageQueue]:
        """Lock queues; returns those that the client holds now: its own, free and expired ones.
        Refused when the limit of locks leaves no room for any of them."""
        now_ms = self._now_ms()
        self._sweep(now_ms, len(queues) + _SWEPT_AT_ONCE)
        held = []
        for queue in queues:
            place = queue.topic, queue.queue_id
            lock = self._groups.get(group, {}).get(place)
            if lock is None:
                if len(self._by_age) >= self._locks_max:
                    continue
                lock = _Lock(client_id, queue, now_ms)
                self._groups.setdefault(group, {})[place] = lock
            elif lock.client_id == client_id or self._expired(lock, now_ms):
                lock.client_id = client_id
                lock.refreshed_at_ms = now_ms
                del self._by_age[group, place]
            else:
                continue
            self._by_age[group, place] = lock
            held.append(queue)
        if queues and not held and len(self._by_age) >= self._locks_max:
            raise Refused(
                ResponseCode.SYSTEM_BUSY,
                f"{self._locks_max} queues are locked already, more are not taken; locks that "
                f"nobody refreshes end after {self._life_ms // 1000} s: ask again then",
            )
        return held

    def unlock(self, group: str, client_id: str, queues: list[MessageQueue]) -> None:
        """Release those of `queues` that the client holds."""
        for queue in queues:
            place = queue.topic, queue.queue_id
            lock = self._groups.get(group, {}).get(place)
            if lock is not None and lock.client_id == client_id:
                self._remove(group, place)

    def has_live(self, group: str) -> bool:
        """Whether any queue of the group is locked: it consumes in order."""
        now_ms = self._now_ms()
        return any(not self._expired(lock, now_ms) for lock in self._groups.get(group, {}).values())

    def table(self, group: str) -> dict[MessageQueue, str]:
        """The live locks of a group: queue -> client id."""
        now_ms = self._now_ms()
        return {
            lock.queue: lock.client_id
            for lock in self._groups.get(group, {}).values()
            if not self._expired(lock, now_ms)
        }

    def _now_ms(self) -> float:
        """Not the time of day, which may be set back: a lock that is not refreshed must end."""
        return self._clock.monotonic() * 1000

    def _expired(self, lock: _Lock, now_ms: float) -> bool:
        return now_ms - lock.refreshed_at_ms > self._life_ms

    def _remove(self, group: str, place: _Place) -> None:
        del self._by_age[group, place]
        locks = self._groups[group]
        del locks[place]
        if not locks:
            del self._groups[group]

    def _sweep(self, now_ms: float, most: int) -> None:
        """Remove the oldest locks that have expired, a few at a time."""
        for _ in range(most):
            oldest = next(iter(self._by_age), None)
            if oldest is None or not self._expired(self._by_age[oldest], now_ms):
                return
            self._remove(*oldest)
