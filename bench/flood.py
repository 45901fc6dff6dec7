"""Clients that could block others, one kind after the other, beside a normal client.

    python -m bench.flood [KIND ...] [--cold-mb 1536] [--rounds 3]

A broker in a process of its own, with a watch on its event loop. A client sends 500 messages a
second and notes the time from send to receipt, alone and beside each kind. Prints p50, p99 and the
longest, the ratio of the p99 to that of the same round's quiet base, and the longest time that the
loop was kept. Ends with 1 when a p99 is more than doubled, when a turn of the loop took more than
10 ms of CPU, or when a slow connection outlives its deadline. Reading from disk needs root (the
page cache is dropped before).
"""

from __future__ import annotations

import argparse
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.frame import encode_frame
from bench.disturbers import COLD_TOPIC, connect
from bench.live_client import LiveClient

SECONDS = 4.0
FILL_WINDOW = 64
TURN_MS_MAX = 10.0
HEADER_DEADLINE_S = 10.0
SLACK_S = 5.0
COUNTS = {"join": 2_000, "leave": 2_000, "cold": 1, "idle": 10_000, "slow": 2_000, "deaf": 100}
PROCESSES = {"join": "crowd", "leave": "crowd", "cold": "reader"}


@dataclass
class Figures:
    """The results of the rounds of one kind, in ms."""

    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)
    longest: list[float] = field(default_factory=list)
    turn_wall: list[float] = field(default_factory=list)
    turn_cpu: list[float] = field(default_factory=list)

    def add(self, taken: list[float], turn: tuple[float, float]) -> None:
        self.p50.append(taken[len(taken) // 2] * 1000)
        self.p99.append(taken[len(taken) * 99 // 100] * 1000)
        self.longest.append(taken[-1] * 1000)
        self.turn_wall.append(turn[0])
        self.turn_cpu.append(turn[1])

    def row(self, name: str, base: Figures) -> str:
        columns = (self.p50, self.p99, self.longest, self.turn_wall, self.turn_cpu)
        texts = [f"{statistics.median(column):9.2f}" for column in columns]
        return f"{name:6} {' '.join(texts)}   p99 x{self.ratio(base):.1f}"

    def ratio(self, base: Figures) -> float:
        """The median over the rounds, each against its own base."""
        pairs = zip(self.p99, base.p99, strict=True)
        return statistics.median(mine / quiet for mine, quiet in pairs)


class Broker:
    """The broker under the watch."""

    def __init__(self, folder: str) -> None:
        settings = {
            "listenPort": "0",
            "namesrvListenPort": "-1",
            "metricsExporterType": "DISABLE",
            "storePathRootDir": f"{folder}/store",
            "mappedFileSizeCommitLog": str(256 << 20),
            "diskGuardEnable": "false",
        }
        sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.watched_broker", *sets],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        ready = re.search(r"broker=\S+:(\d+)", self._line())
        assert ready is not None, "the broker gave no ready line"
        self.port = int(ready[1])

    def longest_turn(self) -> tuple[float, float]:
        """Of the loop since the last call: wall and CPU time in ms."""
        assert self.process.stdin is not None
        print(file=self.process.stdin, flush=True)
        wall, cpu = self._line().split()
        return float(wall), float(cpu)

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def disk_waits(self) -> int:
        """Major page faults of the loop's thread so far: each time nobody was served."""
        pid = self.process.pid
        fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[9])

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


class Disturber:
    """A process of `bench.disturbers`, ready to begin."""

    def __init__(self, kind: str, port: int, count: int) -> None:
        words = [sys.executable, "-m", "bench.disturbers", kind, str(port), str(count)]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.line() == "ready", f"the clients of kind {kind} could not connect"

    def go(self) -> None:
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def disturber(kind: str, port: int, count: int) -> Iterator[Disturber]:
    process = Disturber(kind, port, count)
    try:
        yield process
    finally:
        process.end()


def fill(folder: str, megabytes: int) -> None:
    """Messages of 2 KB in one queue, stored by another broker, so that none stay in memory."""
    ext = {"a": "pg", "b": COLD_TOPIC, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1"}
    frame = encode_frame(Command(310, ext | {"h": "0", "i": ""}, bytes(2 << 10)))
    broker = Broker(folder)
    with connect(broker.port) as sock:
        for _ in range(megabytes * 512 // FILL_WINDOW):
            sock.sendall(frame * FILL_WINDOW)
            answered = 0
            while answered < FILL_WINDOW:
                answered += sock.recv(1 << 16).count(b'"code":0')
    broker.stop()


def drop_page_cache() -> None:
    subprocess.run(["sync"], check=True)
    Path("/proc/sys/vm/drop_caches").write_text("3")


def beside(
    kind: str, broker: Broker, live: LiveClient, said: dict[str, str]
) -> tuple[list[float], tuple[float, float]]:
    """The live client's times and the longest turn of the loop while the clients of this kind
    are active."""
    if kind == "cold":
        drop_page_cache()
    with disturber(PROCESSES.get(kind, kind), broker.port, COUNTS[kind]) as process:
        if kind == "leave":
            process.go()
            process.line()
        live.run(0.5)
        broker.longest_turn()
        process.go()
        waits = broker.disk_waits()
        taken = _until_done(live, process, said) if kind == "cold" else live.run(SECONDS)
        if waits := broker.disk_waits() - waits:
            said[kind] = f"{said.get(kind, '')}, the loop waited {waits} times for a page from disk"
        turn = broker.longest_turn()
        if kind == "slow":
            said[kind] = process.line()
        return taken, turn


def _until_done(live: LiveClient, process: Disturber, said: dict[str, str]) -> list[float]:
    lines: list[str] = []
    waiting = threading.Thread(target=lambda: lines.append(process.line()))
    waiting.start()
    taken: list[float] = []
    while waiting.is_alive():
        taken += live.run(0.5)
    said["cold"] = lines[0]
    return sorted(taken)


def measure(broker: Broker, kinds: list[str], rounds: int) -> int:
    base: dict[str, Figures] = {kind: Figures() for kind in kinds}
    found: dict[str, Figures] = {kind: Figures() for kind in kinds}
    said: dict[str, str] = {}
    live = LiveClient(broker.port)
    live.run(2.0)
    for _ in range(rounds):
        for kind in kinds:
            broker.longest_turn()
            base[kind].add(live.run(SECONDS), broker.longest_turn())
            found[kind].add(*beside(kind, broker, live, said))
            live.run(1.0)  # they are gone before the next base
    live.close()
    print("            p50       p99   longest  turn wall  turn CPU   (ms)")
    failed = False
    for kind in kinds:
        print(base[kind].row("base", base[kind]))
        print(found[kind].row(kind, base[kind]), said.get(kind, ""))
        if found[kind].ratio(base[kind]) > 2:
            print(f"{kind}: p99 more than doubled")
            failed = True
        if statistics.median(found[kind].turn_cpu) > TURN_MS_MAX:
            print(f"{kind}: a turn of the loop took more than {TURN_MS_MAX:g} ms")
            failed = True
    if "slow" in said:
        longest = re.search(r"to ([\d.]+) s, 0 not", said["slow"])
        if longest is None or float(longest[1]) > HEADER_DEADLINE_S + SLACK_S:
            print("slow connections outlived their deadline")
            failed = True
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(COUNTS))
    parser.add_argument("--cold-mb", type=int, default=1536)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    kinds = arguments.kinds or list(COUNTS)
    if unknown := set(kinds) - set(COUNTS):
        parser.error(f"no such kind: {', '.join(sorted(unknown))}; there are {', '.join(COUNTS)}")
    with tempfile.TemporaryDirectory() as folder:
        if {"cold", "deaf"} & set(kinds):
            fill(folder, arguments.cold_mb)
        broker = Broker(folder)
        try:
            return measure(broker, kinds, arguments.rounds)
        finally:
            broker.stop()


if __name__ == "__main__":
    sys.exit(main())
