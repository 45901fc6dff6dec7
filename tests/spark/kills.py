"""Kills a driver's whole process group, or one of its Python workers, in the middle of a batch."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def wait_until(check: Callable[[], bool], driver: subprocess.Popen[str], seconds: float) -> bool:
    """Whether it held before the driver ended; AssertionError on timeout."""
    deadline = time.monotonic() + seconds
    while not check():
        if driver.poll() is not None:
            return False
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.05)
    return True


def kill_group(driver: subprocess.Popen[str]) -> str:
    """SIGKILL for Python, JVM and workers at once; what the driver printed."""
    with suppress(ProcessLookupError):  # it has exited
        os.killpg(driver.pid, signal.SIGKILL)
    output, _ = driver.communicate()
    return output


def kill_worker(driver: subprocess.Popen[str]) -> bool:
    """SIGKILL for a Python worker that runs tasks; whether there was one."""
    workers = [
        pid
        for pid in descendants(driver.pid)
        if b"pyspark.daemon\0pyspark.worker" in command_of(pid)
        if b"pyspark.daemon\0pyspark.worker" in command_of(parent_of(pid))  # forked by the daemon
    ]
    for pid in workers[:1]:
        os.kill(pid, signal.SIGKILL)
    return bool(workers)


def descendants(root: int) -> list[int]:
    """Every process below this one; PySpark's daemons leave the driver's process group."""
    parents = {
        int(p.name): parent_of(int(p.name)) for p in Path("/proc").iterdir() if p.name.isdigit()
    }
    found, fresh = [], {root}
    while fresh:
        fresh = {pid for pid, parent in parents.items() if parent in fresh}
        found += sorted(fresh)
    return found


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
