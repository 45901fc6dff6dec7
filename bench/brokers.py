"""The brokers under measurement as processes: Aerobee and Apache RocketMQ, started alike.

Each runs on free ports of 127.0.0.1 with its files in a given folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from peers.apache import SERVER_VERSIONS, build
from peers.tools import free_port

from bench.process import ServerProcess
from bench.wire import first_send

AEROBEE = "aerobee"
APACHE_4 = "apache-4.9"
APACHE_5 = "apache-5.5"
_APACHE_VERSIONS = {APACHE_4: "4.9.8", APACHE_5: "5.5.0"}
_OPENS = ("sun.nio.ch", "java.nio", "java.lang", "java.util", "jdk.internal.ref")

# Equal on both sides: file sizes, transfer limits, index on, no shortcuts.
EQUAL_SETTINGS = {
    "mappedFileSizeCommitLog": "268435456",
    "maxTransferCountOnMessageInMemory": "4096",
    "maxTransferBytesOnMessageInMemory": "8388608",
    "maxTransferCountOnMessageInDisk": "4096",
    "maxTransferBytesOnMessageInDisk": "8388608",
    "messageIndexEnable": "true",
    # Upstream answers SYSTEM_BUSY when a send waits 200 ms; a benchmark must count sends instead.
    "waitTimeMillsInSendQueue": "10000",
    "osPageCacheBusyTimeOutMills": "10000",
}


@cache
def _keep_bytecode() -> None:
    """As an installation does. Else the first start of a fresh clone measures Python's compiler:
    0.35 seconds and 4 MB more."""
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}
    imports = [sys.executable, "-c", "import aerobee.broker.daemon.main"]
    subprocess.run(imports, env=environment, check=True)


class BrokerProcess(ServerProcess):
    """A broker of one kind, driven over RocketMQ's wire."""

    def __init__(self, kind: str, folder: Path, **settings: str) -> None:
        super().__init__(kind, folder)
        self.store = folder / "store"
        self.settings = EQUAL_SETTINGS | settings
        self.port = free_port(-2, 1)
        self.namesrv_port = free_port()

    def command(self) -> list[str]:
        return self._aerobee() if self.kind == AEROBEE else self._apache()

    def accepts(self) -> bool:
        return first_send(self.port)

    def _aerobee(self) -> list[str]:
        _keep_bytecode()
        settings = self.settings | {
            "storePathRootDir": str(self.store),
            "listenPort": str(self.port),
            "namesrvListenPort": str(self.namesrv_port),
        }
        sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        return [sys.executable, "-m", "aerobee.broker", *sets]

    def _apache(self) -> list[str]:
        version = _APACHE_VERSIONS[self.kind]
        opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENS]
        jvm = ["-Xms1g", "-Xmx1g", f"-Duser.home={self.folder}"]
        sets = [f"{key}={value}" for key, value in self.settings.items()]
        ports = [str(self.namesrv_port), str(self.port), str(self.folder)]
        main = ["-cp", build(version), "peers.ApacheBroker"]
        return ["java", *opens, *jvm, *main, *ports, *sets]

    def describe(self) -> str:
        if self.kind == AEROBEE:
            return f"Aerobee, CPython {sys.version.split()[0]}"
        version = _APACHE_VERSIONS[self.kind]
        return f"Apache RocketMQ {SERVER_VERSIONS.get(version, version)}, -Xms1g -Xmx1g"
