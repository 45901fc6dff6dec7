"""Batches that a thread makes ahead of need."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator

import pytest

from aerobee.pipeline.source.ahead import ahead


def test_the_batches_come_in_their_order() -> None:
    assert list(ahead(number for number in range(100))) == list(range(100))


def test_the_next_batch_is_made_before_it_is_asked_for() -> None:
    made: list[int] = []

    def batches() -> Generator[int, None, None]:
        for number in range(3):
            made.append(number)
            yield number

    taken = ahead(batches())
    assert next(taken) == 0
    while len(made) < 2:
        time.sleep(0.001)
    assert list(taken) == [1, 2]


def test_an_error_comes_after_the_batches_before_it() -> None:
    def batches() -> Generator[int, None, None]:
        yield 1
        raise ValueError("the second is damaged")

    taken = ahead(batches())
    assert next(taken) == 1
    with pytest.raises(ValueError, match="the second is damaged"):
        next(taken)


def test_who_stops_early_leaves_no_thread_and_no_open_source() -> None:
    closed: list[bool] = []
    threads = threading.active_count()

    def batches() -> Generator[int, None, None]:
        try:
            while True:
                yield 1
        finally:
            closed.append(True)

    taken = ahead(batches())
    assert next(taken) == 1
    taken.close()
    assert closed == [True]
    assert threading.active_count() == threads
