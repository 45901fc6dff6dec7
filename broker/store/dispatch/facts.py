"""The queue of facts: what append knows about its records, until they are dispatched.

When too many are pending they are dropped, and the log is scanned instead: `behind`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final

from aerobee.broker.compiled import hot
from aerobee.broker.store.log.facts import Facts, end_of

WAITING_MAX: Final = 200_000  # pending facts; beyond that, the log is scanned


def count_up_to(facts: Facts, offset: int) -> int:
    """How many of the facts' records end at `offset` or before."""
    if not isinstance(facts, list):
        return facts.count_up_to(offset)
    if not facts or end_of(facts[-1]) <= offset:
        return len(facts)
    return bisect_right(facts, offset, key=end_of)


class FactQueue:
    """Pending facts in log order."""

    __slots__ = ("_seen_to", "behind", "forgotten_to", "make", "waiting")

    def __init__(self) -> None:
        self.make: Callable[[], Facts] = list if hot is None else hot.Facts
        self.waiting: Facts = self.make()
        self.behind = False  # facts are missing: none is taken until the walk has reached the end
        self.forgotten_to = 0  # below, records may be of a topic that was deleted meanwhile
        self._seen_to = 0  # the limit of the last `newly_below`

    def offer(self, facts: Facts) -> None:
        """Facts of records just appended, in order."""
        if self.behind:
            return
        try:
            is_taken = len(self.waiting) <= WAITING_MAX and self.waiting.extend(facts) is not False
        except MemoryError:  # the records are in the log: the walk finds them there
            is_taken = False
        if not is_taken:
            self.fall_behind()

    def fall_behind(self) -> None:
        self.waiting = self.make()
        self.behind = True

    def first(self, limit: int, count_max: int) -> Facts:
        """The first facts whose records end at `limit` or before. To read only."""
        count = min(count_up_to(self.waiting, limit), count_max)
        return self.waiting[:count] if count < len(self.waiting) else self.waiting

    def newly_below(self, limit: int) -> tuple[int, Facts]:
        """How many end at `limit` or before, and those of them that did not at the last call."""
        count = count_up_to(self.waiting, limit)
        known = min(count_up_to(self.waiting, self._seen_to), count)
        self._seen_to = limit
        return count, self.waiting[known:count]

    def drop_up_to(self, offset: int) -> None:
        """Drop the facts of records that end at `offset` or before."""
        count = count_up_to(self.waiting, offset)
        if count == len(self.waiting):
            self.waiting = self.make()
        elif isinstance(self.waiting, list):
            del self.waiting[:count]
        else:
            self.waiting.drop(count)

    def forget(self, topic: str, log_end: int) -> None:
        """Skip queue entries for pending records of a deleted topic."""
        self.forgotten_to = log_end
        if not isinstance(self.waiting, list):
            self.waiting.forget(topic)
            return
        self.waiting = [
            fact if fact[0].topic != topic else (fact[0], -1, *fact[2:]) for fact in self.waiting
        ]
