"""HTTP for monitoring: /metrics, /healthz and /readyz; /console/ is for another process.

It runs in threads of its own, so that it can report an event loop that hangs.
"""

import asyncio
import concurrent.futures
import socket
import time
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import structlog
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder

from aerobee.broker.daemon.console_child import PATH, ConsoleChild
from aerobee.broker.daemon.metrics import Collector

log = structlog.get_logger("aerobee.metrics")

_LOOP_S: Final = 5.0  # an event loop that is blocked for longer is unhealthy
_PEER_S: Final = 10.0  # how long a scraper may take with its request


class MetricsServer(ThreadingHTTPServer):
    """Serves connections to a port that is already open."""

    daemon_threads = True
    timeout = 0  # `handle_request` is called when a connection is there

    def __init__(
        self,
        listener: socket.socket,
        loop: asyncio.AbstractEventLoop,
        collector: Callable[[], Collector | None],
        health: Callable[[], str],
        is_ready: Callable[[], bool],
        console: ConsoleChild | None,
    ) -> None:
        super().__init__(listener.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self._loop = loop
        self._collector = collector
        self._health = health
        self._is_ready = is_ready
        self._console = console
        self._of_process = CollectorRegistry()
        ProcessCollector(registry=self._of_process)
        PlatformCollector(registry=self._of_process)
        GCCollector(registry=self._of_process)

    def finish_request(self, request: Any, client_address: Any) -> None:
        console = self._console
        if console is not None and not console.refusal and _asks_for(request, PATH):
            console.hand_over(request)
        else:
            super().finish_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.info("a scrape failed", peer=str(client_address), exc_info=True)

    def answer(self, path: str, accept: str) -> tuple[int, str, bytes]:
        """Status, content type and body for a path; in a thread of the HTTP server."""
        answers: dict[str, Callable[[str], tuple[int, str, bytes]]] = {
            "/metrics": self._metrics,
            "/healthz": self._healthz,
            "/readyz": self._readyz,
        }
        found = answers.get(path)
        if found is None:
            if path.startswith(PATH) and self._console is not None:
                return _plain(403, self._console.refusal)
            return _plain(404, "not found; there are /metrics, /healthz, /readyz and /console/")
        try:
            return found(accept)
        except concurrent.futures.TimeoutError:
            return _plain(503, f"the event loop has not answered for {_LOOP_S:g} s")
        except Exception:
            log.exception("a scrape failed", path=path)
            return _plain(500, "the broker's log says what failed")

    def _healthz(self, _accept: str) -> tuple[int, str, bytes]:
        problem = self._in_loop(self._health)
        return _plain(503, problem) if problem else _plain(200, "ok")

    def _readyz(self, _accept: str) -> tuple[int, str, bytes]:
        return _plain(200, "ready") if self._in_loop(self._is_ready) else _plain(503, "not ready")

    def _metrics(self, accept: str) -> tuple[int, str, bytes]:
        collector = self._collector()
        if collector is None:
            return _plain(503, "the store is being opened")
        quick, waiting = self._in_loop(lambda: (collector.quick(), collector.waiting()))
        families = [*quick, *collector.slow(waiting), *self._of_process.collect()]
        encode, content_type = choose_encoder(accept)
        return 200, content_type, encode(_Families(families))

    def _in_loop(self, function: Callable[[], Any]) -> Any:
        """What the function returns, called where the broker's tables may be read."""

        async def call() -> Any:
            return function()

        future = asyncio.run_coroutine_threadsafe(call(), self._loop)
        try:
            return future.result(_LOOP_S)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise


class _Families:
    """Finished metrics, in the form of a registry for the encoder."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


def _asks_for(connection: socket.socket, path: str) -> bool:
    """Whether the request is for something below `path`; the bytes are peeked at, not consumed."""
    connection.settimeout(_PEER_S)
    wanted = path.encode()
    deadline = time.monotonic() + _PEER_S
    while time.monotonic() < deadline:
        seen = connection.recv(64, socket.MSG_PEEK)
        _method, space, rest = seen.partition(b" ")
        if not seen or len(rest) >= len(wanted) or b" " in rest or (not space and len(seen) > 16):
            return rest.startswith(wanted)
        if rest and not wanted.startswith(rest):
            return False
        time.sleep(0.01)  # the first bytes only
    return False


class _Handler(BaseHTTPRequestHandler):
    timeout = _PEER_S
    server_version = "aerobee"
    server: MetricsServer

    def do_GET(self) -> None:
        status, content_type, body = self.server.answer(
            self.path.partition("?")[0], self.headers.get("Accept", "")
        )
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # the name that http.server calls

    def log_message(self, format: str, *args: Any) -> None:
        """A scrape every few seconds is not logged."""


def _plain(status: int, text: str) -> tuple[int, str, bytes]:
    return status, "text/plain; charset=utf-8", text.encode() + b"\n"
