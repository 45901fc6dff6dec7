"""`make bench-sdk`: messages through one process of the SDK to our broker and back, nothing lost.

Beside it the figure of Apache's Java client (5.5.0) for the same work with the same broker:
numbered messages in batches from one thread, then all of them back through a push consumer. The
clients run one after the other, each with a fresh broker, in interleaved pairs; medians are shown.

    python -m bench.sdk [--count 200000] [--size 1024] [--pairs 3] [--without-java]
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.brokers import AEROBEE, BrokerProcess
from bench.machine import describe_machine

JAVA_SOURCE = Path(__file__).parent / "java" / "SdkBench.java"
BATCH = 232  # what fits into the SDK's batches of 256 KB with 1 KB bodies
Figures = dict[str, float]


async def through_the_sdk(url: str, topic: str, count: int, size: int) -> Figures:
    """Send and receive in this process; the receipt of every message is checked by its number."""
    from aerobee import connect

    filler = os.urandom(size - 4)
    seen = bytearray(count)
    async with connect(url) as mq:
        begun = time.perf_counter()
        async with mq.producer(topic, linger=0.005, timeout=30) as producer:
            for number in range(count):
                await producer.send(number.to_bytes(4, "big") + filler)
        sent = time.perf_counter() - begun
        begun = time.perf_counter()
        left = count
        async with mq.consumer(topic, group="bench-sdk") as inbox:
            async for message in inbox:
                number = int.from_bytes(message.body[:4], "big")
                if not seen[number]:
                    seen[number] = 1
                    left -= 1
                    if not left:
                        break
        consumed = time.perf_counter() - begun
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"send": sent, "consume": consumed, "missing": left, "memory": memory}


def sdk_process(namesrv: str, topic: str, count: int, size: int) -> Figures:
    """The same in a process of its own, as the Java client has one."""
    command = [sys.executable, "-m", "bench.sdk", "--worker", f"mq://{namesrv}", topic]
    return _figures([*command, "--count", str(count), "--size", str(size)])


def java_process(namesrv: str, topic: str, count: int, size: int) -> Figures:
    from peers.apache import build

    classes = ["java", "-Xms1g", "-Xmx1g", "-cp", build("5.5.0"), str(JAVA_SOURCE)]
    return _figures([*classes, namesrv, topic, str(count), str(size), str(BATCH)])


def _figures(command: list[str]) -> Figures:
    before = _children_cpu()
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    pairs = re.findall(r"(send|consume|missing|memory) ([\d.]+)", done.stdout)
    return {name: float(value) for name, value in pairs} | {"cpu": _children_cpu() - before}


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(pairs: int, count: int, size: int, *, java: bool) -> dict[str, list[Figures]]:
    clients = {"Aerobee's SDK": sdk_process} | ({"Java client": java_process} if java else {})
    runs: dict[str, list[Figures]] = {name: [] for name in clients}
    for pair in range(pairs):
        for name in list(clients)[:: 1 if pair % 2 == 0 else -1]:
            with tempfile.TemporaryDirectory(prefix="aerobee-bench-") as folder:
                broker = BrokerProcess(AEROBEE, Path(folder))
                broker.start()
                started = broker.cpu_seconds()
                try:
                    namesrv = f"127.0.0.1:{broker.namesrv_port}"
                    figures = clients[name](namesrv, "bench-sdk", count, size)
                    figures["broker cpu"] = broker.cpu_seconds() - started
                finally:
                    broker.stop()
            if figures["missing"]:
                raise RuntimeError(f"{name}: {figures['missing']:.0f} messages were lost")
            print(f"pair {pair + 1} of {pairs}: {name}: {figures}", flush=True)
            runs[name].append(figures)
    return runs


def report(runs: dict[str, list[Figures]], count: int, size: int) -> str:
    lines = [
        f"{count} messages of {size} bytes to an Aerobee broker and back, in batches; "
        f"medians of {len(next(iter(runs.values())))}; nothing lost",
        describe_machine(),
        "",
        "| | send msg/s | consume msg/s | client CPU us | broker CPU us |",
        "|---|---|---|---|---|",
    ]
    for name, figures in runs.items():
        rates = [
            f"{count / statistics.median(run[what] for run in figures):,.0f}"
            for what in ("send", "consume")
        ]
        costs = [
            f"{statistics.median(run[what] for run in figures) / count * 1e6:.1f}"
            for what in ("cpu", "broker cpu")
        ]
        lines.append(f"| {name} | {' | '.join(rates + costs)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--without-java", action="store_true")
    parser.add_argument("--worker", nargs=2, metavar=("URL", "TOPIC"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        import uvloop

        figures = uvloop.run(through_the_sdk(*given.worker, given.count, given.size))
        print(" ".join(f"{name} {value:.3f}" for name, value in figures.items()))
        return
    runs = measure(given.pairs, given.count, given.size, java=not given.without_java)
    print(report(runs, given.count, given.size))


if __name__ == "__main__":
    main()
