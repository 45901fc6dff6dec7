"""A Debian with systemd as its first process, booted in systemd-nspawn, with Aerobee installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path

from system.tools import need_root_and, run

ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = "systemd,systemd-sysv,dbus,python3-venv,procps"
_NSPAWN = ["systemd-nspawn", "-q", "--register=no", "--keep-unit"]


def need_nspawn() -> None:
    need_root_and("systemd-container mmdebstrap", "systemd-nspawn", "mmdebstrap")


def make_root(folder: Path) -> Path:
    """A root file system with Aerobee in /opt/aerobee/venv, as the README tells an operator."""
    root = folder / "root"
    run("mmdebstrap", "--quiet", "--variant=minbase", f"--include={_PACKAGES}", "bookworm", root)
    certificates = Path("/etc/ssl/certs/ca-certificates.crt")
    if certificates.exists():
        (root / "etc/ssl/certs").mkdir(parents=True, exist_ok=True)
        shutil.copy(certificates, root / "etc/ssl/certs")
    source = folder / "source"
    run("git", "clone", "-q", ROOT, source)
    script = (
        "python3 -m venv /opt/aerobee/venv && "
        "PIP_CERT=/etc/ssl/certs/ca-certificates.crt /opt/aerobee/venv/bin/pip install -q "
        "-c /src/constraints.txt /src && /opt/aerobee/venv/bin/aerobee install-service"
    )
    writable_copy = root / "src"
    shutil.copytree(source, writable_copy, symlinks=True)
    run(*_NSPAWN, "--pipe", "-D", root, "sh", "-c", script)
    return root


class Machine:
    """The booted container; `shell` runs a command inside it."""

    def __init__(self, root: Path) -> None:
        self._log = (root.parent / "boot.log").open("w")
        self._nspawn = subprocess.Popen(
            [*_NSPAWN, "--private-network", "-bD", str(root)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        self._leader = self._wait_for_leader()
        self.wait("systemctl is-system-running --wait || true", "running|degraded", 60)

    def _wait_for_leader(self) -> int:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            found = subprocess.run(
                ["pgrep", "-P", str(self._nspawn.pid)], capture_output=True, text=True
            ).stdout.split()
            if found:
                return int(found[0])
            time.sleep(0.1)
        raise AssertionError("the container did not boot")

    def shell(self, command: str, *, check: bool = True, timeout: float = 60) -> str:
        done = subprocess.run(
            ["nsenter", "-t", str(self._leader), "-a", "sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )
        if check:
            assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout[-3000:]}"
        return done.stdout.strip()

    def wait(self, command: str, pattern: str, timeout: float) -> str:
        """Run `command` until its output matches."""
        deadline = time.monotonic() + timeout
        while True:
            output = self.shell(command, check=False)
            if re.search(pattern, output):
                return output
            if time.monotonic() > deadline:
                raise AssertionError(f"{command}: no {pattern!r} in {timeout} s, last:\n{output}")
            time.sleep(0.2)

    def power_off(self) -> None:
        subprocess.run(["kill", "-RTMIN+4", str(self._leader)], check=False)
        try:
            self._nspawn.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._nspawn.kill()
            self._nspawn.wait()
        self._log.close()
