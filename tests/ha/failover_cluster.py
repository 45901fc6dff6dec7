"""Brokers of one name with a real arbiter, as processes, and a producer that finds their master."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

from peers.aerobee_broker import AerobeeBroker
from peers.controller import ApacheController
from peers.tools import wait_for
from peers.wire import Wire

from ha.etcd_server import EtcdServer
from ha.processes import SIZES, Producer, log_files
from ha.test_killed import check

NOT_A_MASTER = (14, 1, 2)


class Replicas:
    """Brokers of one name, by their ids."""

    def __init__(self, folder: Path, count: int, **settings: str) -> None:
        self.brokers = {
            number: AerobeeBroker(
                folder / f"broker{number}",
                **SIZES | {"slaveTimeout": "2000", "brokerId": str(number)} | settings,
            )
            for number in range(1, count + 1)
        }

    def start(self) -> None:
        for broker in self.brokers.values():
            broker.start()

    def kill(self) -> None:
        for broker in self.brokers.values():
            if broker.is_running:
                broker.kill()

    def name_each_other(self) -> None:
        """Register each broker with every name service, by a rolling restart."""
        names = ";".join(broker.namesrv for broker in self.brokers.values())
        for broker in self.brokers.values():
            broker.settings["namesrvAddr"] = names
            broker.restart()
            self.wait_for_leader()

    # -- what they say

    def status(self, number: int) -> dict[str, Any]:
        """Empty when it does not answer."""
        broker = self.brokers[number]
        if not broker.is_running:
            return {}
        try:
            with Wire(broker.broker, timeout=2) as wire:
                return dict(json.loads(wire.request(907, {}).body))
        except (OSError, ValueError):
            return {}

    def away_s(self, number: int) -> float | None:
        """Seconds since the arbiter last answered it."""
        found: float | None = self.status(number).get("failover", {}).get("awaySeconds")
        return found

    def is_away(self, number: int, seconds: float) -> bool:
        """Whether the arbiter has not answered it for that long."""
        return (self.away_s(number) or 0) > seconds

    def leader(self) -> int | None:
        """The broker that accepts messages, in the newest epoch."""
        told = {number: self.status(number).get("failover", {}) for number in self.brokers}
        leading = {number: of["epoch"] for number, of in told.items() if of.get("leads")}
        return max(leading, key=lambda number: leading[number]) if leading else None

    def wait_for_leader(self, *, other_than: int | None = None) -> int:
        wait_for(
            lambda: self.leader() not in (None, other_than), timeout=60, what="there is a master"
        )
        found = self.leader()
        assert found is not None
        return found

    def in_sync(self) -> list[int]:
        leader = self.leader()
        return self.status(leader)["failover"]["inSync"] if leader is not None else []

    def wait_in_sync(self, *numbers: int) -> int:
        """Waits until these are the in-sync set; returns the master."""
        wait_for(
            lambda: self.in_sync() == sorted(numbers), timeout=60, what=f"{numbers} are in sync"
        )
        return self.wait_for_leader()

    # -- the checker

    def check(self, producer: Producer) -> None:
        """All are up, in sync and byte-equal, and have what was acknowledged."""
        self.wait_in_sync(*self.brokers)
        addresses = [broker.broker for broker in self.brokers.values()]
        wait_for(lambda: len(set(map(ends, addresses))) == 1, timeout=60, what="all are in step")
        check(producer, *addresses)
        for broker in self.brokers.values():
            broker.stop()
        first, *others = (log_files(broker.store) for broker in self.brokers.values())
        assert all(other == first for other in others)


class Cluster(Replicas):
    """Those whose arbiter is etcd."""

    def __init__(self, folder: Path, count: int, **settings: str) -> None:
        self.etcd = EtcdServer(folder / "etcd")
        super().__init__(folder, count, **{"etcdEndpoints": self.etcd.url} | settings)

    def __enter__(self) -> Cluster:
        self.etcd.start()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.etcd.stop()


class ControllerCluster(Replicas):
    """Those whose arbiter is Apache's controller, which gives ids in the order of their starts."""

    def __init__(self, folder: Path, count: int, **settings: str) -> None:
        self.controller = ApacheController(folder / "controller")
        own = {
            "enableControllerMode": "true",
            "controllerAddr": self.controller.address,
            "namesrvAddr": self.controller.namesrv,
            "namesrvListenPort": "-1",
            "controllerHeartBeatTimeoutMills": "3000",
            "brokerRole": "SLAVE",  # as RocketMQ's examples say of every one
            "brokerId": "-1",
        }
        super().__init__(folder, count, **own | settings)

    def __enter__(self) -> ControllerCluster:
        self.controller.start()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        if self.controller.is_running:
            self.controller.kill()


def ends(address: str) -> tuple[int, int]:
    """The log's end, and how far it is dispatched."""
    with Wire(address) as wire:
        table = json.loads(wire.request(28, {}).body)["table"]
        end = int(table["commitLogMaxOffset"])
        return end, end - int(table.get("dispatchBehindBytes", 0))


class FailoverProducer(Producer):
    """Tries one broker after the other until one accepts its messages."""

    def __init__(self, cluster: Replicas) -> None:
        super().__init__("")
        self._cluster = cluster
        self.longest_s = 0.0  # between two that were acknowledged

    def run(self) -> None:
        last = time.monotonic()
        for broker in itertools.cycle(self._cluster.brokers.values()):
            if self._ending.is_set():
                return
            try:
                with Wire(broker.broker, timeout=5) as wire:
                    while not self._ending.is_set():
                        before, refused = len(self.acked), sum(map(self._count, NOT_A_MASTER))
                        self.send(wire)
                        if len(self.acked) > before:
                            self.longest_s = max(self.longest_s, time.monotonic() - last)
                            last = time.monotonic()
                        elif sum(map(self._count, NOT_A_MASTER)) > refused:
                            break
            except (OSError, ConnectionError):
                pass
            time.sleep(0.02)

    def _count(self, code: int) -> int:
        return self.codes.get(code, 0)
