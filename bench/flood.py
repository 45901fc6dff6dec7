"""10,000 idle connections and 2,000 that send one byte a second, beside a client that works.

    python -m bench.flood [--idle 10000] [--slow 2000]

A broker in a process of its own. Prints the round trip of a plain client before and during the
flood, what the connections take of the broker's memory, and when the slow ones were closed
(a frame's header must be whole after 10 s). Ends with 1 when the p99 is more than doubled, by the
median of several rounds on either side, or a slow connection outlives its deadline.
"""

import argparse
import asyncio
import re
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from aerobee.protocol.command import Command
from aerobee.protocol.frame import encode_frame

ROUNDS = 7
ROUND_SENDS = 2000
HEADER_DEADLINE_S = 10.0
SLACK_S = 5.0


def start_broker(folder: str) -> tuple[subprocess.Popen[str], int]:
    settings = {
        "listenPort": "0",
        "namesrvListenPort": "-1",
        "metricsExporterType": "DISABLE",
        "storePathRootDir": f"{folder}/store",
        "mappedFileSizeCommitLog": str(64 << 20),
    }
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    process = subprocess.Popen(
        [str(Path(sys.executable).with_name("aerobee")), "broker", *sets],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    ready = re.search(r"broker=\S+:(\d+)", process.stdout.readline())
    assert ready is not None, "the broker gave no ready line"
    return process, int(ready[1])


def anonymous_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1])
    return 0


def round_trips(port: int, count: int) -> list[float]:
    """Seconds of each of `count` sends, one in flight, by a plain blocking socket."""
    ext = {"a": "pg", "b": "Flood", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1"}
    frame = encode_frame(Command(310, ext | {"h": "0", "i": "UNIQ_KEY\x01u\x02"}, bytes(1024)))
    taken = []
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(count):
            started = time.perf_counter()
            sock.sendall(frame)
            answer = sock.recv(4096)
            taken.append(time.perf_counter() - started)
            assert b'"code":0' in answer, answer
    return taken


def percentiles(port: int) -> tuple[float, float]:
    """p50 and p99 in microseconds: medians over rounds."""
    p50s, p99s = [], []
    for _ in range(ROUNDS):
        taken = sorted(round_trips(port, ROUND_SENDS))
        p50s.append(taken[len(taken) // 2] * 1e6)
        p99s.append(taken[len(taken) * 99 // 100] * 1e6)
    return statistics.median(p50s), statistics.median(p99s)


async def flood(port: int, idle: int, slow: int) -> None:
    """Open them all, then send a byte a second on the slow ones until each is closed."""
    connections = []
    for number in range(idle + slow):
        connections.append(await asyncio.open_connection("127.0.0.1", port))
        if number % 200 == 0:
            await asyncio.sleep(0.01)
    print(f"open {len(connections)}", flush=True)
    frame = encode_frame(Command(105, {"topic": "x" * 200}))
    began = {}
    lived: list[float] = []

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        began[writer] = time.monotonic()
        reading = asyncio.create_task(reader.read(1))
        for byte in frame:
            writer.write(bytes([byte]))
            done, _ = await asyncio.wait((reading,), timeout=1.0)
            if done:
                break
        lived.append(time.monotonic() - began[writer])
        reading.cancel()

    await asyncio.gather(*(drip(*connection) for connection in connections[idle:]))
    print(f"slow closed after {min(lived):.1f} to {max(lived):.1f} s", flush=True)
    await asyncio.sleep(3600)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--idle", type=int, default=10_000)
    parser.add_argument("--slow", type=int, default=2_000)
    parser.add_argument("--flood", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if arguments.flood:
        asyncio.run(flood(arguments.flood, arguments.idle, arguments.slow))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        broker, port = start_broker(folder)
        try:
            return measure(broker.pid, port, arguments.idle, arguments.slow)
        finally:
            broker.send_signal(signal.SIGTERM)
            broker.wait(30)


def measure(pid: int, port: int, idle: int, slow: int) -> int:
    percentiles(port)
    before = percentiles(port)
    memory = anonymous_kib(pid)
    words = [sys.executable, "-m", "bench.flood", "--flood", str(port)]
    words += ["--idle", str(idle), "--slow", str(slow)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as flooder:
        try:
            assert flooder.stdout is not None
            print(flooder.stdout.readline().strip())
            during = percentiles(port)
            grown = anonymous_kib(pid) - memory
            closed = flooder.stdout.readline().strip()
            after = percentiles(port)
        finally:
            flooder.kill()
    print(closed)
    print(f"round trip before: p50 {before[0]:.0f} us, p99 {before[1]:.0f} us")
    print(f"round trip during: p50 {during[0]:.0f} us, p99 {during[1]:.0f} us")
    print(
        f"round trip after : p50 {after[0]:.0f} us, p99 {after[1]:.0f} us (idle ones still there)"
    )
    print(f"memory: {grown / 1024:.1f} MiB, {grown / (idle + slow):.1f} KiB per connection")
    longest = float(re.search(r"to ([\d.]+) s", closed)[1])  # type: ignore[index]
    late = longest > HEADER_DEADLINE_S + SLACK_S
    slower = during[1] > 2 * before[1]
    print("slow connections outlived their deadline" if late else "slow connections: as stated")
    print("p99 more than doubled" if slower else "p99 within twice its usual")
    return 1 if late or slower else 0


if __name__ == "__main__":
    sys.exit(main())
