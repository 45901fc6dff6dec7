"""Busy polling: after a request for the next one, and for a disk or a slave while it is quick and
no other process needs the core."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

import pytest

from aerobee.broker.net import busy_poll
from aerobee.broker.net.busy_poll import OTHERS_S, QUICK_S, SKIPS_MAX, STAY_AWAKE_S, BusyPoll


class Turning:
    """A loop and a clock that a test advances by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.due: deque[Callable[[], None]] = deque()
        self.now_s = 1.0
        monkeypatch.setattr(busy_poll, "perf_counter", lambda: self.now_s)
        self.others_s = 0.0  # that other processes use the core each turn
        monkeypatch.setattr(busy_poll, "sched_yield", self._yield)
        self.poll = BusyPoll(cast(asyncio.AbstractEventLoop, self))

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.due.append(callback)

    def _yield(self) -> None:
        self.now_s += self.others_s

    def is_awake_after(self, seconds: float) -> bool:
        self.now_s += seconds
        for _ in range(len(self.due)):
            self.due.popleft()()
        return bool(self.due)


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Turning:
    return Turning(monkeypatch)


def test_a_request_keeps_the_loop_awake_for_a_moment(loop: Turning) -> None:
    loop.poll.touch()
    assert loop.is_awake_after(STAY_AWAKE_S / 2)
    loop.poll.touch()
    assert loop.is_awake_after(STAY_AWAKE_S / 2)
    assert not loop.is_awake_after(STAY_AWAKE_S)


def test_a_quick_disk_is_waited_for_awake_each_time(loop: Turning) -> None:
    for _ in range(3):
        loop.poll.expect()
        assert loop.is_awake_after(QUICK_S * 0.9)
        loop.poll.touch()  # its answer arrives
        assert not loop.is_awake_after(QUICK_S)


def slept_through(loop: Turning, *, then_quick: bool = False) -> int:
    """How many answers the loop sleeps for until it polls for one; that one is late."""
    count = 0
    while True:
        loop.poll.expect()
        if loop.is_awake_after(0):
            if then_quick:
                loop.poll.touch()
            assert not loop.is_awake_after(QUICK_S)
            return count
        count += 1


def test_a_slow_disk_is_waited_for_awake_more_and_more_seldom(loop: Turning) -> None:
    found = [slept_through(loop) for _ in range(10)]
    assert found == [0, 1, 2, 4, 8, 16, 32, 64, SKIPS_MAX, SKIPS_MAX]


def test_quick_answers_make_the_loop_forget_slow_ones(loop: Turning) -> None:
    found = [slept_through(loop, then_quick=turn >= 4) for turn in range(8)]
    assert found == [0, 1, 2, 4, 8, 0, 0, 0]
    found = [slept_through(loop) for _ in range(2)]
    assert found == [0, 1]


def test_waiting_for_a_disk_does_not_keep_the_core_from_others(loop: Turning) -> None:
    loop.others_s = OTHERS_S * 0.4
    loop.poll.expect()
    assert loop.is_awake_after(0)
    assert loop.is_awake_after(0)
    assert not loop.is_awake_after(0)  # other processes used too much of the core
    loop.poll.expect()
    assert not loop.is_awake_after(0)


def test_a_short_guest_on_the_core_does_not_end_the_wait(loop: Turning) -> None:
    loop.poll.expect()
    loop.others_s = OTHERS_S * 0.9
    assert loop.is_awake_after(0)
    loop.others_s = 0.0
    assert loop.is_awake_after(QUICK_S / 2)
