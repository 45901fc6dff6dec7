"""Replication wired to a broker: the links of a master, or of a slave to its master."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from aerobee.broker.ha.access_sync import AccessSync
from aerobee.broker.ha.config_sync import ConfigSync
from aerobee.broker.ha.copies import Copies
from aerobee.broker.ha.epochs import EpochFile
from aerobee.broker.ha.in_sync import InSync
from aerobee.broker.ha.master_client import MasterAddress
from aerobee.broker.ha.master_links import MasterLinks
from aerobee.broker.ha.slave_link import SlaveLink
from aerobee.broker.handlers.context import Broker
from aerobee.broker.net.addresses import join
from aerobee.broker.net.tls import Tls

log = structlog.get_logger("aerobee.app")

Spawn = Callable[[str, Coroutine[Any, Any, None]], asyncio.Task[None]]


def copies_of(broker: Broker, spawn: Spawn) -> Copies:
    """The counter of slaves' copies; in SYNC_MASTER, sends wait for them."""
    settings, store = broker.settings, broker.store
    waits = settings.broker_role == "SYNC_MASTER"
    copies = Copies(
        broker.clock,
        lambda: store.max_physical_offset,
        needed=max(1, settings.in_sync_replicas - 1) if waits else 0,
        behind_max=settings.ha_slave_fallbehind_max,
        timeout_ms=settings.slave_timeout,
    )
    if waits:
        store.wait_for_copies(copies.when_copied)
        spawn("copies", copies.waiters.run_expiry())
    return copies


def in_sync_of(broker: Broker, spawn: Spawn, own_id: int) -> InSync:
    """The same for a master that an arbiter has elected: with the in-sync set. Consumers see only
    what is confirmed; sends wait for that, unless failoverAck=MASTER."""
    settings, store = broker.settings, broker.store
    in_sync = InSync(
        broker.clock,
        lambda: store.max_physical_offset,
        store.safe_limit,
        store.confirm,
        own_id=own_id,
        members=frozenset({own_id}),
        late_s=settings.ha_max_time_slave_not_catchup / 1000,
        timeout_ms=settings.slave_timeout,
        least=settings.min_in_sync_replicas,
    )
    if settings.failover_ack == "IN_SYNC":
        store.wait_for_copies(in_sync.when_copied)
        spawn("copies", in_sync.waiters.run_expiry())
    return in_sync


def start_master(
    broker: Broker,
    listening: socket.socket | None,
    spawn: Spawn,
    epoch_file: EpochFile,
    tls: Tls | None,
    copies: Copies | InSync,
) -> MasterLinks | None:
    """Let slaves follow our log."""
    if listening is None:
        return None
    settings, store = broker.settings, broker.store
    links = MasterLinks(settings, store, broker.clock, copies, epoch_file)
    links.must_sign_in = broker.guard.is_on and settings.slaves_need_signature
    links.tls = tls
    links.confirmed = copies.confirmed if isinstance(copies, InSync) else None
    broker.replication.slaves = links.status
    broker.replication.identify = links.identify
    spawn("slaves", links.accept(listening))
    spawn("slaves watch", links.watch())
    return links


class Following:
    """A slave: where its master is, and the tasks that follow it."""

    def __init__(
        self,
        broker: Broker,
        spawn: Spawn,
        epoch_file: EpochFile,
        cut_log: Callable[[int], None],
    ) -> None:
        settings = broker.settings
        self._broker = broker
        self._spawn = spawn
        self._found: MasterAddress | None = None
        if settings.ha_master_address and not settings.has_arbiter:
            host, _, port = settings.ha_master_address.rpartition(":")
            main = join(host.strip("[]"), int(port) - 1)  # unless a name server has another
            self._found = MasterAddress(main, settings.ha_master_address)
        self._fixed_ha = settings.ha_master_address if self._found else ""
        if settings.has_arbiter:
            self._hide_unconfirmed()
        on_confirm = self._confirmed if settings.has_arbiter else lambda _: None
        link = self._link = SlaveLink(
            settings, broker.store, broker.clock, self.find, epoch_file, cut_log, on_confirm
        )
        broker.replication.master = link.status
        access = AccessSync(settings, broker.guard)
        broker.replication.access = access.status
        sync = ConfigSync(
            settings,
            broker.store,
            broker.clock,
            broker.topics,
            broker.groups,
            broker.offsets,
            broker.schedule,
            broker.timers.checkpoints if settings.timer_wheel_enable else None,
            broker.batch_ledger.book,
            access,
            self._followed,
        )
        self._following: asyncio.Task[None] | None = None
        self.resume()
        spawn("master's configuration", sync.run())

    # -- with an arbiter

    def _hide_unconfirmed(self) -> None:
        """After a start our queues hold all of our log, but a failover may roll back a part of it:
        refuse pulls until our master has confirmed it."""
        store = self._broker.store
        self._hidden_end = store.max_physical_offset
        self._broker.replication.is_settled = self._hidden_end == store.min_physical_offset
        store.confirm(0)

    def _confirmed(self, end: int) -> None:
        self._broker.store.confirm(end)
        if end >= self._hidden_end:
            self._broker.replication.is_settled = True

    @property
    def has_all_confirmed(self) -> bool:
        """Whether we have all that our master had confirmed when we began to follow it."""
        store = self._broker.store
        return self.follows and 0 <= self._link.first_confirmed <= store.safe_limit()

    async def stand(self) -> None:
        """Stop following: once this returns, nothing more is received or acknowledged."""
        task, self._following = self._following, None
        self._found = None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def follow_master(self, main: str, ha: str) -> None:
        """Follow this master. If we follow another one, which may not know that it was replaced,
        nothing more is received from it or acknowledged to it."""
        if self._link.master not in (None, MasterAddress(main, ha)):
            await self.stand()
        self.on_master(main, ha)
        self.resume()

    def resume(self) -> None:
        """Follow the current master."""
        if self._following is None:
            self._following = self._spawn("master's log", self._link.run())

    # -- its master

    def find(self) -> MasterAddress | None:
        return self._found

    def _followed(self) -> MasterAddress | None:
        """The master whose log we copy: only its tables match our log. A name server may report an
        earlier master, which we refuse."""
        return self._link.master if self._link.is_following else None

    def on_master(self, main: str, ha: str) -> None:
        """A name server has reported this master; a configured replication port is kept."""
        found = MasterAddress(main, self._fixed_ha or ha)
        if found != self._found:
            log.info("the master is known", master=found.main, replication=found.ha)
            self._found = found

    @property
    def follows(self) -> bool:
        return self._link.is_following

    @property
    def is_behind_ours(self) -> bool:
        """Whether the master that we followed last is an Aerobee broker."""
        return self._link.facts is None or self._link.facts.is_ours

    @property
    def master_text(self) -> str:
        return self._link.master.main if self._link.master is not None else "nobody"

    @property
    def master_role(self) -> str:
        """brokerRole of the master that we followed last; empty: not known."""
        return self._link.facts.role if self._link.facts is not None else ""

    def lacks_master(self) -> bool:
        return not self._link.is_following
