"""A real ``aerobee broker`` process for tests: free ports, its own folder, stop, kill, restart."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
from pathlib import Path

from aerobee_command import WarmCall, start_daemon

from peers.apache import STORE_SIZES
from peers.tools import free_port

_READY = re.compile(r"ready broker=(?P<broker>\S+) namesrv=(?P<namesrv>\S+) store=(?P<store>.+)")
_START_SECONDS = 90


class AerobeeBroker:
    """Started by entering it; ``broker`` and ``namesrv`` are its addresses.

    Every ``start`` after ``stop`` or ``kill`` takes the same ports, so that clients find it again.
    """

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder = folder
        self.store = folder / "store"
        # Metrics have a default port, and many brokers may run here at once.
        self.settings = STORE_SIZES | {"metricsExporterType": "DISABLE"} | settings
        self.broker = ""
        self.namesrv = ""
        self._ports = {"listenPort": f"{free_port(-2, 1)}", "namesrvListenPort": f"{free_port()}"}
        self._process: subprocess.Popen[str] | WarmCall | None = None

    def __enter__(self) -> AerobeeBroker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.kill()

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Started, and neither stopped nor killed by us; it may have exited on its own."""
        return self._process is not None

    def exit_code(self) -> int | None:
        """The exit code of a broker that ended; None while it runs."""
        assert self._process is not None, "the broker was not started"
        return self._process.poll()

    def wait_for_exit(self, timeout_s: float) -> int | None:
        """Its exit code; None when it is still running after the timeout."""
        assert self._process is not None, "the broker was not started"
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def start(self) -> None:
        """Starts the process and waits for its ready line."""
        self.launch()
        ready = _READY.match(self._first_line())
        if ready is None:
            self.kill()
            raise AssertionError(f"the broker gave no ready line; its log:\n{self.log()[-4000:]}")
        self.broker, self.namesrv = ready["broker"], ready["namesrv"]

    def launch(self, *command: str) -> None:
        """Starts the process and does not wait for it; `command`: instead of `aerobee`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = {"storePathRootDir": str(self.store), **self._ports, **self.settings}
        sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        self._process = start_daemon(command, ["broker", *sets], self.folder / "broker.log")

    def wait_until_ready_or_gone(self) -> None:
        """After `launch`: wait for its ready line, or its exit."""
        self._first_line()

    def _first_line(self) -> str:
        assert self._process is not None and self._process.stdout is not None
        late = threading.Timer(_START_SECONDS, self._process.kill)
        late.start()
        try:
            return self._process.stdout.readline()
        finally:
            late.cancel()

    def stop(self) -> None:
        """A clean stop: SIGTERM, answered by exit code 0."""
        assert self._process is not None, "the broker is not running"
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(timeout=30)
        self._forget()
        assert code == 0, f"exit code {code}; its log:\n{self.log()[-4000:]}"

    def kill(self) -> None:
        """SIGKILL, at any point."""
        assert self._process is not None, "the broker is not running"
        self._process.kill()
        self._process.wait()
        self._forget()

    def restart(self) -> None:
        self.stop()
        self.start()

    def kill_and_start(self) -> None:
        self.kill()
        self.start()

    def _forget(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        self._process.stdout.close()
        self._process = None

    def log(self) -> str:
        return (self.folder / "broker.log").read_text(errors="replace")
