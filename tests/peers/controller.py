"""Apache RocketMQ's name server with its controller, as one process: it elects brokers' masters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from peers.apache import java_argv
from peers.jvm import Jvm
from peers.tools import free_port, wait_for
from peers.wire import Wire

VERSION = "5.5.0"


class ApacheController(Jvm):
    """Started by entering it; the ports stay the same over ``start`` after ``kill``."""

    def __init__(self, folder: Path, **settings: str) -> None:
        """``controllerDLegerPeers`` and ``controllerDLegerSelfId`` make it one of several."""
        super().__init__(folder, "the controller")
        peers = settings.get("controllerDLegerPeers") or f"n0-127.0.0.1:{free_port()}"
        number, names = settings.get("controllerDLegerSelfId", "n0"), free_port()
        self.address = dict(peer.split("-", 1) for peer in peers.split(";"))[number]
        self.namesrv = f"127.0.0.1:{names}"
        self._settings = {
            "listenPort": f"{names}",
            "bindAddress": "127.0.0.1",
            "kvConfigPath": f"{folder}/kvConfig.json",
            "enableControllerInNamesrv": "true",
            "controllerDLegerGroup": "group1",
            "controllerDLegerPeers": peers,
            "controllerDLegerSelfId": number,
            "controllerStorePath": f"{folder}/controller",
            "mappedFileSize": f"{16 << 20}",
            "scanNotActiveBrokerInterval": "1000",
            **settings,
        }

    def start(self) -> None:
        """And wait until it knows a controller that leads."""
        self.launch()
        self.wait_for_leader()

    def launch(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "namesrv.conf"
        file.write_text("".join(f"{key}={value}\n" for key, value in self._settings.items()))
        main = "org.apache.rocketmq.namesrv.NamesrvStartup"
        home = {"rocketmq.home.dir": str(self.folder)}
        argv = java_argv(VERSION, self.folder, main, "-c", str(file), heap="256m", properties=home)
        self._launch(argv)

    def wait_for_leader(self) -> None:
        try:
            wait_for(self._has_leader, timeout=120, what="a controller leads")
        except BaseException:
            self.kill()
            raise

    def _has_leader(self) -> bool:
        """Whether one leads that answers: it tells that it leads a moment before it does."""
        address = self.leader()
        try:
            with Wire(address, timeout=5) as wire:
                return wire.request(1006, {}, b'["nobody"]').code == 0
        except (OSError, ValueError):
            return False

    def leader(self) -> str:
        """The address of the one that leads, as this one knows it; empty: none."""
        self.check_alive()
        try:
            with Wire(self.address, timeout=5) as wire:
                return str(wire.request(1005, {}).ext.get("controllerLeaderAddress", ""))
        except OSError:
            return ""

    def record(self, name: str) -> dict[str, Any]:
        """What it keeps of this name; empty: nothing, or it does not lead."""
        with Wire(self.address, timeout=10) as wire:
            answer = wire.request(1006, {}, json.dumps([name]).encode())
        if answer.code != 0:
            return {}
        found: dict[str, Any] = json.loads(answer.body)["replicasInfoTable"].get(name, {})
        return found

    def in_sync(self, name: str) -> list[int]:
        return sorted(row["brokerId"] for row in self.record(name).get("inSyncReplicas", []))
