"""The C++ client of Apache RocketMQ by remote control.

The library is the one inside a wheel: release 1.2.3 with its C API, for x86-64 Linux with glibc.
``CPP_LIBRARY=/path/to/librocketmq.so`` puts another build in its place.
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

from peers.remote import RemoteClient
from peers.tools import build_once, need

PROJECT = Path(__file__).parent / "cpp"
WHEEL = "rocketmq==0.4.4"
TARGET = PROJECT / "target" / WHEEL
PIP = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]


def library() -> Path:
    """Where the library is, installed on first use."""
    if own := os.environ.get("CPP_LIBRARY"):
        return Path(own)
    fits = (sys.platform, platform.machine(), platform.libc_ver()[0]) == (
        "linux",
        "x86_64",
        "glibc",
    )
    need(fits, f"{WHEEL} has the C++ client for x86-64 Linux with glibc only; set CPP_LIBRARY")
    build_once(
        [[*PIP, "--no-deps", "--only-binary", ":all:", "--target", str(TARGET), WHEEL]],
        folder=PROJECT,
        sources=[],
        stamp=PROJECT / "target" / "installed.sha256",
    )
    return TARGET / "rocketmq" / "librocketmq.so"


class CppClient(RemoteClient):
    """A process of ``tests/peers/cpp/driver.py``, which has the library loaded."""

    def __init__(self, folder: Path) -> None:
        super().__init__([sys.executable, str(PROJECT / "driver.py"), str(library())], folder)
