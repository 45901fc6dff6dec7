"""A real etcd server for a test: free ports, its own folder, stop, kill, start again."""

from __future__ import annotations

import json
import shutil
import signal
import ssl
import subprocess
import urllib.request
from base64 import b64encode
from pathlib import Path

from peers.tools import free_port, need, wait_for


def need_etcd() -> None:
    need(shutil.which("etcd") is not None, "etcd not found on PATH; apt-get install etcd-server")


def is_healthy(url: str, context: ssl.SSLContext | None = None) -> bool:
    """Whether the etcd at this address answers, and has a leader."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2, context=context) as answer:
            return b'"health":"true"' in answer.read()
    except OSError:
        return False


class EtcdServer:
    def __init__(self, folder: Path, *options: str, context: ssl.SSLContext | None = None) -> None:
        """`context`: how to ask a server whose options are those of TLS."""
        need_etcd()
        self._folder = folder
        self._options = options
        self._context = context
        self.url = f"{'https' if context else 'http'}://127.0.0.1:{free_port()}"
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
        wait_for(lambda: is_healthy(self.url, self._context), timeout=60, what="etcd answers")

    def ask(self, path: str, content: dict[str, str]) -> None:
        data = json.dumps(content).encode()
        url = f"{self.url}/v3/{path}"
        with urllib.request.urlopen(url, data, timeout=20, context=self._context):
            pass

    def delete(self, key: str) -> None:
        self.ask("kv/deleterange", {"key": b64encode(key.encode()).decode()})

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None
