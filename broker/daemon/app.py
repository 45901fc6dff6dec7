"""A whole broker in one object: start, stop, health and status.

The daemon and the broker inside a test are this same object; only the process around it differs.
"""

import asyncio
import socket
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from aerobee.broker.base.clock import Clock
from aerobee.broker.base.worker import Worker
from aerobee.broker.compiled import PATH
from aerobee.broker.daemon.console_child import ConsoleChild, own_url
from aerobee.broker.daemon.metrics_port import MetricsPort, start_metrics
from aerobee.broker.daemon.replication import Following, copies_of, in_sync_of, start_master
from aerobee.broker.daemon.role_change import RoleChange
from aerobee.broker.daemon.roles import Roles
from aerobee.broker.daemon.service_life import ServiceLife
from aerobee.broker.daemon.store_settings import store_settings
from aerobee.broker.daemon.wiring import Front, make_broker, make_front, make_server
from aerobee.broker.ha.copies import Copies
from aerobee.broker.ha.in_sync import InSync
from aerobee.broker.ha.master_links import MasterLinks
from aerobee.broker.handlers.context import Broker
from aerobee.broker.net.addresses import join
from aerobee.broker.net.listening import (
    StartError,
    open_broker_sockets,
    open_name_service_socket,
    open_replication_socket,
    tls_of,
)
from aerobee.broker.net.server import Server
from aerobee.broker.net.tls import Tls
from aerobee.broker.services.registration import LAST_WORD_S, Registrar
from aerobee.broker.settings import Settings
from aerobee.broker.store.errors import StoreError
from aerobee.broker.store.files.disk import Disk
from aerobee.broker.store.files.real_disk import RealDisk
from aerobee.broker.store.refusals import Cause

if TYPE_CHECKING:
    from aerobee.broker.daemon.failover_wiring import ReplicaHere
    from aerobee.broker.daemon.metrics import Collector

log = structlog.get_logger("aerobee.app")

LAST_COPIES_S: Final = 2.0  # at a stop, for slaves to catch up
CHANGE_S: Final = 0.5  # at a change of role, for peers that may not be there any more


class StartGivenUp(StoreError):
    """A stop was asked for while the store was being recovered."""


