"""The queue of facts: what append knows of its records, until they are dispatched.

When too many wait they are dropped, and the log is walked instead: `behind`.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from aerobee.broker.store.log.commitlog import Fact

WAITING_MAX: Final = 200_000  # facts kept; beyond, the log is walked


def end_of(fact: Fact) -> int:
    return fact[2] + fact[3]


def count_up_to(facts: list[Fact], offset: int) -> int:
    """How many of the facts' records end at `offset` or before."""
    if not facts or end_of(facts[-1]) <= offset:
        return len(facts)
    return bisect_right(facts, offset, key=end_of)


class FactQueue:
    """In the log's order. Hands out the first ones, and drops them when they are dispatched."""

    __slots__ = ("_seen_to", "behind", "forgotten_to", "waiting")

    def __init__(self) -> None:
        self.waiting: list[Fact] = []
        self.behind = False  # facts are missing: none is taken until the walk has reached the end
        self.forgotten_to = 0  # below, records may be of a topic that was deleted meanwhile
        self._seen_to = 0  # the limit of the last `newly_below`

    def offer(self, facts: list[Fact]) -> None:
        """Facts of records just appended, in order."""
        if self.behind:
            return
        if len(self.waiting) > WAITING_MAX:
            self.fall_behind()
        else:
            self.waiting += facts

    def fall_behind(self) -> None:
        self.waiting.clear()
        self.behind = True

    def first(self, limit: int, count_max: int) -> list[Fact]:
        """The first facts whose records end at `limit` or before. To read only."""
        count = min(count_up_to(self.waiting, limit), count_max)
        return self.waiting[:count] if count < len(self.waiting) else self.waiting

    def newly_below(self, limit: int) -> tuple[int, list[Fact]]:
        """How many end at `limit` or before, and those of them that did not at the last call."""
        count = count_up_to(self.waiting, limit)
        known = bisect_right(self.waiting, self._seen_to, 0, count, key=end_of)
        self._seen_to = limit
        return count, self.waiting[known:count]

    def drop_up_to(self, offset: int) -> None:
        """Records that end at `offset` or before are dispatched."""
        count = count_up_to(self.waiting, offset)
        if count == len(self.waiting):
            self.waiting = []
        else:
            del self.waiting[:count]

    def forget(self, topic: str, log_end: int) -> None:
        """Give no queue entries to waiting records of a topic that is deleted."""
        self.forgotten_to = log_end
        self.waiting = [
            fact if fact[0].topic != topic else (fact[0], -1, *fact[2:]) for fact in self.waiting
        ]
