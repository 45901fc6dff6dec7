"""Listeners for new messages, for all queues or for some."""

from __future__ import annotations

from collections.abc import Callable

from aerobee.broker.store.results import Arrival, ArrivalListener

Wants = Callable[[str, int], bool]  # topic, queue id


class ArrivalListeners:
    def __init__(self) -> None:
        self._callbacks: list[ArrivalListener] = []
        self._wants: list[Wants | None] = []

    def add(self, callback: ArrivalListener, wants: Wants | None) -> None:
        """`wants`: selects the queues; None: all."""
        self._callbacks.append(callback)
        self._wants.append(wants)

    def want(self, topic: str, queue_id: int) -> bool:
        """Whether this queue has a listener."""
        return any(wants is None or wants(topic, queue_id) for wants in self._wants)

    def notify(self, arrivals: list[Arrival]) -> None:
        for callback in self._callbacks:
            callback(arrivals)
