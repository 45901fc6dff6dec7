"""Aerobee beside other brokers, by the C load client and by Apache's Java client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench import load_client
from bench.brokers import AEROBEE, BrokerProcess
from bench.driver import LineDriver
from bench.peers.base import Peer
from bench.process import need


class AerobeeByC(Peer, BrokerProcess):
    title = "Aerobee (C)"
    client = "the C load client of bench/load"
    unflushed = "ASYNC_FLUSH"
    flushed = "SYNC_FLUSH"

    def __init__(self, folder: Path, *, sync: bool) -> None:
        flush = self.flushed if sync else self.unflushed
        BrokerProcess.__init__(self, AEROBEE, folder, flushDiskType=flush)

    @classmethod
    def prepare(cls) -> None:
        need("cc=gcc")
        load_client.build()

    def run(self, mode: str, **options: Any) -> dict[str, Any]:
        return load_client.load(mode, self.port, **options)

    def close(self) -> None:
        self.kill()


class AerobeeByJava(AerobeeByC):
    title = "Aerobee (Java)"
    client = f"Apache's Java client, rocketmq-client {load_client.JAVA_CLIENT}"

    _driver: LineDriver | None = None

    @classmethod
    def prepare(cls) -> None:
        super().prepare()
        need("java=openjdk-17-jdk-headless", "javac=openjdk-17-jdk-headless", "mvn=maven")
        load_client.java_class_path()

    def start(self) -> float:
        seconds = super().start()
        self._driver = load_client.java_client(self)  # later, so that it does not slow the start
        return seconds

    def run(self, mode: str, **options: Any) -> dict[str, Any]:
        """What is stored is counted from the wire, not by the client that sent it."""
        if mode == "count":
            return super().run(mode, **options)
        assert self._driver is not None, "not started"
        return self._driver.run(mode, **options)

    def close(self) -> None:
        super().close()
        if self._driver is not None:
            self._driver.close()
