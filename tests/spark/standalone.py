"""A standalone Spark cluster on the loopback: a master and two workers with one core each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyspark
from peers.tools import free_port, wait_for
from spark.kills import command_of, descendants

JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# pip's Spark has no sbin/: the daemons are started by their classes.
CONFIG = {
    "spark.executor.memory": "600m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.executor.extraJavaOptions": JVM,
    "spark.pyspark.python": sys.executable,
}


class StandaloneCluster:
    """Started by entering it; `master` is its address."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.master = f"spark://127.0.0.1:{self.port}"
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> StandaloneCluster:
        self.folder.mkdir(parents=True, exist_ok=True)
        address = ("--host", "127.0.0.1", "--webui-port", "0")
        self._start("master.Master", *address, "--port", str(self.port))
        wait_for(
            lambda: "I have been elected leader" in self.log(), timeout=60, what="the master is up"
        )
        for number in range(2):
            folder = str(self.folder / f"worker-{number}")
            self._start(
                "worker.Worker", *address, "-c", "1", "-m", "900m", "-d", folder, self.master
            )
        wait_for(
            lambda: self.log().count("Registering worker") == 2,
            timeout=60,
            what="both workers are there",
        )
        return self

    def __exit__(self, *_: object) -> None:
        for daemon in self._daemons:
            below = descendants(daemon.pid)
            os.killpg(daemon.pid, signal.SIGKILL)
            daemon.wait()
            for pid in below:
                if command_of(pid):
                    os.kill(pid, signal.SIGKILL)

    def _start(self, name: str, *words: str) -> None:
        home = Path(pyspark.__file__).parent
        environment = os.environ | {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "300m",
            "SPARK_DAEMON_JAVA_OPTS": JVM,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(Path(__file__).parents[1]),
        }
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *words]
        with (self.folder / "daemons.log").open("ab") as log:
            daemon = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        self._daemons.append(daemon)

    def log(self) -> str:
        path = self.folder / "daemons.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def executors(self) -> list[int]:
        """The executors' JVMs."""
        return [
            pid
            for daemon in self._daemons
            for pid in descendants(daemon.pid)
            if b"CoarseGrainedExecutorBackend" in command_of(pid)
        ]
