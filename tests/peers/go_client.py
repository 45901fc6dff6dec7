"""The Go client of Apache RocketMQ by remote control."""

from __future__ import annotations

from pathlib import Path

from peers.remote import RemoteClient
from peers.tools import build_once, need_tools

PROJECT = Path(__file__).parent / "go"
DRIVER = PROJECT / "target" / "driver"


class GoClient(RemoteClient):
    """A process of the driver in ``tests/peers/go``, built on first use."""

    def __init__(self, folder: Path) -> None:
        need_tools("go")
        build_once(
            [["go", "build", "-o", str(DRIVER), "."]],
            folder=PROJECT,
            sources=[PROJECT / "go.mod", PROJECT / "go.sum", *PROJECT.glob("*.go")],
            stamp=PROJECT / "target" / "built.sha256",
        )
        super().__init__([str(DRIVER), str(folder / "rocketmq.log")], folder)
