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
from functools import partial
from pathlib import Path
from typing import Any

from bench.brokers import APACHE_4, BrokerProcess
from bench.load_client import drive_of, java_client, load
from bench.session import Drive, Figures, Session


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

# The matrix of sends: in flight, body and header. 10 KB bodies come in a fifth of the number.
SHAPES = {"4x32": (4, 32), "1x1": (1, 1), "1x256": (1, 256)}
SIZES = {"1 KB": 1024, "100 B": 100, "10 KB": 10240}
HEADERS = {"": "json", ", ROCKETMQ header": "rmq"}


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


def async_session(kind: str, folder: Path, scale: Scale, *, full: bool) -> Figures:
    """ASYNC_FLUSH: sends, round trips, pulls, receipts, the same by the Java client, memory."""
    with running(kind, folder) as (broker, start_seconds):
        session = Session(broker, drive_of(broker))
        session.figures["start to first send: ms"] = start_seconds * 1000
        load("send", broker.port, topic="WarmUp", n=scale.warm_up)
        topic = session.send("send 4x32, 1 KB", scale.sends)
        session.send("send 4x32, 100 B, ROCKETMQ header", scale.sends, size=100, codec="rmq")
        session.send("send 1x256, 1 KB", scale.sends, conns=1, window=256)
        session.send("send batches of 32, 1 KB", scale.sends // 32 * 32, batch=32, window=4)
        session.send("send 1x1, 1 KB", scale.round_trips, conns=1, window=1)
        session.send("send 1x1, 1 KB, client polls", scale.round_trips, conns=1, window=1, polls=1)
        session.pull("pull 32, 1 KB", topic, scale.pulls, 32)
        session.pull("pull 32, 1 KB, client polls", topic, scale.pulls, 32, polls=1)
        session.pull("pull 4096, 1 KB", topic, scale.pulls, 4096)
        session.receipt("send to receipt", scale.receipts)
        if full:
            _matrix(session, scale)
            _sends_and_pulls(session, drive_of(broker), scale)
        session.figures |= _java_rows(broker, scale)
        session.memory()
        return session.figures


def _matrix(session: Session, scale: Scale) -> None:
    """Every shape, size and header that has no row yet."""
    for header, codec in HEADERS.items():
        for shape, (conns, window) in SHAPES.items():
            for name, size in SIZES.items():
                row = f"send {shape}, {name}{header}"
                if f"{row}: msg/s" not in session.figures:
                    n = scale.round_trips if window == 1 else scale.sends
                    n = n // 5 if size > 1024 else n
                    session.send(row, n, conns=conns, window=window, size=size, codec=codec)


def _sends_and_pulls(session: Session, drive: Drive, scale: Scale) -> None:
    """Both at once: a puller reads an older topic for as long as the sends take."""
    old = session.topic()
    drive("send", topic=old, n=scale.sends // 2)
    pulled: dict[str, Any] = {}
    pull = partial(drive, "pull", topic=old, n=scale.pulls, conns=2, max=32)
    reader = threading.Thread(target=lambda: pulled.update(pull()))
    reader.start()
    session.send("send 4x32, 1 KB, with pulls", scale.sends)
    reader.join()
    session.figures["pull 32, 1 KB, with sends: msg/s"] = pulled["per_s"]


def _java_rows(broker: BrokerProcess, scale: Scale) -> Figures:
    """The main rows by Apache's own Java client; what it stored is counted by the C client."""
    with java_client(broker) as client:
        count = drive_of(broker)
        session = Session(broker, client.run, count=count, prefix="Java client: ", topics="Java")
        client.run("send", topic="JavaWarmUp", n=scale.sends // 2)
        client.run("pull", topic="JavaWarmUp", n=scale.pulls // 10)
        topic = session.send("send 4x32, 1 KB", scale.sends)
        session.send("send 1x1, 1 KB", scale.round_trips, conns=1, window=1)
        session.pull("pull 32, 1 KB", topic, scale.pulls // 2, 32)
        return session.figures


def sync_session(kind: str, folder: Path, scale: Scale, *, full: bool) -> Figures:
    """SYNC_FLUSH: an answer only after the disk has it."""
    with running(kind, folder, flushDiskType="SYNC_FLUSH") as (broker, _):
        session = Session(broker, drive_of(broker))
        load("send", broker.port, topic="WarmUp", n=scale.sync_sends, conns=8, window=32)
        session.send("SYNC_FLUSH 8x32, 1 KB", scale.sync_sends * 2, conns=8, window=32)
        session.send("SYNC_FLUSH 1x32, 1 KB", scale.sync_sends, conns=1, window=32)
        session.send("SYNC_FLUSH 1x1, 1 KB", scale.sync_sends // 10, conns=1, window=1)
        if full:
            session.send("SYNC_FLUSH 1x256, 1 KB", scale.sync_sends * 2, conns=1, window=256)
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
