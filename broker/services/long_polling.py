"""Pulls that wait for a message: one table, one timer, no task for each.

A hold is woken by a message that its filter selects, or by its timeout; either way the pull runs
again and is answered. Holds of a client that disconnects are dropped.
"""

import asyncio
import heapq
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Final, Protocol

from aerobee.broker.base.clock import Clock
from aerobee.broker.base.reports import Reports
from aerobee.broker.store.reading.filter_time import FilterTime

if TYPE_CHECKING:
    from aerobee.broker.store.results import Arrival

HOLDS_MAX: Final = 100_000
OWNER_MAX: Final = 20_000
TICK_S: Final = 0.02  # deadlines are rounded up to this
TESTS_UNTIMED: Final = 3  # of each four
SWEEP_S: Final = 1.0  # between two checks, at most: a test's clock may jump


class Hold(Protocol):
    """A pull that waits."""

    topic: str
    queue_id: int
    queue_offset: int
    tick: int  # kept by LongPolling

    @property
    def owner(self) -> Hashable:
        """The client: its holds go with it."""

    def wants(self, arrival: "Arrival") -> bool: ...


class LongPolling:
    """All holds. `rerun` is called with those that are woken, a batch at a time."""

    def __init__(
        self,
        clock: Clock,
        rerun: Callable[[list[Hold]], None] | None = None,
        *,
        holds_max: int = HOLDS_MAX,
        owner_max: int = OWNER_MAX,
    ) -> None:
        self.rerun = rerun
        self.on_change: Callable[[str, int], None] | None = None  # first or last hold of a queue
        self.holds_max = holds_max
        self.owner_max = owner_max
        self._clock = clock
        self._reports = Reports(clock)
        self._by_queue: dict[tuple[str, int], dict[Hold, None]] = {}
        self._by_owner: dict[Hashable, dict[Hold, None]] = {}
        self._by_tick: dict[int, dict[Hold, None]] = {}
        self._ticks: list[int] = []  # a heap of the keys of _by_tick
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_tick = 0
        self._stopped = False

    def __len__(self) -> int:
        return self._count

    def count(self, topic: str, queue_id: int) -> int:
        """How many pulls wait at this queue."""
        return len(self._by_queue.get((topic, queue_id), ()))

    def held_by(self, owner: Hashable) -> int:
        """How many pulls of this client wait."""
        return len(self._by_owner.get(owner, ()))

    def waits_at(self, topic: str, queue_id: int) -> bool:
        """Whether a pull waits at this queue."""
        return (topic, queue_id) in self._by_queue

    def hold(self, hold: Hold, seconds: float) -> bool:
        """Hold a pull until its timeout; False when too many are held already."""
        if self._stopped:
            return False
        its = self._by_owner.get(hold.owner)
        if self._count >= self.holds_max:
            self._log_refused(hold, "maxHeldPulls", self.holds_max)
            return False
        if its is None:
            its = self._by_owner[hold.owner] = {}
        elif len(its) >= self.owner_max:
            self._log_refused(hold, "maxHeldPullsPerConnection", self.owner_max)
            return False
        tick = hold.tick = int((self._clock.monotonic() + seconds) / TICK_S) + 1
        holds = self._by_queue.get((hold.topic, hold.queue_id))
        if holds is None:
            holds = self._by_queue[hold.topic, hold.queue_id] = {}
            if self.on_change is not None:
                self.on_change(hold.topic, hold.queue_id)
        holds[hold] = None
        its[hold] = None
        due = self._by_tick.get(tick)
        if due is None:
            due = self._by_tick[tick] = {}
            heapq.heappush(self._ticks, tick)
        due[hold] = None
        self._count += 1
        if self._timer is None or tick < self._timer_tick:
            self._arm()
        return True

    def arrived(self, arrivals: "list[Arrival]") -> None:
        """Wake the holds that want one of these; the store calls it after each dispatch."""
        if not self._count:
            return
        by_queue = self._by_queue
        woken: dict[Hold, None] = {}
        unwanted = 0  # tests that a filter did not pass
        time: FilterTime | None = None
        is_over = False  # the others are woken without a test: their pulls run filters in turns
        for arrival in arrivals:
            holds = by_queue.get((arrival.topic, arrival.queue_id))
            if holds:
                queue_offset = arrival.queue_offset
                for hold in holds:
                    if queue_offset < hold.queue_offset or hold in woken:
                        continue
                    if is_over or hold.wants(arrival):
                        woken[hold] = None
                        continue
                    unwanted += 1
                    if time is None:
                        time = FilterTime()
                    elif not unwanted & TESTS_UNTIMED:
                        is_over = time.is_over
        if woken:
            self._wake(list(woken))

    def wake_queue(self, topic: str, queue_id: int) -> None:
        """Run the pulls of a queue again, whatever they wait for: its offsets were reset."""
        self._wake(list(self._by_queue.get((topic, queue_id), ())))

    def drop(self, owner: Hashable) -> None:
        """Forget the holds of a client that has gone."""
        self._remove(list(self._by_owner.get(owner, ())))

    def stop(self) -> None:
        """Answer every held pull, and hold no more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake([hold for holds in self._by_queue.values() for hold in holds])

    # --- inside

    def _log_refused(self, hold: Hold, setting: str, most: int) -> None:
        self._reports.log(
            "a pull is answered at once: too many wait for a message",
            setting,
            level="warning",
            peer=str(hold.owner),
            topic=hold.topic,
            limit=f"{setting}={most}",
        )

    def _wake(self, holds: list[Hold]) -> None:
        self._remove(holds)
        if holds and self.rerun is not None:
            self.rerun(holds)

    def _remove(self, holds: list[Hold]) -> None:
        """One loop without calls of ours: thousands may wait for the same message."""
        by_queue, by_owner, by_tick = self._by_queue, self._by_owner, self._by_tick
        for hold in holds:
            key, owner = (hold.topic, hold.queue_id), hold.owner
            there = by_queue.get(key)
            if there is not None:
                there.pop(hold, None)
                if not there:
                    del by_queue[key]
                    if self.on_change is not None:
                        self.on_change(*key)
            its = by_owner.get(owner)
            if its is not None:
                its.pop(hold, None)
                if not its:
                    del by_owner[owner]
            due = by_tick.get(hold.tick)
            if due is not None:
                due.pop(hold, None)
        self._count -= len(holds)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_tick = self._ticks[0]
        delay = min(SWEEP_S, max(0.0, self._timer_tick * TICK_S - self._clock.monotonic()))
        self._timer = asyncio.get_running_loop().call_later(delay, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now_tick = int(self._clock.monotonic() / TICK_S)
        expired: list[Hold] = []
        while self._ticks and self._ticks[0] <= now_tick:
            expired += self._by_tick.pop(heapq.heappop(self._ticks))
        self._wake(expired)
        while self._ticks and not self._by_tick[self._ticks[0]]:
            del self._by_tick[heapq.heappop(self._ticks)]
        if self._ticks and self._timer is None and not self._stopped:
            self._arm()
