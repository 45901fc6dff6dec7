"""`make bench-growth`: what a message costs the broker as one thing grows and all else stays.

Each curve is one thing: queues of a topic, connections, groups that wait for a topic's messages,
pending timers, bytes of a body, bytes of log. Figures are the server's CPU per message, which a
busy client does not change, and the rate beside it; the last point by the first is the bend. With
the log grows how long a start takes after a kill. The load client is bench/load/load.c; fan-out and
timers have a socket of their own.

    python -m bench.growth [--with apache-4.9] [--only queues,groups] [--quick] [--log-gb 1,20]
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from aerobee.protocol.wire.codes import RequestCode
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.frame import FrameDecoder, encode_frame
from bench.brokers import AEROBEE, BrokerProcess
from bench.load_client import load
from bench.machine import describe_machine, warm_memory
from bench.rows import running
from bench.session import log_bytes

Point = tuple[float, float, float]  # size, CPU us per message, messages per second; of a start: ms
Curve = list[Point]
RESTART = "restart after kill -9"
TOPIC = "Growth"
MESSAGE_BYTES = 1284  # of log, with a body of 1 KB
EACH = 64  # messages of a queue that is pulled from again and again
SETTLED_WITHIN = 90.0  # seconds
DIRTY_MAX = 64 << 20  # bytes that the kernel has yet to write


class Wire:
    """One blocking connection that sends frames and counts answers."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._decoder = FrameDecoder(64 << 20)

    def ask(self, *commands: Command) -> None:
        """Send all, then wait for an answer to each."""
        self.tell(*commands)
        self.answers(len(commands))

    def tell(self, *commands: Command) -> None:
        self._socket.sendall(b"".join(map(encode_frame, commands)))

    def answers(self, count: int) -> None:
        while count:
            data = self._socket.recv(1 << 20)
            if not data:
                raise RuntimeError("the broker closed the connection")
            count -= len(self._decoder.feed(data))

    def close(self) -> None:
        self._socket.close()


def send_command(number: int, text: str = "") -> Command:
    ext = {"a": "bench", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(number % 4), "f": "0"}
    ext |= {"g": str(time.time_ns() // 1_000_000), "h": "0", "j": "0", "k": "false", "m": "false"}
    ext["i"] = f"UNIQ_KEY\x01{number:032X}\x02{text}"
    return Command(RequestCode.SEND_MESSAGE_V2, ext, bytes(100), number, language="JAVA")


def pull_command(number: int, group: str, offset: int, wait_ms: int) -> Command:
    ext = {"consumerGroup": group, "topic": TOPIC, "queueId": "0", "queueOffset": str(offset)}
    ext |= {"maxMsgNums": "32", "sysFlag": "6", "commitOffset": "0", "subscription": "*"}
    ext |= {"suspendTimeoutMillis": str(wait_ms), "subVersion": "0", "expressionType": "TAG"}
    return Command(RequestCode.PULL_MESSAGE, ext, b"", number, language="JAVA")


def make_topic(broker: BrokerProcess, topic: str, queues: int) -> None:
    ext = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queues), "perm": "6"}
    ext |= {"writeQueueNums": str(queues), "topicFilterType": "SINGLE_TAG", "order": "false"}
    wire = Wire(broker.port)
    wire.ask(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, ext | {"topicSysFlag": "0"}))
    wire.close()


def costs(broker: BrokerProcess, n: int, work: Callable[[], object]) -> tuple[float, float]:
    cpu, began = broker.cpu_seconds(), time.perf_counter()
    work()
    took = time.perf_counter() - began
    return (broker.cpu_seconds() - cpu) / n * 1e6, n / took


def sends(broker: BrokerProcess, topic: str, n: int, **options: Any) -> tuple[float, float]:
    with warm_memory(log_bytes(n, **options)):
        pass
    return costs(broker, n, lambda: load("send", broker.port, topic=topic, n=n, **options))


def settle(broker: BrokerProcess) -> None:
    """Wait until the broker is idle and the kernel has written dirty pages: the preparation of a
    point must not be measured with it."""
    deadline = time.monotonic() + SETTLED_WITHIN
    while time.monotonic() < deadline:
        cpu = broker.cpu_seconds()
        time.sleep(1)
        if broker.cpu_seconds() - cpu < 0.05 and dirty_bytes() < DIRTY_MAX:
            return
    print(f"not settled after {SETTLED_WITHIN:g} s", flush=True)


def dirty_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    sizes = {
        name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)
    }
    return (sizes["Dirty"] + sizes["Writeback"]) << 10


