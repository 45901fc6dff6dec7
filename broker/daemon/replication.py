"""Replication wired to a broker: the links of a master, or of a slave to its master."""

from __future__ import annotations

import socket
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from aerobee.broker.ha.config_sync import ConfigSync
from aerobee.broker.ha.copies import Copies
from aerobee.broker.ha.epochs import EpochFile
from aerobee.broker.ha.master_client import MasterAddress
from aerobee.broker.ha.master_links import MasterLinks
from aerobee.broker.ha.slave_link import SlaveLink
from aerobee.broker.handlers.context import Broker
from aerobee.broker.net.addresses import join
from aerobee.broker.net.tls import Tls

log = structlog.get_logger("aerobee.app")

Spawn = Callable[[str, Coroutine[Any, Any, None]], object]


def start_master(
    broker: Broker,
    listening: socket.socket | None,
    spawn: Spawn,
    epoch_file: EpochFile,
    tls: Tls | None = None,
) -> MasterLinks | None:
    """Let slaves follow our log; in SYNC_MASTER, let sends wait for them."""
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
    if listening is None:
        return None
    links = MasterLinks(settings, store, broker.clock, copies, epoch_file)
    links.must_sign_in = broker.guard.is_on and settings.slaves_need_signature
    links.tls = tls
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
        self._found: MasterAddress | None = None
        if settings.ha_master_address:
            host, _, port = settings.ha_master_address.rpartition(":")
            main = join(host.strip("[]"), int(port) - 1)  # unless a name server tells another
            self._found = MasterAddress(main, settings.ha_master_address)
        self._fixed_ha = settings.ha_master_address
        link = self._link = SlaveLink(
            settings, broker.store, broker.clock, self.find, epoch_file, cut_log
        )
        broker.replication.master = link.status
        sync = ConfigSync(
            settings,
            broker.store,
            broker.clock,
            broker.topics,
            broker.groups,
            broker.offsets,
            broker.schedule,
            broker.timers.checkpoints if settings.timer_wheel_enable else None,
            broker.batch_ledger,
            self._followed,
        )
        spawn("master's log", link.run())
        spawn("master's configuration", sync.run())

    def find(self) -> MasterAddress | None:
        return self._found

    def _followed(self) -> MasterAddress | None:
        """The master whose log is ours: only its tables belong to what we have. A name server may
        tell of one that we refuse, as it was a master before."""
        return self._link.master if self._link.is_following else None

    def master_told(self, main: str, ha: str) -> None:
        """What a name server says; a configured replication port is kept."""
        found = MasterAddress(main, self._fixed_ha or ha)
        if found != self._found:
            log.info("the master is known", master=found.main, replication=found.ha)
            self._found = found

    @property
    def follows(self) -> bool:
        return self._link.is_following

    @property
    def master_text(self) -> str:
        return self._link.master.main if self._link.master is not None else "nobody"

    @property
    def master_role(self) -> str:
        """brokerRole of the master that we have followed; empty: not known."""
        return self._link.facts.role if self._link.facts is not None else ""

    def lacks_master(self) -> bool:
        return not self._link.is_following