class AppBroker:
    """One broker: its store, its services, its ports."""

    def __init__(
        self, settings: Settings, *, clock: Clock | None = None, disk: Disk | None = None
    ) -> None:
        self.settings = settings
        self.clock = clock or Clock()
        self._disk = disk
        self.broker_port = settings.listen_port
        self.namesrv_port = settings.namesrv_listen_port
        self.metrics_port = -1
        self.roles = Roles(settings, disk or RealDisk())
        self.is_ready = False
        self._given_up = self._stopping = False
        self._lives = asyncio.Lock()  # a change of role is a stop and a start
        self._role_change = RoleChange(settings, self.roles, self._restart)
        self._not_started_again = ""  # why
        self._replica: ReplicaHere | None = None  # with an arbiter
        self._failing_over: asyncio.Task[None] | None = None
        self._metrics: MetricsPort | None = None
        self._build()

    def _build(self) -> None:
        """Make everything that lives from a start to the next stop."""
        self.progress = "starting"
        self.broker: Broker = make_broker(
            self.settings, self.clock, self._disk, self._role_change.superseded
        )
        self.life = ServiceLife(self.broker)
        self._role_change.of(self.broker)
        self._loaded = False
        self._listeners_before = list(self.settings.listeners)
        self._sockets: list[socket.socket] = []
        self._replication_socket: socket.socket | None = None
        self._slaves: MasterLinks | None = None
        self._tls: Tls | None = None
        self._front: Front | None = None
        self._server: Server | None = None
        self._registrar: Registrar | None = None
        self._collector: Collector | None = None
        self._registering: asyncio.Task[None] | None = None

    # --- start

    async def start(self) -> None:
        """Open ports and store, recover, listen. StartError or StoreError says what is wrong."""
        self._stopping = False
        async with self._lives:
            role, disk = self.settings.broker_role, self._disk or RealDisk()
            if self.settings.has_arbiter:
                from aerobee.broker.daemon.failover_wiring import id_of  # few have one

                self.roles.broker_id = await id_of(
                    self.settings, disk, lambda: not (self._given_up or self._stopping)
                )
            self.roles.choose()
            if self.settings.has_arbiter:
                from aerobee.broker.daemon.failover_wiring import ReplicaHere

                self._replica = ReplicaHere(
                    self.settings, self.roles, self._role_change, disk, self._restart
                )
            if self.settings.broker_role != role:
                self._build()
            await self._start()
            if self.is_ready and self._replica is not None:
                self._fail_over(self._replica)

    def _fail_over(self, replica: "ReplicaHere") -> None:
        """Let the arbiter decide who is the master, until the stop."""
        failover = self._role_change.failover = replica.make_failover(self.broker)
        self.broker.replication.failover = failover.status
        self._failing_over = asyncio.create_task(failover.run(), name="failover")
        self._failing_over.add_done_callback(lambda task: self.life.task_ended(task))

    async def _start(self, cut_to: int | None = None) -> None:
        try:
            self._tls = tls_of(self.settings)
            self._open_sockets()
            self._start_metrics()
            self.life.make_folder()
            # In a thread: a recovery may take long, and systemd's timeout must be extended.
            opened = partial(self._opened, cut_to)
            promoted = self.roles.begins_epoch
            await asyncio.to_thread(self.life.load, self._recovering, opened, cut_to, promoted)
        except StartGivenUp:
            self._close_sockets()
            return
        except BaseException:
            self._close_sockets()
            self._stop_metrics()
            raise
        self._loaded = True
        try:
            await self._run()
        except BaseException:
            await self._stop()
            raise
        self.is_ready = True
        self.progress = "ready"
        log.info(  # in addition to the ready line
            "serving",
            cluster=self.settings.broker_cluster_name,
            name=self.settings.broker_name,
            metrics_port=self.metrics_port if self._metrics else "off",
            hot_path=PATH,
        )

    def _opened(self, cut_to: int | None) -> None:
        """In the thread: the log is recovered, and not written to yet."""
        self.roles.opened(self.broker.store, cut_to)
        if self._replica is not None:
            self._replica.opened(self.broker)

    @property
    def is_thread_busy(self) -> bool:
        """Whether a thread makes or saves something that the broker's services wait for."""
        return Worker.under_way > 0 or not self.broker.store.queue_table.first_files.are_made

    def give_up_start(self) -> None:
        self._given_up = True

    def _open_sockets(self) -> None:
        main, fast = open_broker_sockets(self.settings)
        self._sockets = [main, fast]
        self.broker_port = self.broker.addresses.port = main.getsockname()[1]
        names = open_name_service_socket(self.settings)
        if names is not None:
            self._sockets.append(names)
            self.namesrv_port = names.getsockname()[1]
        slaves = self._replication_socket = open_replication_socket(self.settings, self.broker_port)
        if slaves is not None:
            self.broker.addresses.ha_port = slaves.getsockname()[1]

    def _close_sockets(self) -> None:
        for sock in self._sockets:
            sock.close()
        self._sockets = []
        if self._replication_socket is not None:
            self._replication_socket.close()
            self._replication_socket = None

    def _start_metrics(self) -> None:
        if self.settings.metrics_exporter_type == "DISABLE":
            return
        console = ConsoleChild(self.settings, lambda: own_url(self.settings, self.namesrv_port))
        metrics = MetricsPort(self._collect, self.health, lambda: self.is_ready, console)
        if start_metrics(self.settings, metrics):
            self._metrics = metrics
            self.metrics_port = metrics.port

    def _collect(self) -> "Collector | None":
        """The collector of metrics, once there is something to measure."""
        if self._collector is None and self._server is not None and self._front is not None:
            from aerobee.broker.daemon.metrics import Collector

            self._collector = Collector(self.broker, self._server, self._front.dispatcher)
        return self._collector

    def _stop_metrics(self) -> None:
        if self._metrics is not None:
            self._metrics.stop()
            self._metrics = None

    def health(self) -> str:
        """What is wrong; "" if nothing is."""
        if self._not_started_again:
            return f"it did not start again after a change of role: {self._not_started_again}"
        if self.life.failed:
            return f"a part of the broker has failed: {self.life.failed}"
        if not self.is_ready:
            return ""
        refusal = self.broker.store.refusals.besides(Cause.SLAVE)  # that is no failure
        return f"messages are refused: {refusal.reason}" if refusal is not None else ""

    def _recovering(self, done: int, total: int) -> None:
        self.progress = f"recovering the store, {done * 100 // max(total, 1)} %"
        if self._given_up or self._stopping:
            raise StartGivenUp

    async def _run(self) -> None:
        broker, settings = self.broker, self.settings
        self._listeners_before = list(settings.listeners)
        front = self._front = make_front(broker)
        self._server = make_server(broker, front, self._tls)
        if self._tls is not None:
            self.life.spawn("certificates", self._tls.watch(self.clock))
        await self.life.start()
        self._registrar = self._start_replication()
        self._registering = self.life.spawn("registration", self._registrar.run())
        settings.listeners.append(self._settings_changed)
        while self._sockets:  # the server closes those that it has
            sock = self._sockets.pop(0)
            await self._server.listen(sock, backlog=settings.server_socket_backlog)

    def _start_replication(self) -> Registrar:
        """Follow our master, or let slaves follow us; returns the registration with name
        servers."""
        broker, settings, spawn = self.broker, self.settings, self.life.spawn
        ours = (self.broker_port, self.broker_port - 2, self.namesrv_port)
        broker.replication.epochs = lambda: self.roles.epochs.ends(broker.store.max_physical_offset)
        broker.replication.promote = self._role_change.promote
        identity = (settings, self.clock, broker.topics, broker.addresses, ours)
        if self._role_change.failover is not None:
            broker.replication.failover = self._role_change.failover.status
        if settings.is_slave:
            following = Following(broker, spawn, self.roles.epoch_file, self._role_change.cut_log)
            self._role_change.following = following
            if self._replica is not None:  # the arbiter names the master, not name servers
                return Registrar(*identity)
            return Registrar(
                *identity,
                following.on_master,
                following.lacks_master,
                on_epoch=self.roles.note_epoch,
            )
        copies: Copies | InSync
        if self._replica is not None:
            copies = in_sync_of(broker, spawn, self._replica.broker_id)
            self._replica.leads_with(copies)
        else:
            copies = copies_of(broker, spawn)
        self._slaves = start_master(
            broker, self._replication_socket, spawn, self.roles.epoch_file, self._tls, copies
        )
        self._replication_socket = None  # its task closes it
        version = broker.topics.data_version
        if version.state_version < self.roles.epoch:
            version.state_version = self.roles.epoch
            broker.topics.next_version()
        return Registrar(*identity, superseded=self._role_change.superseded)

    def _settings_changed(self, keys: set[str]) -> None:
        self.broker.store.change_settings(store_settings(self.settings))
        if not self.settings.is_slave:
            self.broker.topics.follow_settings()
        if "brokerPermission" in keys and self._registrar is not None:
            self.broker.topics.next_version()  # a name server compares nothing else
            self._registrar.changed()

    def reload(self) -> None:
        """SIGHUP: read the files of users and the certificates again."""
        self.broker.guard.reload()
        if self._tls is not None:
            self._tls.reload()

    # --- stop

    async def stop(self) -> None:
        """Take no new requests, send the answers that are due, save and flush everything."""
        self._stopping = True
        async with self._lives:
            await self._stop()
            await self._end_failover()

    async def _end_failover(self) -> None:
        """After our log is closed: give up the lease, so that another replica can take over."""
        failover, task = self._role_change.failover, self._failing_over
        self._role_change.failover = self._failing_over = None
        if failover is not None and task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await failover.end()

    async def _stop(self, *, changes_role: bool = False) -> None:
        """`changes_role`: do not wait for peers whose machines may be gone, because the cluster has
        no master until the change is complete."""
        self.is_ready = False
        self._close_sockets()
        await asyncio.to_thread(self._stop_metrics)
        if not self._loaded:
            return
        self._loaded = False
        self.settings.listeners[:] = self._listeners_before
        if self._registrar is not None and self._registering is not None:
            self._registering.cancel()
            await asyncio.gather(self._registering, return_exceptions=True)
            await self._registrar.stop(CHANGE_S if changes_role else LAST_WORD_S)
        self.life.before_stop()
        self.broker.long_polling.stop()
        if self._server is not None:
            grace_s = self.settings.shutdown_wait_time_seconds
            await self._server.stop(min(grace_s, CHANGE_S) if changes_role else grace_s)
        if self._slaves is not None and not changes_role:
            await self._slaves.drain(LAST_COPIES_S)
        await self.life.stop()

    # --- a change of role, while the process lives

    async def _restart(self, cut_to: int | None) -> bool:
        """Stop, and start with the role that is saved now, on the same ports. False: it could not
        start again."""
        async with self._lives:
            if self._stopping:
                return False
            if cut_to is not None and self.roles.must_lead:
                return True  # elected since: our log is the reference now
            settings = self.settings
            ports = (self.broker_port, self.namesrv_port, self.broker.addresses.ha_port)
            try:
                await self._stop(changes_role=True)
                settings.listen_port, settings.namesrv_listen_port = ports[:2]
                if settings.ha_listen_port >= 0 and ports[2]:  # 0: the last try failed
                    settings.ha_listen_port = ports[2]
                self.roles.choose()
                if not settings.is_slave:  # promoted since: our log is the reference now
                    cut_to = None
                self._build()
                await self._start(cut_to)
                self._not_started_again = ""
                return True
            except (StartError, StoreError) as error:
                self._not_started_again = str(error)
                log.error("the broker did not start again: restart it", reason=str(error))
            except Exception as error:  # nobody awaits this task: log it
                self._not_started_again = f"{type(error).__name__}: {error}"
                log.error("the broker did not start again: restart it", exc_info=error)
            if self._replica is not None:
                self._replica.is_up = False  # failover tries again
            return False

    # --- status

    def _namesrv_address(self) -> str:
        if self.namesrv_port < 0:
            return "off"
        return join(self.settings.bind_address, self.namesrv_port)

    def ready_line(self) -> str:
        broker = join(self.settings.bind_address, self.broker_port)
        store = self.settings.store_path_root_dir
        return f"ready broker={broker} namesrv={self._namesrv_address()} store={store}"

    def status(self) -> str:
        """One line for `systemctl status`."""
        stats = self.broker.stats
        connections = len(self._server.connections) if self._server else 0
        put, got, *_ = stats.rates(60)
        return (
            f"serving, {connections} connections, {len(self.broker.topics.all())} topics, "
            f"{put:.0f} messages/s in, {got:.0f} out"
        )
