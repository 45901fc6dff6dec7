"""The load clients of RocketMQ's wire: bench/load/load.c, and Apache's Java client beside it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peers import apache

from bench.driver import LineDriver, compile_java

if TYPE_CHECKING:
    from bench.brokers import BrokerProcess
    from bench.session import Drive

JAVA_CLIENT = "5.5.0"  # the newest, for every broker
SOURCE = Path(__file__).parent / "load" / "load.c"
BUILT = Path(__file__).parent / "build"


def compiled(source: Path) -> Path:
    """The binary of a C program, built again when the source is newer."""
    binary = BUILT / source.stem
    if not binary.exists() or binary.stat().st_mtime < source.stat().st_mtime:
        BUILT.mkdir(exist_ok=True)
        subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-o", binary, source], check=True)
    return binary


def build() -> Path:
    """The load client."""
    return compiled(SOURCE)


def load(mode: str, port: int, *, check: bool = True, **options: object) -> dict[str, Any]:
    """One run; raises when an answer was not a success, a message is missing or bodies differ."""
    words = [f"{name}={value}" for name, value in options.items()]
    done = subprocess.run(
        [build(), mode, str(port), *words], capture_output=True, text=True, timeout=600
    )
    if check and done.returncode != 0:
        what = f"load {mode} {' '.join(words)} ended with {done.returncode}"
        raise RuntimeError(f"{what}: {done.stdout}{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def drive_of(broker: BrokerProcess) -> Drive:
    """The C load client on this broker."""

    def drive(mode: str, **options: Any) -> dict[str, Any]:
        return load(mode, broker.port, **options)

    return drive


def java_class_path() -> str:
    """The driver by Apache's Java client, compiled when its source changed."""
    sources = ["Lines.java", "RocketmqDriver.java"]
    return compile_java("rocketmq", apache.build(JAVA_CLIENT), *sources)


def java_client(broker: BrokerProcess) -> LineDriver:
    """Apache's Java client on this broker."""
    home = broker.folder / "java-client"  # it writes its log there
    jvm = ["java", "-Xms512m", "-Xmx512m", f"-Duser.home={home}", "-cp", java_class_path()]
    return LineDriver(
        [*jvm, "RocketmqDriver", f"127.0.0.1:{broker.namesrv_port}"], home / "errors.log"
    )
