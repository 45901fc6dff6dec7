"""Failover wired to a broker: the arbiter by its settings, and the broker as `failover` sees it."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from aerobee.broker.daemon.failover import Failover
from aerobee.broker.daemon.leading import refuse_if_few
from aerobee.broker.daemon.replica import NotStartedAgain
from aerobee.broker.daemon.role_change import RoleChange
from aerobee.broker.daemon.roles import Roles
from aerobee.broker.ha.arbiter import Alive, ArbiterError
from aerobee.broker.ha.controller import ControllerArbiter, SetMember
from aerobee.broker.ha.controller_client import ControllerClient
from aerobee.broker.ha.electable import FILE_NAME, Electability, kernel_boot_id
from aerobee.broker.ha.identity import given_id
from aerobee.broker.ha.in_sync import InSync
from aerobee.broker.handlers.context import Broker
from aerobee.broker.net.listening import StartError
from aerobee.broker.services.config_files.classes import config_path
from aerobee.broker.settings import Settings
from aerobee.broker.settings.failover import endpoints_of
from aerobee.broker.settings.replication import SLAVE
from aerobee.broker.store.files.disk import Disk
from aerobee.broker.store.refusals import Refusals
from aerobee.protocol.tls import client_context

if TYPE_CHECKING:
    from aerobee.broker.ha.etcd import EtcdArbiter


async def id_of(settings: Settings, disk: Disk, go_on: Callable[[], bool]) -> int:
    """Our brokerId for the arbiter. At the first start this waits until a controller assigns one;
    StartError when none does."""
    if not settings.enable_controller_mode:
        return settings.broker_id
    client = ControllerClient(settings, _patience_s(settings))
    try:
        return await given_id(settings, disk, client, f";{uuid.uuid4().hex}", go_on)
    except (ArbiterError, OSError) as error:
        raise StartError(
            f"no brokerId: {error}; the first start needs a controller, see controllerAddr"
        ) from error
    finally:
        client.close()


def _patience_s(settings: Settings) -> float:
    """The timeout of a request to the arbiter."""
    return min(max(settings.lease_ms / 3000, 0.5), 2.0)


def _controller_of(
    settings: Settings, broker_id: int, life: str, log_end: Callable[[], int]
) -> ControllerArbiter:
    us = SetMember(
        settings.broker_cluster_name,
        settings.broker_name,
        broker_id,
        life,
        log_end,
        settings.broker_election_priority,
    )
    records, beats = (ControllerClient(settings, _patience_s(settings)) for _ in range(2))
    lease = settings.controller_heart_beat_timeout_mills
    return ControllerArbiter(us, records, beats, lease)


def etcd_of(settings: Settings, broker_id: int) -> EtcdArbiter:
    """StartError when its certificates cannot be used."""
    from aerobee.broker.ha.etcd import EtcdArbiter  # it imports an HTTP client: only with failover

    endpoints = endpoints_of(settings.etcd_endpoints)
    context = None
    if any(endpoint.startswith("https:") for endpoint in endpoints):
        try:
            context = client_context(
                settings.etcd_ca_file,
                certificate=settings.etcd_cert_file,
                key=settings.etcd_key_file,
            )
        except (OSError, ValueError) as error:
            raise StartError(
                f"the certificates for etcd cannot be used: {error}; see etcdCaFile, "
                f"etcdCertFile and etcdKeyFile"
            ) from error
    user = (settings.etcd_user, settings.etcd_password) if settings.etcd_user else None
    prefix = settings.etcd_prefix.rstrip("/")
    folder = f"{prefix}/{settings.broker_cluster_name}/{settings.broker_name}"
    lease = settings.failover_lease
    return EtcdArbiter(endpoints, folder, broker_id, lease, context=context, user=user)


class ReplicaHere:
    """This broker as failover sees it, across its restarts in other roles."""

    def __init__(
        self,
        settings: Settings,
        roles: Roles,
        role_change: RoleChange,
        disk: Disk,
        restart: Callable[[int | None], Awaitable[bool]],
    ) -> None:
        self._settings = settings
        self._roles = roles
        self._role_change = role_change
        self._restart = restart
        self._life = uuid.uuid4().hex
        self._arbiter: ControllerArbiter | EtcdArbiter
        if settings.enable_controller_mode:
            self._arbiter = _controller_of(settings, roles.broker_id, self._life, self._log_end)
        else:
            self._arbiter = etcd_of(settings, roles.broker_id)
        folder = os.path.join(settings.store_path_root_dir, "config")
        self._electability = Electability(config_path(folder, FILE_NAME), disk, kernel_boot_id())
        self._broker: Broker | None = None
        self.is_up = True
        self.broker_id = roles.broker_id
        self.leads = 0
        self.in_sync: InSync | None = None

    # -- called by the broker

    def opened(self, broker: Broker) -> None:
        """The store is open and not in use yet; OSError when the disk refuses."""
        store = broker.store
        self._electability.opened(was_stopped=store.was_stopped, sync_flush=store.sync_flush)
        if not self._settings.is_slave:
            self._electability.caught_up()
        self._broker, self.in_sync, self.leads = broker, None, 0
        if isinstance(self._arbiter, ControllerArbiter):
            broker.replication.role_changed = self._arbiter.notified

    def leads_with(self, in_sync: InSync) -> None:
        """This broker is the master now; it refuses messages if its in-sync set is too small."""
        refuse_if_few(in_sync, self._settings, self.refusals)
        self.in_sync = in_sync
        self.leads = self._roles.epoch

    def make_failover(self, broker: Broker) -> Failover:
        return Failover(self._settings, broker.clock, self._arbiter, self, self._life)

    def _log_end(self) -> int:
        return self._broker.store.max_physical_offset if self._broker is not None else 0

    # -- called by failover

    @property
    def refusals(self) -> Refusals:
        assert self._broker is not None
        return self._broker.store.refusals

    def announcement(self) -> Alive:
        broker, roles = self._broker, self._roles
        assert broker is not None
        address = broker.addresses.for_name_server(self._arbiter.local)
        return Alive(
            self.broker_id,
            address,
            broker.addresses.ha_address(address),
            roles.epoch,
            broker.store.max_physical_offset,
            self._electability.is_electable,
            roles.may_begin,
            self.leads,
        )

    async def follow(self, master: Alive, epoch: int) -> None:
        following = self._role_change.following
        if following is None:
            return
        self._roles.note_epoch(epoch)
        await following.follow_master(master.address, master.ha_address)
        # A Java master does not note an epoch that begins where the last one did.
        is_its_epoch = self._roles.epoch == epoch or not following.is_behind_ours
        if following.has_all_confirmed and is_its_epoch:
            await asyncio.to_thread(self._electability.caught_up)

    async def stand(self) -> None:
        if self._role_change.following is not None:
            await self._role_change.following.stand()

    async def mark_electable(self) -> None:
        """No replica has acknowledged more, or an operator accepts the loss: save it."""
        await asyncio.to_thread(self._electability.caught_up)

    async def become_master(self, epoch: int) -> None:
        mode = self._settings.failover_ack
        self._roles.decided("SYNC_MASTER" if mode == "IN_SYNC" else "ASYNC_MASTER", epoch)
        await self._start_again()

    async def become_slave(self) -> None:
        self._roles.decided(SLAVE)
        await self._start_again()

    async def _start_again(self) -> None:
        self.leads, self.in_sync = 0, None
        self.is_up = await self._restart(None)
        if not self.is_up:
            raise NotStartedAgain("it has not started again in its new role")
