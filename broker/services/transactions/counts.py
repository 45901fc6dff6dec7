"""How transactions ended, by topic; for metrics."""

from aerobee.broker.base.histogram import Histogram


class EndCounts:
    """Commits and rollbacks, and the time from a half message to its end."""

    def __init__(self) -> None:
        self.committed: dict[str, int] = {}
        self.rolled_back: dict[str, int] = {}
        self.times: dict[str, Histogram] = {}

    def add(self, topic: str, commit: bool, seconds: float) -> None:
        table = self.committed if commit else self.rolled_back
        table[topic] = table.get(topic, 0) + 1
        times = self.times.get(topic)
        if times is None:
            times = self.times[topic] = Histogram()
        times.add(max(0.0, seconds))
