"""Kafka in KRaft mode from its Maven artifacts, driven by its own Java client."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from peers.tools import free_port

from bench.driver import BUILD, JAVA_SOURCES, compile_java
from bench.peers.base import DrivenPeer
from bench.process import need

_POM = JAVA_SOURCES / "kafka.xml"
_LIB = BUILD / "kafka" / "lib"
_CLUSTER = "AerobeeBenchKafkaPeerA"  # any 16 bytes in base64
_QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"


class Kafka(DrivenPeer):
    title = "Kafka"
    client = "its Java client, linger.ms=0, acks=all"
    unflushed = "left to the system (its default)"
    flushed = "log.flush.interval.messages=1"

    def __init__(self, folder: Path, *, sync: bool) -> None:
        self.port = free_port()
        self.controller_port = free_port()
        super().__init__(folder, sync=sync)

    @classmethod
    def prepare(cls) -> None:
        need("java=openjdk-17-jdk-headless", "javac=openjdk-17-jdk-headless", "mvn=maven")
        stamp = _LIB / ".fetched"
        if not stamp.exists() or stamp.stat().st_mtime < _POM.stat().st_mtime:
            shutil.rmtree(_LIB, ignore_errors=True)  # no jars of another version
            subprocess.run(["mvn", "-q", "-B", "-f", _POM, "package"], check=True)
            stamp.touch()
        compile_java("kafka", f"{_LIB}/*", "Lines.java", "KafkaDriver.java")

    def command(self) -> list[str]:
        config = self.folder / "server.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in self._settings().items()))
        format_store = ["format", "-t", _CLUSTER, "-c", str(config)]
        java = ["java", _QUIET, "-cp", f"{_LIB}/*"]
        tool = [*java, "kafka.tools.StorageTool", *format_store]
        subprocess.run(tool, check=True, stdout=subprocess.DEVNULL)
        return [java[0], "-Xms1g", "-Xmx1g", *java[1:], "kafka.Kafka", str(config)]

    def _settings(self) -> dict[str, str]:
        controller = f"127.0.0.1:{self.controller_port}"
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://{controller}",
            "log.dirs": str(self.folder / "store"),
            "offsets.topic.replication.factor": "1",
        }
        return settings | ({"log.flush.interval.messages": "1"} if self.sync else {})

    def driver_command(self) -> list[str]:
        class_path = compile_java("kafka", f"{_LIB}/*", "Lines.java", "KafkaDriver.java")
        jvm = ["java", "-Xms512m", "-Xmx512m", _QUIET, "-cp", class_path]
        return [*jvm, "KafkaDriver", f"127.0.0.1:{self.port}"]

    def describe(self) -> str:
        (jar,) = _LIB.glob("kafka_*.jar")
        return f"Kafka {jar.stem.rpartition('-')[2]} in KRaft mode, -Xms1g -Xmx1g"
