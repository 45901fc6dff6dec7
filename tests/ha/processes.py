"""A master and a slave as processes of their own, and a producer that never gives up."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

from peers.aerobee_broker import AerobeeBroker
from peers.tools import wait_for
from peers.wire import Wire

SIZES = {
    "mappedFileSizeCommitLog": "262144",
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "200",
    "maxIndexNum": "2000",
    "brokerName": "pair",
}
TOPIC = "Pair"


def send_fields(queue_id: int, key: str) -> dict[str, str]:
    names = ("PG", TOPIC, "TBW102", "2", str(queue_id), "0", "1700000000000", "0")
    text = f"KEYS\x01{key}\x02UNIQ_KEY\x01{key:0>32}\x02TAGS\x01tag\x02WAIT\x01true\x02"
    return dict(zip("abcdefghijkm", (*names, text, "0", "false", "false"), strict=True))


class Producer(threading.Thread):
    """Sends to queue 0 and 1 in turns; `acked` has what was acknowledged, by queue and offset."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.address = address
        self.acked: dict[tuple[int, int], bytes] = {}
        self.codes: dict[int, int] = {}
        self._ending = threading.Event()
        self._numbers = itertools.count()

    def run(self) -> None:
        while not self._ending.is_set():
            try:
                with Wire(self.address, timeout=10) as wire:
                    while not self._ending.is_set():
                        self.send(wire)
            except (OSError, ConnectionError):
                time.sleep(0.05)

    def send(self, wire: Wire) -> None:
        number = next(self._numbers)
        body = b"%06d " % number + bytes(97 + number % 26 for _ in range(200 + number % 600))
        answer = wire.request(310, send_fields(number % 2, f"k{number}"), body)
        self.codes[answer.code] = self.codes.get(answer.code, 0) + 1
        if answer.code == 0:
            self.acked[number % 2, int(answer.ext["queueOffset"])] = body

    def acknowledge(self, count: int) -> None:
        """Wait for so many more."""
        before = len(self.acked)
        self.until(lambda: len(self.acked) >= before + count, "sends are acknowledged")

    def until(self, condition: Callable[[], object], what: str) -> None:
        wait_for(lambda: bool(condition()), timeout=60, what=what)

    def stop(self) -> None:
        self._ending.set()
        self.join(20)


def log_end(address: str) -> int:
    with Wire(address) as wire:
        table = json.loads(wire.request(28, {}).body)["table"]
        behind = int(table.get("dispatchBehindBytes", 0))
        return int(table["commitLogMaxOffset"]) - behind


def has_topic(address: str) -> bool:
    with Wire(address) as wire:
        table = json.loads(wire.request(21, {}).body)["topicConfigTable"]
        return TOPIC in table


def wait_in_step(slave: str, master: str, timeout: float = 60) -> None:
    def is_in_step() -> bool:
        try:
            return log_end(slave) == log_end(master) and has_topic(slave)
        except (OSError, ValueError):  # it is starting
            return False

    wait_for(is_in_step, timeout=timeout, what="the slave has what the master has")


def log_files(store: Path) -> dict[str, bytes]:
    files = sorted((store / "commitlog").iterdir())
    found = {file.name: file.read_bytes().rstrip(b"\0") for file in files}
    return {name: data for name, data in found.items() if data}


def master_of(folder: Path, **settings: str) -> AerobeeBroker:
    return AerobeeBroker(folder / "master", **SIZES | settings)


def slave_of(folder: Path, namesrv: str, broker_id: int = 1, /, **settings: str) -> AerobeeBroker:
    role = {"brokerRole": "SLAVE", "brokerId": str(broker_id), "namesrvAddr": namesrv}
    return AerobeeBroker(folder / f"slave{broker_id}", **SIZES | role | settings)
