"""Redis Streams: the server of the system, driven by go-redis."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from peers.tools import free_port

from bench.peers.base import GO_DRIVER, DrivenPeer, build_go_driver, go_version
from bench.process import need


class Redis(DrivenPeer):
    title = "Redis Streams"
    client = f"go-redis {go_version('github.com/redis/go-redis/v9')}, pipelines of 32"
    unflushed = "appendonly, appendfsync everysec"
    flushed = "appendonly, appendfsync always"

    def __init__(self, folder: Path, *, sync: bool) -> None:
        self.port = free_port()
        super().__init__(folder, sync=sync)

    @classmethod
    def prepare(cls) -> None:
        need("redis-server")
        build_go_driver()

    def command(self) -> list[str]:
        settings = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self.folder),
            "appendonly": "yes",
            "appendfsync": "always" if self.sync else "everysec",
            "save": "",
        }
        words = [word for key, value in settings.items() for word in (f"--{key}", value)]
        return ["redis-server", *words]

    def driver_command(self) -> list[str]:
        return [str(GO_DRIVER), "redis", str(self.port)]

    def describe(self) -> str:
        said = subprocess.run(["redis-server", "--version"], capture_output=True, text=True)
        version = re.search(r"v=(\S+)", said.stdout)
        return f"Redis {version[1] if version else said.stdout.strip()}"
