"""Staying awake: after a request for the next one, and for a disk as long as it is a quick one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

import pytest

from aerobee.broker.net import busy_poll
from aerobee.broker.net.busy_poll import QUICK_DISK_S, SLOW_SKIPS, STAY_AWAKE_S, BusyPoll


class Turning:
    """A loop whose turns, and a clock whose seconds, go when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.due: deque[Callable[[], None]] = deque()
        self.now_s = 1.0
        monkeypatch.setattr(busy_poll, "perf_counter", lambda: self.now_s)
        self.poll = BusyPoll(cast(asyncio.AbstractEventLoop, self))

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.due.append(callback)

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
        assert loop.is_awake_after(QUICK_DISK_S * 0.9)
        loop.poll.touch()  # its answer
        assert not loop.is_awake_after(QUICK_DISK_S)


def test_a_slow_disk_is_waited_for_awake_once_in_a_while(loop: Turning) -> None:
    loop.poll.expect()
    assert not loop.is_awake_after(QUICK_DISK_S)
    for _ in range(SLOW_SKIPS):
        loop.poll.expect()
        assert not loop.is_awake_after(0)
    loop.poll.expect()
    assert loop.is_awake_after(0)
