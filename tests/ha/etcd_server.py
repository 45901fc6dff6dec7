"""A real etcd server for a test: free ports, its own folder, stop, kill, start again."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import urllib.request
from base64 import b64encode
from pathlib import Path

from peers.tools import free_port, need, wait_for


def need_etcd() -> None:
    need(shutil.which("etcd") is not None, "etcd not found on PATH; apt-get install etcd-server")


def is_healthy(url: str) -> bool:
    """Whether the etcd at this address answers, and has a leader."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
            return b'"health":"true"' in answer.read()
    except OSError:
        return False


class EtcdServer:
    def __init__(self, folder: Path, *options: str) -> None:
        need_etcd()
        self._folder = folder
        self._options = options
        self.url = f"http://127.0.0.1:{free_port()}"
        self._peer_url = f"http://127.0.0.1:{free_port()}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> EtcdServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "etcd.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    "etcd",
                    f"--data-dir={self._folder / 'data'}",
                    f"--listen-client-urls={self.url}",
                    f"--advertise-client-urls={self.url}",
                    f"--listen-peer-urls={self._peer_url}",
                    f"--initial-advertise-peer-urls={self._peer_url}",
                    f"--initial-cluster=default={self._peer_url}",
                    *self._options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        wait_for(lambda: is_healthy(self.url), timeout=60, what="etcd answers")

    def delete(self, key: str) -> None:
        content = json.dumps({"key": b64encode(key.encode()).decode()}).encode()
        with urllib.request.urlopen(f"{self.url}/v3/kv/deleterange", content, timeout=20):
            pass

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None
