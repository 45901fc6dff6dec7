"""What every peer needs: its tools or a skip, one build per content, free ports, waiting."""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeVar

import pytest

T = TypeVar("T")


def need_tools(*names: str) -> None:
    """Skips the test where a tool is missing; in CI (CI=true) that is a failure instead."""
    missing = [name for name in names if shutil.which(name) is None]
    need(
        not missing,
        f"{', '.join(missing)} not found on PATH; install it to run the tests with this peer",
    )


def need(given: bool, otherwise: str) -> None:
    """Skips the test for that reason unless given; in CI (CI=true) that is a failure instead."""
    if given:
        return
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(otherwise)
    pytest.skip(otherwise)


def build_once(
    commands: Sequence[Sequence[str]], *, folder: Path, sources: Sequence[Path], stamp: Path
) -> None:
    """Runs the commands in the folder unless the stamp already holds the hash of the sources."""
    digest = hashlib.sha256(repr([list(command) for command in commands]).encode())
    for source in sorted(sources):
        digest.update(str(source.relative_to(folder)).encode() + b"\0" + source.read_bytes())
    wanted = digest.hexdigest()
    stamp.parent.mkdir(parents=True, exist_ok=True)
    with _locked(stamp.with_suffix(".lock")):
        if stamp.exists() and stamp.read_text() == wanted:
            return
        for command in commands:
            done = subprocess.run(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=600,
            )
            if done.returncode != 0:
                pytest.fail(f"{' '.join(command)} in {folder} failed:\n{done.stdout[-4000:]}")
        stamp.write_text(wanted)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# Files whose locks say which ports are given out, to all test processes of this machine; kept
# until the process ends.
_PORTS = Path(tempfile.gettempdir(), "aerobee-test-ports")
_given_out: list[IO[str]] = []
_chance = random.SystemRandom()  # a test that seeds `random` must not repeat another's ports


def free_port(*neighbours: int) -> int:
    """A port that is free together with port + n for each neighbour n.

    It lies below the range from which the system serves "any free port", so that nobody takes it
    while its owner is down between a stop and a start, and is given out once only.
    """
    _PORTS.mkdir(exist_ok=True)
    for _ in range(200):
        port = _chance.randrange(12_000, 32_000)
        claims = [_claim(port + other) for other in (0, *neighbours)]
        if None not in claims:
            _given_out.extend(filter(None, claims))
            return port
        for claim in filter(None, claims):
            claim.close()
    raise RuntimeError(f"no free port with its neighbours {neighbours}")


def open_to_all(folder: Path) -> None:
    """Let every user enter it, which pytest's own folders do not."""
    for each in (folder, *folder.parents):
        if each == Path(tempfile.gettempdir()):
            return
        each.chmod(0o755)


def _claim(port: int) -> IO[str] | None:
    """The lock on this port; None when another has it, or somebody listens there."""
    claim = (_PORTS / str(port)).open("w")
    try:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        claim.close()
        return None
    if not _is_free(port):
        claim.close()
        return None
    return claim


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def wait_for(condition: Callable[[], T], *, timeout: float, what: str, interval: float = 0.05) -> T:
    """Polls until the condition is true and returns it; on timeout fails with the last value."""
    deadline = time.monotonic() + timeout
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {timeout:g} s; last seen {answer!r}")
        time.sleep(interval)


def heed_interrupts() -> None:
    """In a child before it starts: a shell that runs the tests in its background has all that it
    starts ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
