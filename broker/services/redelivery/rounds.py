"""The loop of a service that delivers messages later. A round runs when one is due, when a message
of its topic arrives, and when the time of day was set."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog

from aerobee.broker.base.clock import Clock, watch_time_of_day
from aerobee.broker.base.wake import Wake
from aerobee.broker.services.redelivery import put_again
from aerobee.broker.store.results import Arrival

if TYPE_CHECKING:
    from aerobee.broker.store.message_store import MessageStore

log = structlog.get_logger("aerobee.services")

IDLE_S: Final = 60.0
FAILED_RETRY_S: Final = 1.0


class Rounds:
    """`step` is given the time, and returns when to run again, None: nothing is pending."""

    def __init__(
        self,
        store: "MessageStore",
        clock: Clock,
        topic: str,
        step: Callable[[int], int | None],
        *,
        failure: str,
        tick_ms: int = 1,
    ) -> None:
        self._store = store
        self._clock = clock
        self._topic = topic
        self._step = step
        self._failure = failure
        self._tick_ms = tick_ms
        self._wake = Wake()

    def start(self, name: str) -> list[asyncio.Task[None]]:
        """The running tasks."""
        self._store.add_arrival_listener(
            self._arrived, lambda topic, _queue_id: topic == self._topic
        )
        watch = watch_time_of_day(self._clock, self._wake.set)
        return [
            asyncio.create_task(self._run(), name=name),
            asyncio.create_task(watch, name=f"{name}-clock"),
        ]

    def _arrived(self, arrivals: list[Arrival]) -> None:
        if self._wake.is_set:
            return
        for arrival in arrivals:
            if arrival[0] == self._topic:
                self._wake.set()
                return

    async def _run(self) -> None:
        while True:
            try:
                due_ms = self._step(self._clock.now_ms())
            except Exception as error:  # the next round must come, whatever is wrong with this one
                put_again.log_failure(self._store.reports, self._failure, error)
                await self._clock.sleep(FAILED_RETRY_S)
                continue
            now_ms = self._clock.now_ms()
            if due_ms is None:
                await self._wake.wait_at_most(self._clock, IDLE_S)
            elif due_ms <= now_ms:
                await asyncio.sleep(0)  # more is due: let the event loop serve others first
            else:
                tick = -(-due_ms // self._tick_ms) * self._tick_ms
                await self._wake.wait_at_most(self._clock, (tick - now_ms) / 1000)


async def cancelled(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel the tasks, and wait for their ends. One that has failed before does not keep the rest
    of a stop from running."""
    for task in tasks:
        task.cancel()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    for task, end in zip(tasks, ends, strict=True):
        if isinstance(end, Exception):
            log.error("a part of a service had failed", part=task.get_name(), exc_info=end)
    tasks.clear()
