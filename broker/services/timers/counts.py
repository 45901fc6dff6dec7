"""Timers that were set and delivered, by topic; for metrics."""

from aerobee.broker.base.histogram import Histogram


class TimerCounts:
    def __init__(self) -> None:
        self.enqueued: dict[str, int] = {}
        self.dequeued: dict[str, int] = {}
        self.delays = Histogram()  # from being set until due

    def add_set(self, topic: str, seconds: float) -> None:
        self.enqueued[topic] = self.enqueued.get(topic, 0) + 1
        self.delays.add(max(0.0, seconds))

    def add_delivered(self, topic: str) -> None:
        self.dequeued[topic] = self.dequeued.get(topic, 0) + 1
