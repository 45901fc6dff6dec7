"""The Node client ali-ons by remote control."""

from __future__ import annotations

from pathlib import Path

from peers.remote import RemoteClient
from peers.tools import build_once, need_tools

PROJECT = Path(__file__).parent / "node"


class NodeClient(RemoteClient):
    """A process of ``tests/peers/node/driver.js``; its packages are installed on first use."""

    def __init__(self, folder: Path) -> None:
        need_tools("node", "npm")
        build_once(
            [["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]],
            folder=PROJECT,
            sources=[PROJECT / "package.json", PROJECT / "package-lock.json"],
            stamp=PROJECT / "node_modules" / "installed.sha256",
        )
        super().__init__(["node", str(PROJECT / "driver.js")], folder)
