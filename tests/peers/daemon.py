"""A broker, or a name server, as a process of its own."""

from __future__ import annotations

import re
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from aerobee_command import start_daemon

SMALL = {
    "listenPort": "0",
    "namesrvListenPort": "0",
    "metricsPromExporterPort": "0",
    "mappedFileSizeCommitLog": "1048576",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
}

MODULE = (sys.executable, "-m", "aerobee.broker")


class Daemon:
    """`aerobee broker`, which may be forked (`start_daemon`), or another program, with its store in
    `folder`."""

    def __init__(
        self,
        folder: Path,
        *args: str,
        env: dict[str, str] | None = None,
        program: Sequence[str] = MODULE,
        **settings: str,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / "broker.log"
        values = SMALL | {"storePathRootDir": str(folder / "store")} | settings
        sets = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
        words = [*args, *sets]
        if not args and not env and program is MODULE:
            program, words = (), ["broker", *sets]
        whole = {"PATH": "/usr/bin:/bin", "HOME": str(folder)} | (env or {})
        self.process = start_daemon(program, words, self._log, whole)
        assert self.process.stdout is not None
        self.stdout = self.process.stdout

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.stdout.close()

    def ready(self) -> dict[str, str]:
        """What the ready line says."""
        late = threading.Timer(60, self.process.kill)
        late.start()
        line = self.stdout.readline()
        late.cancel()
        assert line.startswith("ready "), f"no ready line but {line!r}; its log:\n{self.log()}"
        return dict(word.split("=", 1) for word in line.split()[1:])

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.process.wait(timeout=30)

    def log(self) -> str:
        return self._log.read_text()

    def metrics_address(self) -> str:
        found = re.search(r"http://([\d.:]+)/metrics", self.log())
        assert found, self.log()
        return found[1]
