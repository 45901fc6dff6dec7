"""`make bench-ceiling`: the most pulls that the machine's loopback and the load client allow, and
the least that sending a log to a slave takes.

A C program (load/answers.c) answers each pull with bytes of a map, in one call of the system. What
a broker reaches beside it is the broker's; what is above it is nobody's. Another (load/frames.c)
sends frames of a file and waits for their acks.

    python -m bench.ceiling [--rounds 5] [--messages 1000000] [--frames]
"""

from __future__ import annotations

import argparse
import socket
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from peers.tools import free_port

from bench.load_client import compiled, load

SOURCE = Path(__file__).parent / "load" / "answers.c"
FRAMES_SOURCE = SOURCE.with_name("frames.c")
FRAMES_KB = (16, 64, 128, 512)
LOG_MB, LOG_MB_PER_S = 512, 200  # 1 KB messages at 155,000 a second
RECORD_SIZE = 1280  # of a message of 1 KB, about
SIZES = (32, 4096)  # messages of a pull
CLIENTS = {"sleeps": 0, "polls": 1}


def wait_for(port: int) -> None:
    for _ in range(500):
        with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.01)
    raise RuntimeError(f"{SOURCE.name} does not listen on port {port}")


def rates(size: int, rounds: int, messages: int) -> dict[str, list[float]]:
    """Messages a second, by what the client does while it waits."""
    port = free_port()
    program = compiled(SOURCE)
    server = subprocess.Popen([program, str(port), str(size * RECORD_SIZE), str(size)])
    found: dict[str, list[float]] = {name: [] for name in CLIENTS}
    try:
        wait_for(port)
        for _ in range(rounds):
            for name, polls in CLIENTS.items():
                ran = load("pull", port, topic="T", n=messages, conns=4, max=size, polls=polls)
                found[name].append(ran["per_s"])
    finally:
        server.terminate()
        server.wait()
    return found


def frames(rounds: int) -> None:
    """CPU seconds per GiB of one that sends frames, and of one that reads them."""
    program = compiled(FRAMES_SOURCE)
    for size in FRAMES_KB:
        for way in ("sendfile", "write"):
            words = [program, str(size), str(LOG_MB), way, str(LOG_MB_PER_S)]
            ran = [subprocess.check_output(words, text=True).split() for _ in range(rounds)]
            reads, sends = (min(map(float, column)) for column in zip(*ran, strict=True))
            print(f"frames of {size:3} KB, {way:8}: sent {sends:.2f}, read {reads:.2f} s/GiB")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--frames", action="store_true", help="only what a slave costs at least")
    arguments = parser.parse_args()
    frames(arguments.rounds)
    if arguments.frames:
        return 0
    for size in SIZES:
        for name, values in rates(size, arguments.rounds, arguments.messages).items():
            print(
                f"pulls of {size:4}, the client {name:6}: median {statistics.median(values):,.0f} "
                f"({min(values):,.0f} to {max(values):,.0f}) messages/s"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
