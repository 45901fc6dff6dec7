"""The port for monitoring. It is open from the start on; what answers there is imported at the
first request: that is a tenth of a start, and 4 MB."""

from __future__ import annotations

import asyncio
import selectors
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from aerobee.broker.daemon.console_child import ConsoleChild
from aerobee.broker.net.addresses import join
from aerobee.broker.net.listening import StartError
from aerobee.broker.settings import Settings

if TYPE_CHECKING:
    from aerobee.broker.daemon.metrics import Collector

log = structlog.get_logger("aerobee.metrics")


class MetricsPort:
    """Serves one broker's metrics and health."""

    def __init__(
        self,
        collector: Callable[[], Collector | None],
        health: Callable[[], str],
        is_ready: Callable[[], bool],
        console: ConsoleChild | None = None,
    ) -> None:
        """`collector` returns None until the store is open. `health` says what is wrong, "" if
        nothing is."""
        self._asked = (asyncio.get_running_loop(), collector, health, is_ready, console)
        self._console = console
        self._listener: socket.socket | None = None
        self._end, self._ended = socket.socketpair()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1]) if self._listener else -1

    def start(self, host: str, port: int) -> None:
        """Listen; OSError when the port is taken."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family)
        self._listener.setblocking(False)
        self._thread = threading.Thread(
            target=self._serve, args=(self._listener,), name="aerobee-metrics", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        self._end.close()
        if self._listener is not None:
            self._thread.join()
            self._listener.close()
        self._ended.close()
        if self._console is not None:
            self._console.stop()

    def _serve(self, listener: socket.socket) -> None:
        with selectors.DefaultSelector() as wanted:
            wanted.register(listener, selectors.EVENT_READ)
            wanted.register(self._ended, selectors.EVENT_READ)
            server = None
            while all(key.fileobj is listener for key, _ in wanted.select()):
                if server is None:
                    from aerobee.broker.daemon.metrics_server import MetricsServer

                    server = MetricsServer(listener, *self._asked)
                server.handle_request()


def start_metrics(settings: Settings, metrics: MetricsPort) -> bool:
    """Start as the settings say. A port that is taken is an error only where it was asked for:
    the second broker of a machine starts without metrics, and logs that."""
    if settings.metrics_exporter_type == "DISABLE":
        return False
    host = settings.metrics_prom_exporter_host or "127.0.0.1"
    port = settings.metrics_prom_exporter_port
    try:
        metrics.start(host, port)
    except OSError as error:
        text = (
            f"metrics cannot be served at {host}:{port}: {error.strerror}; choose another port "
            "with --set metricsPromExporterPort=PORT, or --set metricsExporterType=DISABLE"
        )
        metrics.stop()
        if settings.sources.keys() & {"metricsPromExporterPort", "metricsPromExporterHost"}:
            raise StartError(text) from error
        log.warning("no metrics", reason=text)
        return False
    log.info("metrics", address=f"http://{join(host, metrics.port)}/metrics")
    return True
