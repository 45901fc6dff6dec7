"""The rows of one running server: each a command to a driver, checked by a count, with its cost.

Any driver will do that takes a mode with options and answers with figures: the C load client, or
one of the clients behind `bench.driver`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.machine import warm_memory
from bench.process import ServerProcess

Figures = dict[str, float]
Drive = Callable[..., dict[str, Any]]  # drive(mode, **options)


WARM_LEAST = 900 << 20  # with 170 MB for a burst of 60,000, single ones took twice the CPU


def log_bytes(n: int, size: Any = 1024, **_: object) -> int:
    """Bytes of log, queues and index for so many messages, twice because of a slave, and some more,
    because the kernel hands out other pages first."""
    return max(int(n * 2 * (size + 400)), WARM_LEAST)


class Session:
    """Sends and pulls by one driver; every topic is sent to once, so that it can be counted."""

    def __init__(
        self,
        server: ServerProcess,
        drive: Drive,
        *,
        count: Drive | None = None,
        prefix: str = "",
        topics: str = "Bench",
    ) -> None:
        self.server = server
        self.figures: Figures = {}
        self.drive = drive
        self._count = count or drive
        self._prefix = prefix
        self._topics = topics
        self._used = 0

    def topic(self) -> str:
        self._used += 1
        return f"{self._topics}{self._used}"

    def send(self, row: str, n: int, **options: object) -> str:
        """A row of sends: rate, latency and CPU; returns the topic that now holds them."""
        topic, acknowledged = self.burst(row, n, **options)
        self.expect_stored(topic, acknowledged, **options)
        return topic

    def burst(self, row: str, n: int, **options: object) -> tuple[str, int]:
        """The same, not counted yet: the topic, and how many were acknowledged."""
        topic = self.topic()
        with warm_memory(log_bytes(n, **options)):
            cpu = self.server.cpu_seconds()
        result = self.drive("send", topic=topic, n=n, **options)
        used = self.server.cpu_seconds() - cpu
        times = {"p50 us": result["p50_us"], "p99 us": result["p99_us"]}
        self._add(row, {"msg/s": result["per_s"], **times, "CPU us/msg": used / n * 1e6})
        return topic, result["n"]

    def expect_stored(self, topic: str, acknowledged: int, **options: object) -> None:
        stored = self._count("count", topic=topic, max=4096, size=options.get("size", 1024))["n"]
        if stored != acknowledged:
            raise RuntimeError(f"{topic}: {acknowledged} acknowledged but {stored} stored")

    def pull(self, row: str, topic: str, n: int, most: int, **options: object) -> None:
        cpu = self.server.cpu_seconds()
        result = self.drive("pull", topic=topic, n=n, max=most, **options)
        used = self.server.cpu_seconds() - cpu
        self._add(row, {"msg/s": result["per_s"], "CPU us/msg": used / result["n"] * 1e6})

    def receipt(self, row: str, n: int) -> None:
        topic = self.topic()
        self.drive("send", topic=topic, n=8, conns=1, size=256)  # makes the topic
        result = self.drive("e2e", topic=topic, n=n, size=256)
        self._add(row, {f"{name} us": result[f"{name}_us"] for name in ("p50", "p99", "p999")})

    def memory(self) -> None:
        resident, anonymous = self.server.memory_mb()
        self._add("memory after the run", {"resident MB": resident, "anonymous MB": anonymous})

    def _add(self, row: str, values: Figures) -> None:
        for name, value in values.items():
            self.figures[f"{self._prefix}{row}: {name}"] = value
