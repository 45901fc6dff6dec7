"""What one client that makes topics, groups or key-values costs the others, and how fast it goes.

    python -m bench.creations [--fsync-ms 20] [--count 20000] [--seconds 8]

First on a disk whose every sync takes 20 ms longer: round trips of single sends to one topic, alone
and beside a client with 50 requests under way. Then on the disk as it is: how long 20,000 take, one
after the other and 50 at a time. The broker, the sender and the other client are three processes.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Event
from pathlib import Path

from aerobee.protocol.json import fastjson
from aerobee.protocol.wire.codecs import decode_command
from aerobee.protocol.wire.codes import RequestCode
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.frame import FrameDecoder, encode_frame

_SLOW = """
import os, sys, time
fsync, fdatasync, slow = os.fsync, os.fdatasync, float(os.environ["SLOW_SYNC_S"])
if slow:
    os.fsync = lambda fd: (time.sleep(slow), fsync(fd))[1]
    os.fdatasync = lambda fd: (time.sleep(slow), fdatasync(fd))[1]
from aerobee.client.cli import main
sys.argv[0] = "aerobee"
sys.exit(main())
"""
_IN_FLIGHT = 50


def topic(name: str) -> Command:
    ext = {"topic": name, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4"}
    more = {"perm": "6", "topicFilterType": "SINGLE_TAG", "order": "false", "topicSysFlag": "0"}
    return Command(RequestCode.UPDATE_AND_CREATE_TOPIC, ext | more)


def send(name: str) -> Command:
    ext = {"a": "g", "b": name, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0"}
    return Command(RequestCode.SEND_MESSAGE_V2, ext | {"i": "", "j": "0"}, b"x" * 100)


def group(name: str) -> Command:
    body = fastjson.dumps({"groupName": name})
    return Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)


def offset(name: str) -> Command:
    ext = {"consumerGroup": name, "topic": "Live", "queueId": "0", "commitOffset": "1"}
    return Command(RequestCode.UPDATE_CONSUMER_OFFSET, ext)


def key(name: str) -> Command:
    return Command(RequestCode.PUT_KV_CONFIG, {"namespace": "bench", "key": name, "value": "v"})


KINDS: dict[str, Callable[[str], Command]] = {
    "topics by an operator": topic,
    "topics by sends": send,
    "groups": group,
    "offsets of new groups": offset,
    "key-values": key,
}


class Wire:
    """One connection with some requests under way."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = FrameDecoder()

    def ask(self, command: Command) -> None:
        self._socket.sendall(encode_frame(command))

    def answers(self) -> int:
        """How many came; each must be a success."""
        frames: list[object] = []
        while not frames:
            data = self._socket.recv(1 << 16)
            if not data:
                raise SystemExit("the broker closed the connection")
            frames = list(self._decoder.feed(data))
            for frame in frames:
                answer = decode_command(*frame)  # type: ignore[misc]
                if answer.code:
                    raise SystemExit(f"refused: {answer.remark}")
        return len(frames)


def create(port: int, kind: str, names: Iterator[str], in_flight: int, stop: Event | None) -> int:
    """Make them, that many at a time; how many."""
    wire, made, waiting = Wire(port), 0, 0
    command = KINDS[kind]
    while True:
        while waiting < in_flight and (stop is None or not stop.is_set()):
            name = next(names, None)
            if name is None:
                break
            wire.ask(command(name))
            waiting += 1
        if not waiting:
            return made
        came = wire.answers()
        made += came
        waiting -= came


def _create_until(port: int, kind: str, stop: Event, made: multiprocessing.Queue[int]) -> None:
    os.nice(10)  # what is measured is the broker's trouble, not the machine's
    names = (f"{kind.replace(' ', '-')}-{number}" for number in itertools.count())
    made.put(create(port, kind, names, _IN_FLIGHT, stop))


def live(port: int, seconds: float) -> list[float]:
    """Round trips of sends to one topic, one every 2 ms, sorted, in ms."""
    wire = Wire(port)
    took = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        wire.ask(send("Live"))
        wire.answers()
        took.append((time.perf_counter() - began) * 1000)
        time.sleep(0.002)
    return sorted(took)


def quantile(took: list[float], share: float) -> float:
    return took[min(len(took) - 1, int(len(took) * share))]


class Broker:
    def __init__(self, slow_s: float) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="aerobee-bench-")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        settings = {
            "storePathRootDir": self._folder.name,
            "listenPort": self.port,
            "namesrvListenPort": -1,
            "metricsExporterType": "DISABLE",
            "mappedFileSizeCommitLog": 256 << 20,
            "mappedFileSizeConsumeQueue": 20 * 3000,
            "maxTopics": 10**6,
            "maxGroups": 10**6,
        }
        sets = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        environment = os.environ | {"SLOW_SYNC_S": str(slow_s)}
        with (Path(self._folder.name) / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SLOW, "broker", *sets],
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
            )
        assert self._process.stdout is not None
        self._process.stdout.readline()
        self.pid = self._process.pid

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()


def beside(slow_s: float, seconds: float) -> None:
    print(f"sends beside a client with {_IN_FLIGHT} under way, each sync {slow_s * 1000:g} ms more")
    with Broker(slow_s) as broker:
        live(broker.port, 1.0)
        for kind in KINDS:
            base = live(broker.port, seconds)  # each time anew: a machine has its moods
            print(f"  alone: p50 {quantile(base, 0.5):.2f} ms, p99 {quantile(base, 0.99):.2f} ms")
            stop, made = multiprocessing.Event(), multiprocessing.Queue()
            args = (broker.port, kind, stop, made)
            other = multiprocessing.Process(target=_create_until, args=args)
            other.start()
            time.sleep(0.5)
            took = live(broker.port, seconds)
            stop.set()
            count = made.get()
            other.join()
            p50, p99 = quantile(took, 0.5), quantile(took, 0.99)
            ratios = f"x{p50 / quantile(base, 0.5):.1f}, x{p99 / quantile(base, 0.99):.1f}"
            rate = count / (seconds + 0.5)
            print(
                f"  {kind}: p50 {p50:.2f} ms, p99 {p99:.2f} ms, max {took[-1]:.1f} ms "
                f"({ratios}); {rate:.0f}/s"
            )


def whole(count: int) -> None:
    for in_flight in (1, _IN_FLIGHT):
        print(f"{count} of each, {in_flight} under way")
        for kind in KINDS:
            with Broker(0.0) as broker:
                names = (f"n{number}" for number in range(count))
                if kind.startswith("offsets"):
                    create(broker.port, "topics by sends", iter(["Live"]), 1, None)
                began = time.perf_counter()
                create(broker.port, kind, names, in_flight, None)
                print(f"  {kind}: {time.perf_counter() - began:.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fsync-ms", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--count", type=int, default=20_000)
    args = parser.parse_args()
    beside(args.fsync_ms / 1000, args.seconds)
    if args.count:
        whole(args.count)


if __name__ == "__main__":
    main()
