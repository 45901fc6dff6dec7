"""How much five viewers of the console slow a client that sends.

    python -m bench.viewers [--viewers 5] [--seconds 10] [--rounds 5]

A broker with 50 topics and 20 groups, and round trips of single sends to it, in turns: without
viewers, and with five, each on another page. A viewer sends the requests of a browser: the page
and its files, a session, then the page's figures and the cluster's health, as often as the page's
script does. Prints the p99 of each turn and its ratio to the mean of the quiet turns before
and after. Ends with 1 when the median of the ratios is above 1.10.

"elsewhere" is a second control: the same viewers at another broker on this machine, and the same
sends to the first one. What they cost there is the cores', not the broker's.

Real viewers are on other machines, so these run only on idle cores (SCHED_IDLE), and the sender
preempts others if it may (as root). The console's process is the broker's child, as in production,
and competes with it. "control" is the ratio of two quiet turns that follow each other.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import multiprocessing
import os
import re
import socket
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from typing import Any

from bench.creations import Broker, come_first, create, live, quantile

RATIO_MAX = 1.10
TOPICS, GROUPS = 50, 20
HEALTH_EVERY_S = 10.0
SETTLE_S = 2.0
# As the `every` of static/pages/*.js.
PAGES = {
    "overview": 2.0,
    "topics": 5.0,
    "groups": 5.0,
    "waiting": 5.0,
    "store": 5.0,
    "cluster": 5.0,
    "clients": 5.0,
    "dead": 5.0,
}


class Viewer:
    """A browser with one page open."""

    def __init__(self, port: int, page: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._page = page
        self._cookie = ""
        self.answers = 0

    def look(self, stop: Event) -> None:
        html = self._get("/console/").decode()
        for path in re.findall(r"(?:href|src)=\"(/console/static/[^\"]+)\"", html):
            self._get(path)
        self._get("/console/api/session")
        due = {"health": 0.0, self._page: 0.0}
        every = {"health": HEALTH_EVERY_S, self._page: PAGES[self._page]}
        while not stop.is_set():
            name = min(due, key=lambda each: due[each])
            if not stop.wait(max(0.0, due[name] - time.monotonic())):
                json.loads(self._get(f"/console/api/{name}"))
                self.answers += 1
                due[name] = time.monotonic() + every[name]

    def _get(self, path: str) -> bytes:
        self._connection.request("GET", path, headers={"Cookie": self._cookie})
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise SystemExit(f"{path}: {answer.status} {body[:200]!r}")
        if cookie := answer.getheader("Set-Cookie"):
            self._cookie = cookie.partition(";")[0]
        return body


def _look(port: int, count: int, stop: Event, seen: multiprocessing.Queue[list[int]]) -> None:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    viewers = [Viewer(port, page) for page, _ in zip(itertools.cycle(PAGES), range(count))]
    threads = [threading.Thread(target=viewer.look, args=(stop,)) for viewer in viewers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen.put([viewer.answers for viewer in viewers])


def beside_viewers(broker: Broker, port: int, count: int, seconds: float) -> tuple[float, int]:
    """The sends' p99 in ms while so many look, and how much those were answered."""
    stop, seen = multiprocessing.Event(), multiprocessing.Queue()
    other = multiprocessing.Process(target=_look, args=(port, count, stop, seen))
    other.start()
    time.sleep(SETTLE_S)
    found = quantile(live(broker.port, seconds), 0.99)
    stop.set()
    answers = seen.get(timeout=90)
    other.join()
    if min(answers) < 1:
        raise SystemExit(f"a viewer saw nothing: {answers}")
    return found, sum(answers)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def broker_with_console(port: int) -> Iterator[Broker]:
    more: dict[str, Any] = {
        "metricsExporterType": "PROM",
        "metricsPromExporterPort": port,
        "namesrvListenPort": 0,
    }
    with Broker(0.0, **more) as broker:
        fill(broker.port)
        yield broker


def fill(port: int) -> None:
    create(port, "topics by sends", (f"topic-{n}" for n in range(TOPICS)), 10, None)
    create(port, "groups", (f"group-{n}" for n in range(GROUPS)), 10, None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--viewers", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    port, other_port = free_port(), free_port()
    with broker_with_console(port) as broker, broker_with_console(other_port):
        come_first()
        live(broker.port, 2.0)
        for each in (port, other_port):  # starts the consoles
            beside_viewers(broker, each, args.viewers, SETTLE_S)
        quiet = [quantile(live(broker.port, args.seconds), 0.99)]
        ratios: list[float] = []
        elsewhere: list[float] = []
        control: list[float] = []

        def turn(at: int, found: list[float]) -> str:
            watched, answers = beside_viewers(broker, at, args.viewers, args.seconds)
            quiet.append(quantile(live(broker.port, args.seconds), 0.99))
            found.append(watched / statistics.mean(quiet[-2:]))
            control.append(quiet[-1] / quiet[-2])
            return f"{watched:.3f} ms: x{found[-1]:.2f} ({answers} answers)"

        for _ in range(args.rounds):
            here, there = turn(port, ratios), turn(other_port, elsewhere)
            alone = ", ".join(f"{each:.3f}" for each in quiet[-3:])
            print(
                f"p99 alone {alone} ms; with {args.viewers} viewers {here}; elsewhere {there}",
                flush=True,
            )
    ratio = statistics.median(ratios)
    print(
        f"send p99 with {args.viewers} viewers: x{ratio:.2f} (median of {args.rounds}, "
        f"{min(ratios):.2f} to {max(ratios):.2f}; elsewhere x{statistics.median(elsewhere):.2f}, "
        f"{min(elsewhere):.2f} to {max(elsewhere):.2f}; control x{statistics.median(control):.2f}, "
        f"{min(control):.2f} to {max(control):.2f}); "
        f"at most x{RATIO_MAX:.2f}: {'met' if ratio <= RATIO_MAX else 'missed'}"
    )
    return 0 if ratio <= RATIO_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
