"""`aerobee namesrv`: the name service alone, for brokers of ours or Apache's that register."""

import asyncio
import os

import structlog

from aerobee.broker.auth.book import FILE_NAME, AccessBook
from aerobee.broker.auth.guard import Guard
from aerobee.broker.auth.model import AccessError
from aerobee.broker.base.clock import Clock
from aerobee.broker.handlers.name_service import requests
from aerobee.broker.net.addresses import join
from aerobee.broker.net.general_feed import GeneralFeed
from aerobee.broker.net.listening import StartError, limits_of, open_name_service_socket, tls_of
from aerobee.broker.net.requests import Dispatcher
from aerobee.broker.net.server import Server
from aerobee.broker.net.tls import Tls
from aerobee.broker.services.name_service.kv_config import KvConfig
from aerobee.broker.services.name_service.routes import Routes
from aerobee.broker.services.name_service.service import NameService, kv_config_path
from aerobee.broker.settings import Settings

log = structlog.get_logger("aerobee.namesrv")


class AppNameServer:
    """One name server."""

    def __init__(self, settings: Settings, *, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock = clock or Clock()
        self.progress = "starting"
        self.namesrv_port = settings.namesrv_listen_port
        self.name_service = NameService(
            settings,
            self.clock,
            Routes(self.clock),
            KvConfig(kv_config_path(settings), self.clock, lambda: settings.max_kv_config_bytes),
            lambda _connection: "",
        )
        access = os.path.join(settings.store_path_root_dir, "config", FILE_NAME)
        self.guard = Guard(settings, AccessBook(settings, access, self.clock), self.clock)
        self._tls: Tls | None = None
        self._server: Server | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        settings = self.settings
        try:
            self.guard.load()
        except AccessError as error:
            raise StartError(str(error)) from error
        self._tls = tls_of(settings)
        sock = open_name_service_socket(settings)
        if sock is None:
            raise StartError(
                f"namesrvListenPort={settings.namesrv_listen_port} leaves a name server nothing to "
                "listen on; give it a port (0: a free one)"
            )
        self.namesrv_port = sock.getsockname()[1]
        try:
            self.name_service.kv.load()
        except OSError as error:
            sock.close()
            raise StartError(
                f"the table of key-values cannot be read: {error}; check its permissions"
            ) from error
        dispatcher = Dispatcher(self.guard.guarded(requests.handlers(self)))
        limits = limits_of(settings)
        self._server = Server(
            lambda connection: GeneralFeed(connection, dispatcher, limits.frame_size_max),
            limits,
            connections_max=settings.max_connections,
            per_address_max=settings.max_connections_per_address,
            tls=self._tls,
        )
        await self._server.listen(sock, backlog=settings.server_socket_backlog)
        self._tasks = [
            asyncio.create_task(self.name_service.watch(), name="names"),
            asyncio.create_task(self.name_service.kv.file.run(), name="kv config"),
        ]
        if self.guard.is_on:
            self._tasks.append(asyncio.create_task(self.guard.book.watch(), name="users"))
        if self._tls is not None:
            watch = self._tls.watch(self.clock)
            self._tasks.append(asyncio.create_task(watch, name="certificates"))
        log.info("listening", address=join(settings.bind_address, self.namesrv_port))

    def give_up_start(self) -> None:
        """Does nothing: a start is short, so it is finished before the stop."""

    def reload(self) -> None:
        """SIGHUP: read the files of users and the certificates again."""
        self.guard.reload()
        if self._tls is not None:
            self._tls.reload()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(self.settings.shutdown_wait_time_seconds)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            self.name_service.kv.file.stop()
        except OSError as error:
            log.error("not saved at the stop", part="kv config", reason=str(error))

    def ready_line(self) -> str:
        return f"ready namesrv={join(self.settings.bind_address, self.namesrv_port)}"

    def status(self) -> str:
        brokers = sum(1 for _ in self.name_service.routes.brokers(""))
        connections = len(self._server.connections) if self._server else 0
        return f"serving, {brokers} brokers, {connections} connections"
