"""The brokers under measurement as processes: Aerobee and Apache RocketMQ, started alike.

Each runs on free ports of 127.0.0.1 with its files in a given folder; what they cost is read from
/proc, not asked of them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from peers.apache import SERVER_VERSIONS, build  # noqa: E402
from peers.tools import free_port  # noqa: E402

from bench.wire import first_send  # noqa: E402

AEROBEE = "aerobee"
APACHE_4 = "apache-4.9"
APACHE_5 = "apache-5.5"
_APACHE_VERSIONS = {APACHE_4: "4.9.8", APACHE_5: "5.5.0"}
_OPENS = ("sun.nio.ch", "java.nio", "java.lang", "java.util", "jdk.internal.ref")
_START_SECONDS = 120

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


class BrokerProcess:
    """A running broker of one kind: `start` waits for its first accepted send."""

    def __init__(self, kind: str, folder: Path, **settings: str) -> None:
        self.kind = kind
        self.folder = folder
        self.store = folder / "store"
        self.settings = EQUAL_SETTINGS | settings
        self.port = free_port(-2, 1)
        self.namesrv_port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Seconds from the start of the process to its first accepted send."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = self._aerobee() if self.kind == AEROBEE else self._apache()
        begin = time.perf_counter()
        with (self.folder / "output.log").open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        while not first_send(self.port):
            if self._process.poll() is not None:
                log = (self.folder / "output.log").read_text(errors="replace")
                raise RuntimeError(f"{self.kind} ended by itself; its output:\n{log[-3000:]}")
            if time.perf_counter() - begin > _START_SECONDS:
                raise RuntimeError(f"{self.kind} took no send within {_START_SECONDS} s")
            time.sleep(0.005)
        return time.perf_counter() - begin

    def _aerobee(self) -> list[str]:
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

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    def cpu_seconds(self) -> float:
        """User and system time of the process so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mb(self) -> tuple[float, float]:
        """Resident and anonymous memory."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        sizes = {line.split(":")[0]: line.split() for line in lines}
        return int(sizes["VmRSS"][1]) / 1024, int(sizes["RssAnon"][1]) / 1024

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(timeout=120)
            self._process = None

    def describe(self) -> str:
        if self.kind == AEROBEE:
            return f"Aerobee, CPython {sys.version.split()[0]}"
        return f"Apache RocketMQ {SERVER_VERSIONS[_APACHE_VERSIONS[self.kind]]}, -Xms1g -Xmx1g"
