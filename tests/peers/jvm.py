"""A JVM as a process of a test: its output in a file, killed at the end, an early end reported."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Self


class Jvm:
    """Started by entering it, killed by leaving it; a subclass says how it starts."""

    def __init__(self, folder: Path, what: str) -> None:
        self.folder = folder
        self._what = what
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.kill()

    def start(self) -> None:
        raise NotImplementedError

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"{self._what} is not running"
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def _launch(self, argv: list[str]) -> None:
        with (self.folder / "output.log").open("ab") as output:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )

    def check_alive(self) -> None:
        if self.process.poll() is not None:
            raise AssertionError(f"the JVM ended by itself:\n{self.output()[-4000:]}")

    def kill(self) -> None:
        """SIGKILL: what is not written yet is lost."""
        self.process.kill()
        self.ended()

    def ended(self, timeout: float | None = None) -> int:
        """Waits for its end; the exit code."""
        code = self.process.wait(timeout)
        self._process = None
        return code

    def output(self) -> str:
        return (self.folder / "output.log").read_text(errors="replace")
