"""The Rust client rocketmq-client-rust by remote control."""

from __future__ import annotations

from pathlib import Path

from peers.remote import RemoteClient
from peers.tools import build_once, need_tools

PROJECT = Path(__file__).parent / "rust"
DRIVER = PROJECT / "target" / "debug" / "driver"


class RustClient(RemoteClient):
    """A process of the driver in ``tests/peers/rust``; the first build takes minutes."""

    def __init__(self, folder: Path) -> None:
        need_tools("cargo")
        build_once(
            [["cargo", "build", "--quiet", "--locked", "--target-dir", "target"]],
            folder=PROJECT,
            sources=[PROJECT / "Cargo.toml", PROJECT / "Cargo.lock", *PROJECT.glob("src/*.rs")],
            stamp=PROJECT / "target" / "built.sha256",
        )
        super().__init__([str(DRIVER)], folder)
