"""`aerobee namesrv`: the name service alone, for brokers of ours or Apache's that register."""

import asyncio

import structlog

from aerobee.broker.addresses import join
from aerobee.broker.clock import Clock
from aerobee.broker.dispatch import Dispatcher
from aerobee.broker.general_feed import GeneralFeed
from aerobee.broker.handlers import name_service
from aerobee.broker.listening import StartError, limits_of, open_name_service_socket
from aerobee.broker.server import Server
from aerobee.broker.services.kv_config import KvConfig
from aerobee.broker.services.name_service import NameService, kv_config_path
from aerobee.broker.services.names import Names
from aerobee.broker.settings import Settings

log = structlog.get_logger("aerobee.namesrv")


class AppNameServer:
    """One name server."""

    def __init__(self, settings: Settings, *, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock = clock or Clock()
        self.progress = "starting"
        self.namesrv_port = settings.namesrv_listen_port
        self.names = NameService(
            settings,
            self.clock,
            Names(self.clock),
            KvConfig(kv_config_path(settings), self.clock, lambda: settings.max_kv_config_bytes),
            lambda _connection: "",
        )
        self._server: Server | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        settings = self.settings
        sock = open_name_service_socket(settings)
        if sock is None:
            raise StartError(
                f"namesrvListenPort={settings.namesrv_listen_port} leaves a name server nothing to "
                "listen on; give it a port (0: a free one)"
            )
        self.namesrv_port = sock.getsockname()[1]
        try:
            self.names.kv.load()
        except OSError as error:
            sock.close()
            raise StartError(
                f"the table of key-values cannot be read: {error}; check who may read it"
            ) from error
        dispatcher = Dispatcher(name_service.handlers(self))
        limits = limits_of(settings)
        self._server = Server(
            lambda connection: GeneralFeed(connection, dispatcher, limits.frame_size_max),
            limits,
            connections_max=settings.max_connections,
        )
        await self._server.listen(sock, backlog=settings.server_socket_backlog)
        self._tasks = [
            asyncio.create_task(self.names.watch(), name="names"),
            asyncio.create_task(self.names.kv.run(), name="kv config"),
        ]
        log.info("listening", address=join(settings.bind_address, self.namesrv_port))

    def give_up_start(self) -> None:
        """The start is short: it is finished, then undone."""

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(self.settings.shutdown_wait_time_seconds)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.names.kv.stop()

    def ready_line(self) -> str:
        return f"ready namesrv={join(self.settings.bind_address, self.namesrv_port)}"

    def status(self) -> str:
        brokers = sum(1 for _ in self.names.names.brokers(""))
        connections = len(self._server.connections) if self._server else 0
        return f"serving, {brokers} brokers, {connections} connections"
