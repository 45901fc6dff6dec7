"""What the daemon tells systemd."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from peers.daemon import Daemon
from peers.tools import wait_for

from aerobee.broker.daemon.systemd import Notifier


class Systemd:
    """The socket that systemd gives to a service of Type=notify."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.settimeout(30)
        self.heard: list[str] = []

    def until(self, text: str) -> str:
        while True:
            message = self.socket.recv(4096).decode()
            self.heard.append(message)
            if text in message:
                return message


def is_stopped(pid: int) -> bool:
    """Whether SIGSTOP has stopped the process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_systemd_is_notified_of_ready_alive_reloading_and_stopping(tmp_path: Path) -> None:
    systemd = Systemd(tmp_path / "notify")
    env = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "300000"}
    with systemd.socket, Daemon(tmp_path, env=env) as daemon:
        ready = systemd.until("READY=1")
        assert "STATUS=serving" in ready
        assert any("EXTEND_TIMEOUT_USEC" in message for message in systemd.heard)
        systemd.until("WATCHDOG=1")
        systemd.until("WATCHDOG=1")
        daemon.ready()
        daemon.signal(signal.SIGHUP)
        assert "MONOTONIC_USEC=" in systemd.until("RELOADING=1")
        systemd.until("READY=1")
        daemon.signal(signal.SIGSTOP)  # a stopped loop sends no watchdog pings
        wait_for(lambda: is_stopped(daemon.process.pid), timeout=30, what="it is stopped")
        systemd.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                systemd.socket.recv(4096)
        systemd.socket.settimeout(0.5)
        with pytest.raises(TimeoutError):
            systemd.socket.recv(4096)
        systemd.socket.settimeout(30)
        daemon.signal(signal.SIGCONT)
        systemd.until("WATCHDOG=1")
        daemon.signal(signal.SIGTERM)
        systemd.until("STOPPING=1")
        assert daemon.process.wait(30) == 0


SLOW_DAEMON = """
import asyncio, sys
from aerobee.broker.daemon.process import run_daemon
from aerobee.broker.settings import load_settings

class Slow:
    progress = "starting"

    async def start(self):
        print("starts", flush=True)
        await asyncio.to_thread(sys.stdin.readline)

    async def stop(self):
        await asyncio.to_thread(sys.stdin.readline)

    def give_up_start(self): ...
    def reload(self): ...
    def ready_line(self): return "ready"
    def status(self): return "serving"

sys.exit(run_daemon(lambda _settings: Slow(), lambda: load_settings(None, {}, {})))
"""


def test_a_reload_during_a_start_or_a_stop_does_not_tell_systemd_that_we_are_ready(
    tmp_path: Path,
) -> None:
    systemd = Systemd(tmp_path / "notify")
    env = os.environ | {"NOTIFY_SOCKET": str(tmp_path / "notify")}
    command = [sys.executable, "-c", SLOW_DAEMON]
    pipe = subprocess.PIPE
    with (
        systemd.socket,
        subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=pipe) as process,
    ):
        stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
        assert stdin is not None and stdout is not None and stderr is not None

        def reload() -> None:
            process.send_signal(signal.SIGHUP)
            while b"settings reloaded" not in stderr.readline():
                assert process.poll() is None

        def proceed() -> None:
            stdin.write(b"\n")
            stdin.flush()

        try:
            assert stdout.readline() == b"starts\n"
            reload()
            proceed()
            assert stdout.readline() == b"ready\n"
            reload()
            process.terminate()
            systemd.until("STOPPING=1")
            reload()
            proceed()
            assert process.wait(30) == 0
        finally:
            process.kill()
        systemd.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            systemd.until("the end of what was sent")
    states = [message.partition("=")[0] for message in systemd.heard]
    told = [state for state in states if state in ("READY", "RELOADING", "STOPPING")]
    assert told == ["READY", "RELOADING", "READY", "STOPPING"]


def test_a_busy_systemd_is_notified_again_and_not_waited_for(
    tmp_path: Path,
) -> None:
    systemd = Systemd(tmp_path / "notify")
    notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify")})
    with systemd.socket:
        for _ in range(1000):  # more than the socket holds: a blocking send would hang
            notifier.status("serving")
        systemd.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                systemd.socket.recv(4096)
        systemd.socket.settimeout(5)
        notifier.alive()
        assert systemd.until("WATCHDOG=1") == "WATCHDOG=1"


def test_without_systemd_nothing_is_sent() -> None:
    notifier = Notifier({})
    notifier.ready("fine")
    assert notifier.watchdog_seconds == 0
    assert Notifier({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "1"}).watchdog_seconds == 0
