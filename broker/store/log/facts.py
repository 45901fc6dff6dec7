"""Facts: what append knows about the records that it has written, for dispatch and flush.

Facts of messages that were encoded in C stay there, as a sequence that makes tuples on demand; all
others are lists of tuples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aerobee.broker.store.queues.consume_queue import ConsumeQueue

# queue, queue offset (-1: gets no queue entry), physical offset, size, store time, properties,
# sys flag
Fact = tuple[ConsumeQueue, int, int, int, int, str, int]

if TYPE_CHECKING:
    from aerobee.broker.compiled import _hot

    Facts = list[Fact] | _hot.Facts
else:
    Facts = object


def end_of(fact: Fact) -> int:
    return fact[2] + fact[3]


def store_time_of(fact: Fact) -> int:
    return fact[4]


def begin_of_all(facts: Facts) -> int:
    """Where the first record begins; there must be one."""
    return facts[0][2] if isinstance(facts, list) else facts.begin_offset()


def end_of_all(facts: Facts) -> int:
    """Where the last record ends; there must be one."""
    return end_of(facts[-1]) if isinstance(facts, list) else facts.end_offset()


def are_listened(facts: Facts) -> bool:
    """Whether a queue has listeners for new messages."""
    if isinstance(facts, list):
        return any([fact[0].listened for fact in facts])
    return facts.is_listened()


def spread_of(facts: Facts) -> tuple[int, int, bool]:
    """All three at once; there must be one."""
    if isinstance(facts, list):
        return facts[0][2], end_of(facts[-1]), are_listened(facts)
    return facts.spread()
