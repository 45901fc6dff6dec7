"""NATS JetStream: the server built as a Go module, driven by nats.go."""

from __future__ import annotations

import json
from pathlib import Path

from peers.tools import free_port

from bench.driver import BUILD
from bench.peers.base import GO_DRIVER, DrivenPeer, build_go_driver, go_build, go_version

_MODULE = "github.com/nats-io/nats-server/v2"
_SERVER = BUILD / "nats-server"


class Nats(DrivenPeer):
    title = "NATS JetStream"
    client = f"nats.go {go_version('github.com/nats-io/nats.go')}"
    unflushed = "file storage, sync_interval 2m (its default)"
    flushed = "file storage, sync_interval always"
    flushed_part = 5

    def __init__(self, folder: Path, *, sync: bool) -> None:
        self.port = free_port()
        super().__init__(folder, sync=sync)

    @classmethod
    def prepare(cls) -> None:
        build_go_driver()
        go_build(_SERVER, _MODULE)

    def command(self) -> list[str]:
        config = self.folder / "server.conf"
        interval = "always" if self.sync else "2m"
        store = json.dumps(str(self.folder / "store"))
        config.write_text(
            f"host: 127.0.0.1\nport: {self.port}\n"
            f"jetstream {{ store_dir: {store}, sync_interval: {interval} }}\n"
        )
        return [str(_SERVER), "-c", str(config)]

    def driver_command(self) -> list[str]:
        return [str(GO_DRIVER), "nats", str(self.port)]

    def describe(self) -> str:
        return f"NATS {go_version(_MODULE)}"
