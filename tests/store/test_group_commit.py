"""Group commit: the thread that syncs, and how the loop learns of what it has finished."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable

import pytest
from waiting import until

from aerobee.broker.store.durability.group_commit import GroupCommit

PATIENCE_S = 10


class Disk:
    """Syncs of numbers that finish when a test releases them."""

    def __init__(self) -> None:
        self.asked: deque[int] = deque()
        self.begun = [threading.Event() for _ in range(4)]
        self.may_end = [threading.Event() for _ in range(4)]
        self.ended = [threading.Event() for _ in range(4)]
        self.completed: list[int] = []

    def take(self) -> int | None:
        # The thread returns here once it has finished and reported a job.
        if self.begun[0].is_set():
            done = sum(event.is_set() for event in self.begun)
            self.ended[done - 1].set()
        return self.asked.popleft() if self.asked else None

    def sync(self, job: int) -> int:
        self.begun[job].set()
        assert self.may_end[job].wait(PATIENCE_S)
        return job

    def commit(self, complete: Callable[[int], None] | None = None) -> GroupCommit[int]:
        return GroupCommit(self.take, self.sync, complete or self.completed.append)

    def ends(self, job: int) -> None:
        """Let a sync end while the loop is held."""
        self.may_end[job].set()
        assert self.ended[job].wait(PATIENCE_S)


def count_wake_ups(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    loop = asyncio.get_running_loop()
    calls: list[object] = []
    real = loop.call_soon_threadsafe

    def counted(callback: Callable[..., object], *args: object) -> asyncio.Handle:
        calls.append(callback)
        return real(callback, *args)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    return calls


async def test_a_sleeping_loop_is_woken_for_what_is_finished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = Disk()
    wake_ups = count_wake_ups(monkeypatch)
    with disk.commit() as commit:
        disk.asked.append(0)
        commit.wake()
        await until(disk.begun[0].is_set)
        assert disk.completed == []
        disk.may_end[0].set()
        await until(lambda: disk.completed == [0])
    assert len(wake_ups) == 1


async def test_a_loop_that_asks_during_a_sync_looks_for_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = Disk()
    wake_ups = count_wake_ups(monkeypatch)
    with disk.commit() as commit:
        disk.asked.append(0)
        commit.wake()
        assert disk.begun[0].wait(PATIENCE_S)
        commit.wake()  # the thread is at work
        commit.wake()
        disk.ends(0)
        assert disk.completed == [] and wake_ups == []
        await asyncio.sleep(0)
        assert disk.completed == [0] and wake_ups == []


async def test_what_ends_after_the_loop_has_looked_wakes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = Disk()
    wake_ups = count_wake_ups(monkeypatch)
    with disk.commit() as commit:
        disk.asked.append(0)
        commit.wake()
        assert disk.begun[0].wait(PATIENCE_S)
        commit.wake()
        await asyncio.sleep(0.01)  # the loop has polled and found nothing
        disk.asked.append(1)
        disk.ends(0)
        disk.may_end[1].set()
        await until(lambda: disk.completed == [0, 1])
    assert wake_ups


async def test_an_answer_that_fails_keeps_no_other_from_being_given() -> None:
    disk = Disk()
    failures: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: failures.append(str(context["exception"])))

    def complete(job: int) -> None:
        disk.completed.append(job)
        if job == 0:
            raise RuntimeError("the peer is gone")

    with disk.commit(complete) as commit:
        disk.asked += [0, 1]
        commit.wake()
        assert disk.begun[0].wait(PATIENCE_S)
        commit.wake()
        disk.ends(0)
        disk.ends(1)
        await until(lambda: disk.completed == [0, 1])
    assert failures == ["the peer is gone"]


async def test_what_the_last_sync_has_finished_is_completed_after_the_end() -> None:
    disk = Disk()
    with disk.commit() as commit:
        disk.asked.append(0)
        commit.wake()
        assert disk.begun[0].wait(PATIENCE_S)
        disk.may_end[0].set()
    assert disk.completed == []
    await asyncio.sleep(0)
    assert disk.completed == [0]
