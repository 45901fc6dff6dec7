"""Which client of a group may consume a queue in order: locks that expire, in memory only."""

from typing import Final

from aerobee.broker.clock import Clock
from aerobee.protocol.fastjson import MessageQueue

LIFE_MS: Final = 60_000  # clients renew every 20 s and stop consuming after 30 s without
GROUPS_MAX: Final = 100_000  # more groups than that and the expired ones are swept first


class _Lock:
    __slots__ = ("client_id", "refreshed_at_ms")

    def __init__(self, client_id: str, refreshed_at_ms: float) -> None:
        self.client_id = client_id
        self.refreshed_at_ms = refreshed_at_ms


class OrderLocks:
    """Group -> queue -> the client that holds it."""

    def __init__(self, clock: Clock, life_ms: int = LIFE_MS) -> None:
        self._clock = clock
        self._life_ms = life_ms
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}

    def lock(self, group: str, client_id: str, queues: list[MessageQueue]) -> list[MessageQueue]:
        """Those of `queues` that the client holds from now on: its own, free and expired ones."""
        now_ms = self._now_ms()
        if group not in self._groups and len(self._groups) >= GROUPS_MAX:
            self._sweep(now_ms)
        locks = self._groups.setdefault(group, {})
        held = []
        for queue in queues:
            lock = locks.get(queue)
            if lock is None:
                locks[queue] = _Lock(client_id, now_ms)
            elif lock.client_id == client_id or self._expired(lock, now_ms):
                lock.client_id = client_id
                lock.refreshed_at_ms = now_ms
            else:
                continue
            held.append(queue)
        return held

    def unlock(self, group: str, client_id: str, queues: list[MessageQueue]) -> None:
        """Give up those of `queues` that the client holds."""
        locks = self._groups.get(group)
        if locks is None:
            return
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id == client_id:
                del locks[queue]
        if not locks:
            del self._groups[group]

    def has_live(self, group: str) -> bool:
        """Whether any queue of the group is locked: it consumes in order."""
        now_ms = self._now_ms()
        return any(not self._expired(lock, now_ms) for lock in self._groups.get(group, {}).values())

    def table(self, group: str) -> dict[MessageQueue, str]:
        """The live locks of a group: queue -> client id."""
        now_ms = self._now_ms()
        return {
            queue: lock.client_id
            for queue, lock in self._groups.get(group, {}).items()
            if not self._expired(lock, now_ms)
        }

    def _now_ms(self) -> float:
        """Not the time of day, which may be set back: a lock that nobody refreshes must end."""
        return self._clock.monotonic() * 1000

    def _expired(self, lock: _Lock, now_ms: float) -> bool:
        return now_ms - lock.refreshed_at_ms > self._life_ms

    def _sweep(self, now_ms: float) -> None:
        self._groups = {
            group: live
            for group, locks in self._groups.items()
            if (live := {q: lock for q, lock in locks.items() if not self._expired(lock, now_ms)})
        }
