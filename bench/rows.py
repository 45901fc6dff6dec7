"""What is measured: one function per session with a broker, each giving figures by row name.

A session starts a broker in a fresh folder, warms it up, runs its rows and checks after every row
that as many messages are stored as were acknowledged.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.brokers import AEROBEE, APACHE_4, BrokerProcess
from bench.load_client import load

Figures = dict[str, float]


@dataclass(frozen=True)
class Scale:
    """How much each row does; `QUICK` is for trying the program out."""

    warm_up: int
    sends: int
    pulls: int
    round_trips: int
    receipts: int
    sync_sends: int
    log_bytes: int


FULL_SCALE = Scale(300_000, 200_000, 1_000_000, 20_000, 3_000, 30_000, 1 << 30)
QUICK_SCALE = Scale(20_000, 20_000, 100_000, 2_000, 300, 2_000, 64 << 20)


@contextmanager
def running(kind: str, folder: Path, **settings: str) -> Iterator[tuple[BrokerProcess, float]]:
    """A broker in an empty folder and how long it took to its first send."""
    shutil.rmtree(folder, ignore_errors=True)
    broker = BrokerProcess(kind, folder, **settings)
    try:
        yield broker, broker.start()
    finally:
        broker.kill()
        shutil.rmtree(folder, ignore_errors=True)


class Session:
    """The rows of one running broker; every topic is used once, so that it can be counted."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.figures: Figures = {}
        self._topics = 0

    def topic(self) -> str:
        self._topics += 1
        return f"Bench{self._topics}"

    def send(self, row: str, n: int, **options: Any) -> str:
        """A row of sends: rate, CPU and latency; returns the topic that now holds them."""
        topic = self.topic()
        cpu = self.broker.cpu_seconds()
        result = load("send", self.broker.port, topic=topic, n=n, **options)
        self.figures[f"{row}: msg/s"] = result["per_s"]
        self.figures[f"{row}: p50 us"] = result["p50_us"]
        self.figures[f"{row}: p99 us"] = result["p99_us"]
        self.figures[f"{row}: CPU us/msg"] = (self.broker.cpu_seconds() - cpu) / n * 1e6
        self.expect_stored(topic, result["n"])
        return topic

    def expect_stored(self, topic: str, acknowledged: int) -> None:
        stored = load("count", self.broker.port, topic=topic, max=4096)["n"]
        if stored != acknowledged:
            raise RuntimeError(f"{topic}: {acknowledged} acknowledged but {stored} stored")

    def pull(self, row: str, topic: str, n: int, most: int) -> None:
        cpu = self.broker.cpu_seconds()
        result = load("pull", self.broker.port, topic=topic, n=n, max=most)
        self.figures[f"{row}: msg/s"] = result["per_s"]
        self.figures[f"{row}: CPU us/msg"] = (self.broker.cpu_seconds() - cpu) / result["n"] * 1e6

    def receipt(self, row: str, n: int) -> None:
        topic = self.topic()
        load("send", self.broker.port, topic=topic, n=8, conns=1, size=256)  # makes the topic
        result = load("e2e", self.broker.port, topic=topic, n=n, size=256)
        for name in ("p50", "p99", "p999"):
            self.figures[f"{row}: {name} us"] = result[f"{name}_us"]

    def memory(self) -> None:
        resident, anonymous = self.broker.memory_mb()
        self.figures["memory after the run: resident MB"] = resident
        self.figures["memory after the run: anonymous MB"] = anonymous


def async_session(kind: str, folder: Path, scale: Scale, *, full: bool) -> Figures:
    """ASYNC_FLUSH: sends, round trips, pulls, receipts, memory."""
    with running(kind, folder) as (broker, start_seconds):
        session = Session(broker)
        session.figures["start to first send: ms"] = start_seconds * 1000
        load("send", broker.port, topic="WarmUp", n=scale.warm_up)
        topic = session.send("send 4x32, 1 KB", scale.sends)
        session.send("send 1x1, 1 KB", scale.round_trips, conns=1, window=1)
        session.pull("pull 32, 1 KB", topic, scale.pulls, 32)
        session.pull("pull 4096, 1 KB", topic, scale.pulls, 4096)
        session.receipt("send to receipt", scale.receipts)
        if full:
            _more_async_rows(session, scale)
        session.memory()
        return session.figures


def _more_async_rows(session: Session, scale: Scale) -> None:
    session.send("send 1x256, 1 KB", scale.sends, conns=1, window=256)
    session.send("send 4x32, 100 B", scale.sends, size=100)
    session.send("send 4x32, 10 KB", scale.sends // 5, size=10240)
    session.send("send 4x32, 1 KB, ROCKETMQ header", scale.sends, codec="rmq")
    session.send("send batches of 32, 1 KB", scale.sends // 32 * 32, batch=32, window=4)
    _sends_and_pulls(session, scale)


def _sends_and_pulls(session: Session, scale: Scale) -> None:
    """Both at once: a puller reads an older topic for as long as the sends take."""
    port = session.broker.port
    old = session.topic()
    load("send", port, topic=old, n=scale.sends // 2)
    pulled: dict[str, Any] = {}
    reader = threading.Thread(
        target=lambda: pulled.update(load("pull", port, topic=old, n=scale.pulls, conns=2, max=32))
    )
    reader.start()
    session.send("send 4x32, 1 KB, with pulls", scale.sends)
    reader.join()
    session.figures["pull 32, 1 KB, with sends: msg/s"] = pulled["per_s"]


def sync_session(kind: str, folder: Path, scale: Scale, *, full: bool) -> Figures:
    """SYNC_FLUSH: an answer only after the disk has it."""
    with running(kind, folder, flushDiskType="SYNC_FLUSH") as (broker, _):
        session = Session(broker)
        load("send", broker.port, topic="WarmUp", n=scale.sync_sends, conns=8, window=32)
        session.send("SYNC_FLUSH 8x32, 1 KB", scale.sync_sends * 2, conns=8, window=32)
        if full:
            session.send("SYNC_FLUSH 1x32, 1 KB", scale.sync_sends, conns=1, window=32)
            session.send("SYNC_FLUSH 1x1, 1 KB", scale.sync_sends // 10, conns=1, window=1)
        return session.figures


def killed_store(folder: Path, scale: Scale) -> Path:
    """A store of `log_bytes` whose broker was killed: written by Apache 4.9, readable by all."""
    shutil.rmtree(folder, ignore_errors=True)
    broker = BrokerProcess(APACHE_4, folder)
    broker.start()
    n = scale.log_bytes // 1200
    load("send", broker.port, topic="Killed", n=n)
    broker.kill()
    return broker.store


def restart_session(kind: str, folder: Path, store: Path) -> Figures:
    """The first send after kill -9, on a copy of the same killed store."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    subprocess.run(["cp", "-a", "--sparse=always", store, folder / "store"], check=True)
    subprocess.run(["sync"], check=True)
    broker = BrokerProcess(kind, folder)
    try:
        return {"restart after kill -9: ms": broker.start() * 1000}
    finally:
        broker.kill()
        shutil.rmtree(folder, ignore_errors=True)


SESSIONS: dict[str, Callable[..., Figures]] = {"async": async_session, "sync": sync_session}
KINDS = (AEROBEE, APACHE_4)