# --- curves: what grows -> points


def queues(broker: BrokerProcess, n: int) -> Iterator[tuple[str, Point]]:
    for count in (1, 100, 10_000):
        topic = f"Queues{count}"
        make_topic(broker, topic, count)
        # As many in each queue at each point: else pulls would return fewer with many queues.
        load("send", broker.port, topic=topic, n=EACH * count, queues=count, conns=1, window=128)
        settle(broker)
        pulls = {"topic": topic, "n": n, "max": 32, "queues": min(count, 4)}
        yield "pulls", (count, *costs(broker, n, lambda o=pulls: load("pull", broker.port, **o)))
        yield "sends", (count, *sends(broker, topic, n, queues=count))


def connections(broker: BrokerProcess, n: int) -> Iterator[tuple[str, Point]]:
    load("send", broker.port, topic="Connections", n=n // 4)
    for count in (1, 100, 1000, 5000):
        made = n // 4 if count > 1 else n // 10
        yield (
            "sends, one in flight each",
            (count, *sends(broker, "Connections", made, conns=count, window=1)),
        )


def groups(broker: BrokerProcess, n: int) -> Iterator[tuple[str, Point]]:
    wire, sender = Wire(broker.port), Wire(broker.port)
    make_topic(broker, TOPIC, 4)
    offset = 0
    for count in (1, 100, 1000):
        rounds, took = max(5, n // 20 // count), 0.0
        for number in range(rounds + 2):
            if number == 2:  # the groups are there from the first round on
                cpu, took = broker.cpu_seconds(), 0.0
            pulls = [pull_command(group, f"fan{group}", offset, 20_000) for group in range(count)]
            wire.tell(*pulls)
            time.sleep(0.02 + count / 5000)  # until all of them are held
            began = time.perf_counter()
            sender.ask(send_command(0))
            wire.answers(count)
            took += time.perf_counter() - began
            offset += 1
        used = (broker.cpu_seconds() - cpu) / rounds / count * 1e6
        yield "pulls held, then answered", (count, used, rounds * count / took)
    wire.close()
    sender.close()


def timers(broker: BrokerProcess, n: int) -> Iterator[tuple[str, Point]]:
    wire = Wire(broker.port)
    wire.ask(send_command(0))
    pending = 0
    for count in (1, 100_000):
        for start in range(pending, count, 500):
            some = range(start, min(start + 500, count))
            wire.ask(*(send_command(4 * each, "TIMER_DELAY_SEC\x017200\x02") for each in some))
        pending = count
        yield "sends", (count, *sends(broker, f"Timers{count}", n))
    wire.close()


def log_sizes(broker: BrokerProcess, n: int, sizes_gb: list[float]) -> Iterator[tuple[str, Point]]:
    n *= 4  # to pull fewer takes less than a tenth of a second
    written = 0
    load("send", broker.port, topic="Oldest", n=n)
    for size_gb in sizes_gb:
        more = int((size_gb * (1 << 30) - written) / 10_600)
        load("send", broker.port, topic="Filler", n=more, size=10_240)
        written += more * 10_600
        settle(broker)
        topic = f"Newest{size_gb * 1000:.0f}"
        yield "sends", (size_gb, *sends(broker, topic, n))
        yield "a program's writes of as much", (size_gb, *plain_writes(broker.store, n))
        for name, pulled in (("pulls of the newest", topic), ("pulls of the oldest", "Oldest")):
            pulls = {"topic": pulled, "n": n, "max": 32}
            yield name, (size_gb, *costs(broker, n, lambda o=pulls: load("pull", broker.port, **o)))
        broker.kill()
        yield RESTART, (size_gb, broker.start() * 1000, 0)


def plain_writes(folder: Path, n: int) -> tuple[float, float]:
    """The ceiling beside `sends`: as many bytes by calls of 32 messages each, and nothing else."""
    piece, path = bytes(32 * MESSAGE_BYTES), folder / "plain"
    with warm_memory(log_bytes(n)), path.open("wb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, n * MESSAGE_BYTES)
    with path.open("r+b", buffering=0) as file:
        cpu, began = time.process_time(), time.perf_counter()
        for _ in range(n // 32):
            file.write(piece)
        took = time.perf_counter() - began
        used = time.process_time() - cpu
    path.unlink()
    return used / n * 1e6, n / took


def bodies(broker: BrokerProcess, n: int) -> Iterator[tuple[str, Point]]:
    for size in (100, 1024, 10_240, 102_400, 1_048_576):
        made = max(n // max(1, size // 1024), 200)
        yield "sends", (size, *sends(broker, f"Bodies{size}", made, size=size, window=8))


CURVES: dict[str, tuple[str, Callable[[BrokerProcess, int], Iterator[tuple[str, Point]]]]] = {
    "queues": ("queues of the topic", queues),
    "connections": ("connections", connections),
    "groups": ("groups that wait", groups),
    "timers": ("pending timers", timers),
    "bodies": ("bytes of a body", bodies),
}


def measure(
    kind: str, folder: Path, names: list[str], n: int, sizes_gb: list[float]
) -> dict[str, Curve]:
    """The points of each curve, by its name and what was done."""
    curves: dict[str, Curve] = {}
    work = {name: CURVES[name] for name in names if name in CURVES}
    if "log" in names:
        work["log"] = ("GB of log", lambda broker, n: log_sizes(broker, n, sizes_gb))
    for name, (_, points) in work.items():
        settings = {"maxMessageSize": str(4 << 20)}
        if kind == AEROBEE:
            settings["maxQueueNums"] = "10000"
        with running(kind, folder, **settings) as (broker, _):
            load("send", broker.port, topic="WarmUp", n=n if kind == AEROBEE else 2 * n)
            for what, point in points(broker, n):
                curves.setdefault(f"{name}: {what}", []).append(point)
                size, cost, rate = point
                unit = f"us {rate:11,.0f}/s" if rate else "ms"
                print(f"{kind:11} {name}: {what:26} {size:>11,g} {cost:9.2f} {unit}", flush=True)
    return curves


def report(found: dict[str, dict[str, Curve]]) -> str:
    lines = ["| | " + " | ".join(found) + " |", "|---" * (len(found) + 1) + "|"]
    for name in next(iter(found.values())):
        every = [curves.get(name, []) for curves in found.values()]
        unit = "ms" if name.endswith(RESTART) else "CPU us"
        lines.append(
            f"| {name}, {unit} | " + " | ".join(cell(points, 1) for points in every) + " |"
        )
        if unit == "CPU us":
            rates = (cell(points, 2) for points in every)
            lines.append(f"| {name}, msg/s | " + " | ".join(rates) + " |")
    return "\n".join(lines)


def cell(points: Curve, column: int) -> str:
    """The figures of a curve, and the last by the first."""
    if not points:
        return "-"
    shown = ", ".join(f"{point[0]:,g}: {point[column]:,.{2 - column}f}" for point in points)
    return f"{shown} (x {points[-1][column] / (points[0][column] or 1):.2f})"


def chart(found: dict[str, dict[str, Curve]], path: Path) -> None:
    """All curves in one picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(next(iter(found.values())))
    figure, all_axes = pyplot.subplots(
        -(-len(names) // 3), 3, figsize=(12, 3 * -(-len(names) // 3)), squeeze=False
    )
    for axes, name in zip(all_axes.flat, names, strict=False):
        for kind, curves in found.items():
            points = curves.get(name, [])
            axes.plot([p[0] for p in points], [p[1] for p in points], "o-", label=kind)
        unit = "ms" if name.endswith(RESTART) else "CPU us per message"
        axes.set(title=name, xscale="log", ylabel=unit)
        axes.set_ylim(bottom=0)
        axes.legend()
    for axes in all_axes.flat[len(names) :]:
        axes.set_axis_off()
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--with", dest="peer", default="", help="another broker, as apache-4.9")
    parser.add_argument("--only", default=",".join((*CURVES, "log")), help="curves")
    parser.add_argument("--log-gb", default="1,20")
    parser.add_argument("--quick", action="store_true", help="small numbers, to try it out")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    options = parser.parse_args()
    kinds = [AEROBEE, options.peer] if options.peer else [AEROBEE]
    n, sizes = 20_000 if options.quick else 100_000, list(map(float, options.log_gb.split(",")))
    with tempfile.TemporaryDirectory(prefix="aerobee-growth-") as work:
        folder = Path(work)
        names = options.only.split(",")
        found = {kind: measure(kind, folder / kind, names, n, sizes) for kind in kinds}
    text = report(found)
    print(f"\n{describe_machine()}\n\n{text}")
    options.out.mkdir(parents=True, exist_ok=True)
    name = "growth" + "-quick" * options.quick
    result = {"machine": describe_machine(), "curves": found}
    (options.out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    (options.out / f"{name}.md").write_text(f"{describe_machine()}.\n\n{text}\n")
    chart(found, options.out / f"{name}.png")


if __name__ == "__main__":
    main()
