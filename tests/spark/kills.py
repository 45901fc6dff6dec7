"""Kills a driver's whole process group, or one of its Python workers, in the middle of a batch."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path


def wait_until(check: Callable[[], bool], driver: subprocess.Popen[str], seconds: float) -> bool:
    """Whether it came true before the driver ended; AssertionError when neither happens."""
    deadline = time.monotonic() + seconds
    while not check():
        if driver.poll() is not None:
            return False
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.05)
    return True


def kill_group(driver: subprocess.Popen[str]) -> str:
    """SIGKILL for Python, JVM and workers at once; what the driver printed."""
    os.killpg(driver.pid, signal.SIGKILL)
    output, _ = driver.communicate()
    return output


def kill_worker(driver: subprocess.Popen[str]) -> bool:
    """SIGKILL for a Python worker that runs a task; whether there was one."""
    for pid in group_members(driver.pid):
        command = Path(f"/proc/{pid}/cmdline").read_bytes() if _alive(pid) else b""
        if b"pyspark.daemon" in command and parent_of(pid) in group_members(driver.pid):
            parent = Path(f"/proc/{parent_of(pid)}/cmdline").read_bytes()
            if b"pyspark.daemon" in parent:  # a worker is forked by the daemon
                os.kill(pid, signal.SIGKILL)
                return True
    return False


def group_members(group: int) -> list[int]:
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.getpgid(int(entry.name)) == group:
                    members.append(int(entry.name))
            except ProcessLookupError:
                continue
    return members


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
