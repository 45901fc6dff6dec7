"""What the tests with root share: tools or a skip, and commands that must succeed."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest


def need_root_and(packages: str, *tools: str) -> None:
    """Skip where a tool or root is missing; in CI (CI=true) that is a failure instead."""
    missing = [name for name in tools if shutil.which(name) is None]
    reason = ""
    if os.getuid() != 0:
        reason = "needs root: containers and network namespaces are made"
    elif missing:
        reason = f"{', '.join(missing)} not found: apt-get install {packages}"
    if reason and os.environ.get("CI") == "true":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)


def run(*command: object, timeout: float = 300, check: bool = True) -> str:
    """What the command prints on standard output."""
    done = subprocess.run(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    if check:
        output = done.stdout + done.stderr
        assert done.returncode == 0, f"{command}: {done.returncode}\n{output[-3000:]}"
    return done.stdout.strip()
