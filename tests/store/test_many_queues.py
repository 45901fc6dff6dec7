"""Thousands of queues: housekeeping over all of them yields to other tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from aerobee.broker.base.worker import Worker
from aerobee.broker.store.message_store import MessageStore

from .conftest import ManualClock, OpenStore, dispatch, message
from .faulty_disk import FaultyDisk

QUEUES = 300


class OneRound(ManualClock):
    """Lets a coroutine run one round."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = 0
        self.done = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.waits += 1
        if self.waits > 1:
            self.done.set()
            await asyncio.Event().wait()


async def turns_in_a_round(
    open_store: OpenStore, run: Callable[[MessageStore], Coroutine[Any, Any, None]]
) -> int:
    """How often other tasks ran meanwhile."""
    clock = OneRound()
    store = open_store(clock=clock)
    store.put([message(queue_id=number) for number in range(QUEUES)])
    dispatch(store)
    task = asyncio.create_task(run(store))
    turns = 0
    while not clock.done.is_set():
        turns += 1
        await asyncio.sleep(0)
    task.cancel()
    return turns


async def test_the_self_check_pauses(open_store: OpenStore) -> None:
    assert await turns_in_a_round(open_store, lambda store: store.self_check.run()) > 5


async def test_the_search_for_expired_files_pauses(open_store: OpenStore) -> None:
    worker = Worker("test")
    assert await turns_in_a_round(open_store, lambda store: store.clean.run(worker)) > 5
    worker.stop()


def test_to_delete_a_topic_takes_one_sync_however_many_queues_it_has(
    open_store: OpenStore,
) -> None:
    synced: list[str] = []

    class Counting(FaultyDisk):
        def syncdir(self, path: str) -> None:
            synced.append(path)
            super().syncdir(path)

    store = open_store(disk=Counting())
    store.put([message(queue_id=number) for number in range(QUEUES)])
    dispatch(store)
    synced.clear()
    store.delete_topic("T")
    assert synced == [store.settings.layout.consumequeue]
