"""Apache RocketMQ itself: the Java project built once per version, and its broker as a process.

``build(version)`` gives the class path, ``ApacheBroker(version, folder, key=value)`` a running name
server and broker on free ports of 127.0.0.1. The clients and mqadmin are in ``java_client``.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peers.jvm import Jvm
from peers.tools import build_once, free_port, need_tools, wait_for
from peers.wire import has_route

PROJECT = Path(__file__).parent / "java"
SERVER_VERSIONS = {"4.9.8": "4.9.7"}  # of clients that have no server of the same number
# TEST_JAVA_CLIENTS=4.7.1,5.3.3 tries others; the driver needs 4.7 or newer.
VERSIONS = tuple(os.environ.get("TEST_JAVA_CLIENTS", "4.9.8,5.5.0").split(","))

_OPENS = ("sun.nio.ch", "java.nio", "java.lang", "java.util", "jdk.internal.ref")
# Small and equal to what the tests give an Aerobee broker, so that folders can be exchanged.
STORE_SIZES = {
    "mappedFileSizeCommitLog": "16777216",
    "maxIndexNum": "400000",
    "maxHashSlotNum": "100000",
}


def build(version: str) -> str:
    """The class path of the peers with the clients, tools and servers of this version."""
    need_tools("java", "javac", "mvn")
    versions = [
        f"-Dclient.version={version}",
        f"-Dserver.version={SERVER_VERSIONS.get(version, version)}",
    ]
    target = PROJECT / "target" / version
    build_once(
        [["mvn", "-q", "-B", *versions, "package"]],
        folder=PROJECT,
        sources=[PROJECT / "pom.xml", *PROJECT.glob("src/**/*.java")],
        stamp=target / "built.sha256",
    )
    return f"{target}/classes:{target}/lib/*"


def java_command(version: str, home: Path, main: str, *args: str, **options: Any) -> list[str]:
    """The argv of a JVM that runs one of our own classes."""
    return java_argv(version, home, f"peers.{main}", *args, **options)


def java_argv(
    version: str,
    home: Path,
    main: str,
    *args: str,
    heap: str = "512m",
    properties: Mapping[str, str] | None = None,
) -> list[str]:
    """The argv of a JVM for a test: a small heap, quick to start, its home in the given folder."""
    defines = [f"-D{key}={value}" for key, value in (properties or {}).items()]
    opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENS]
    jvm = [f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Duser.home={home}"]
    return ["java", *opens, *jvm, *defines, "-cp", build(version), main, *args]


class ApacheBroker(Jvm):
    """A name server and a broker of Apache RocketMQ in one JVM, started by entering it.

    ``folder`` gets conf/, logs/ and store/. Settings are broker settings by their own names. The
    ports stay the same over ``start`` after ``stop`` or ``kill``.
    """

    def __init__(self, version: str, folder: Path, *, heap: str = "512m", **settings: str) -> None:
        super().__init__(folder, "the broker")
        self.version = version
        self.store = folder / "store"
        self.settings = STORE_SIZES | settings
        self.port = free_port(-2, 1)  # the VIP port and the HA port
        self.namesrv_port = free_port()
        self.broker = f"127.0.0.1:{self.port}"
        self.namesrv = f"127.0.0.1:{self.namesrv_port}"
        self.heap = heap

    def start(self) -> None:
        """Starts it and waits until a client would find the route of the template topic."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = java_command(
            self.version,
            self.folder,
            "ApacheBroker",
            str(self.namesrv_port),
            str(self.port),
            str(self.folder),
            *(f"{key}={value}" for key, value in self.settings.items()),
            heap=self.heap,
        )
        self._launch(command)
        try:
            wait_for(self._is_ready, timeout=60, what=f"Apache RocketMQ {self.version} is up")
        except BaseException:
            self.kill()
            raise

    def _is_ready(self) -> bool:
        self.check_alive()
        # Registered together with the template topic TBW102, and there without auto-creation too.
        return has_route(self.namesrv, "SELF_TEST_TOPIC")

    def stop(self) -> None:
        """A clean stop: SIGTERM, which a JVM answers with exit code 143."""
        self.process.send_signal(signal.SIGTERM)
        code = self.ended(timeout=60)
        assert code == 143, f"exit code {code}:\n{self.output()[-4000:]}"
