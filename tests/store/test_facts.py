"""The queue of facts that waits in C gives out what a list of tuples would."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from aerobee.broker.compiled import hot
from aerobee.broker.store.dispatch.facts import FactQueue
from aerobee.broker.store.log.facts import are_listened, begin_of_all, end_of_all

pytestmark = pytest.mark.skipif(hot is None, reason="this installation is pure Python")
TEXTS = ["", "KEYS\x01k", "TAGS\x01ü\x02", "a\x01" + "b" * 3000, "\U0001f41d"]


def queue_of(make: Callable[[], Any]) -> FactQueue:
    queue = FactQueue()
    queue.make = make
    queue.waiting = make()
    return queue


class Log:
    """Makes facts as an append does."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.queues: list[Any] = [_queue(f"T{number % 3}") for number in range(7)]
        self.end = 0

    def append(self, count: int) -> list[Any]:
        facts = []
        for _ in range(count):
            size = self.draw.randrange(91, 5000)
            queue, text = self.draw.choice(self.queues), self.draw.choice(TEXTS)
            number = self.draw.choice([-1, 0, 1 << 40])
            facts.append((queue, number, self.end, size, 1_700_000_000_000, text, 12))
            self.end += size
        return facts


class _Named:
    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.listened = False


def _queue(topic: str) -> Any:
    """Only a queue's name and listeners are needed here."""
    return _Named(topic)


@pytest.mark.parametrize("seed", range(5))
def test_both_queues_hold_the_same(seed: int) -> None:
    assert hot is not None
    log = Log(seed)
    one, two = queue_of(list), queue_of(hot.Facts)
    for _ in range(400):
        some = log.append(log.draw.randrange(9))
        one.offer(some)
        two.offer(some)
        limit = log.draw.randrange(log.end + 1)
        assert list(two.first(limit, 50)) == list(one.first(limit, 50))
        (count, newly), (count_two, newly_two) = one.newly_below(limit), two.newly_below(limit)
        assert (count_two, list(newly_two)) == (count, list(newly))
        for queue in log.queues:
            queue.listened = log.draw.random() < 0.05
        assert are_listened(two.waiting) == are_listened(one.waiting)
        if one.waiting:
            assert begin_of_all(two.waiting) == begin_of_all(one.waiting)
            assert end_of_all(two.waiting) == end_of_all(one.waiting)
            assert two.waiting[-1] == one.waiting[-1]
        if log.draw.random() < 0.3:
            one.drop_up_to(limit)
            two.drop_up_to(limit)
        if log.draw.random() < 0.05:
            one.forget("T1", log.end)
            two.forget("T1", log.end)
        assert len(two.waiting) == len(one.waiting)
        assert list(two.waiting) == list(one.waiting)
        assert list(reversed(two.waiting)) == list(reversed(one.waiting))
        assert list(two.waiting[2:5]) == list(one.waiting[2:5])


def test_a_text_that_cannot_be_stored_makes_the_queue_walk_the_log() -> None:
    assert hot is not None
    queue = queue_of(hot.Facts)
    queue.offer([(_queue("T"), 0, 0, 100, 1, "half a character: \ud800", 0)])
    assert queue.behind and not queue.waiting


def test_there_is_no_fact_outside() -> None:
    assert hot is not None
    facts = hot.Facts()
    assert facts.extend([(_queue("T"), 0, 0, 100, 1, "", 0)] * 3)
    for number in (3, -4, 1 << 62):
        with pytest.raises(IndexError):
            facts[number]
    with pytest.raises(ValueError):
        facts.drop(4)
    with pytest.raises(ValueError):
        facts[::2]
    facts.drop(3)
    assert not facts and list(facts) == [] and facts.count_up_to(10) == 0


def test_facts_for_which_there_is_no_memory_are_looked_up_in_the_log() -> None:
    class Full(list[Any]):
        def extend(self, _: Any) -> None:
            raise MemoryError

    queue = queue_of(Full)
    queue.offer([(_queue("T"), 0, 0, 100, 1_700_000_000_000, "", 0)])
    assert queue.behind and not queue.waiting
