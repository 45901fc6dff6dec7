"""A server under measurement as a process: started, watched from /proc, stopped or killed.

What it costs is read from /proc, not asked of it.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from pathlib import Path

_START_SECONDS = 120


def need(*tools: str) -> None:
    """Ends the program with a sentence when a tool is missing; `name=package` says what has it."""
    wanted = dict((tool.split("=") * 2)[:2] for tool in tools)
    missing = {tool: wanted[tool] for tool in wanted if shutil.which(tool) is None}
    if missing:
        raise SystemExit(
            f"not found on PATH: {', '.join(missing)}; on Debian: "
            f"apt-get install {' '.join(sorted(set(missing.values())))}"
        )


class ServerProcess(ABC):
    """A server with its files in `folder`: `start` waits for its first accepted message."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> list[str]:
        """What to run."""

    @abstractmethod
    def accepts(self) -> bool:
        """True when a message that is sent now is stored."""

    @abstractmethod
    def describe(self) -> str:
        """Name and version."""

    def start(self) -> float:
        """Seconds from the start of the process to its first accepted message."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = self.command()
        begin = time.perf_counter()
        with (self.folder / "output.log").open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        while not self.accepts():
            if self._process.poll() is not None:
                log = (self.folder / "output.log").read_text(errors="replace")
                raise RuntimeError(f"{self.kind} ended by itself; its output:\n{log[-3000:]}")
            if time.perf_counter() - begin > _START_SECONDS:
                raise RuntimeError(f"{self.kind} took no message within {_START_SECONDS} s")
            time.sleep(0.005)
        return time.perf_counter() - begin

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.kind} is not running"
        return self._process.pid

    def cpu_seconds(self) -> float:
        """User and system time of the process so far, exactly: by its clock, as
        clock_getcpuclockid(3) names it. /proc has hundredths of a second."""
        return time.clock_gettime(~self.pid << 3 | 2)

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
