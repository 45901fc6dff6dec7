"""The timers of one second, in the order of their times, as arrays, which take little memory."""

import heapq
from array import array
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

import numpy as np

from aerobee.broker.services.timers.messages import unit_deliver_ms, unit_recalls
from aerobee.broker.services.timers.timer_log import MAGIC_DELETE, MAGIC_ROLL, NONE, TimerLog
from aerobee.broker.services.timers.wheel import TimerWheel

if TYPE_CHECKING:
    from aerobee.broker.store.message_store import MessageStore

Place = tuple[int, int]  # deliver time and position in the timer log: the order of firing
FIRST_PLACE: Final[Place] = (0, -1)


class TimerSlot:
    """The pending units of one second. `add` is for timers that are set while it runs."""

    def __init__(self, second: int) -> None:
        self.second = second
        self.recalled: set[str] = set()  # "topic+unique key"
        self.recalls: list[int] = []  # positions of the recall units
        self.unread: OSError | None = None  # the error if a recall cannot be read
        self.has_fired = False  # partly, before the start
        self.log_start = 0  # its copies are in the store's log from this offset on
        self._deliver = array("q")
        self._position = array("q")
        self._order = array("q")
        self._at = 0
        self._late: list[tuple[int, int]] = []

    @property
    def waiting(self) -> int:
        return len(self._order) - self._at + len(self._late)

    def add(self, deliver_ms: int, position: int) -> None:
        heapq.heappush(self._late, (deliver_ms, position))

    def peek(self) -> Place | None:
        """The next to fire."""
        late = self._late[0] if self._late else None
        if self._at >= len(self._order):
            return late
        index = self._order[self._at]
        place = (self._deliver[index], self._position[index])
        return place if late is None or place < late else late

    def pop(self) -> None:
        """Remove the one that `peek` returned."""
        if self._late and self._late[0] == self.peek():
            heapq.heappop(self._late)
        else:
            self._at += 1

    def take(self, deliver: "array[int]", positions: "array[int]") -> None:
        """Fill it, in any order."""
        self._deliver, self._position = deliver, positions
        times = np.frombuffer(deliver, np.int64)
        order = np.lexsort((np.frombuffer(positions, np.int64), times))
        self._order = array("q", order.astype(np.int64).tobytes())


def load_slot(
    store: "MessageStore",
    timer_log: TimerLog,
    wheel: TimerWheel,
    second: int,
    after: Place = FIRST_PLACE,
    fired: Collection[int] = (),
) -> TimerSlot:
    """The second's timers after a place, without those in `fired`, and which are recalled."""
    slot = TimerSlot(second)
    deliver, positions = array("q"), array("q")
    position = wheel.get(second).last
    while position != NONE:
        unit = timer_log.read(position)
        if unit is None or unit.slot_ms // 1000 != second:
            break
        if unit.physical_offset in fired:
            slot.has_fired = True
        elif unit.magic & MAGIC_DELETE and not unit.magic & MAGIC_ROLL:
            slot.recalls.append(position)
            try:
                if key := unit_recalls(store, unit):
                    slot.recalled.add(key)
            except OSError as error:
                slot.unread = error
        else:
            try:
                deliver_ms = unit_deliver_ms(store, unit)
            except OSError:  # unknown: the end of the second is not too early
                deliver_ms = (second + 1) * 1000
            if (deliver_ms, position) > after:
                deliver.append(deliver_ms)
                positions.append(position)
        position = unit.previous
    slot.take(deliver, positions)
    return slot
