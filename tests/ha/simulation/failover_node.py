"""A replica with an arbiter, in the simulation: the real store, role, election and in-sync set."""

from __future__ import annotations

import random
from collections.abc import Coroutine
from typing import Any

from aerobee.broker.daemon.failover import Failover
from aerobee.broker.daemon.roles import Roles
from aerobee.broker.daemon.store_settings import store_settings
from aerobee.broker.ha import cut
from aerobee.broker.ha.arbiter import Alive
from aerobee.broker.ha.electable import Electability
from aerobee.broker.ha.in_sync import InSync
from aerobee.broker.settings import Settings
from aerobee.broker.settings.replication import SLAVE
from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.store.refusals import Refusals
from ha.simulation.replica import FOREVER_MS, ROOT, Replica
from ha.simulation.sim_arbiter import LEASE_MS, Handle, SimArbiter

LATE_MS = 2000


class Node(Replica):
    def __init__(
        self, number: int, flush: str, file_size: int, clock: Any, shared: SimArbiter
    ) -> None:
        self._shared = shared
        self.kernel = 1
        self.handle = Handle(shared, number)
        self.followed: int | None = None  # broker id, if any
        self.task: Coroutine[Any, Any, None] | None = None
        self.in_sync: InSync | None = None
        self.leads = 0
        self._hidden_end = 0
        self.is_settled = True
        self._first_confirmed = -1
        super().__init__(number, flush, file_size, clock)
        self.broker_id = number

    def _settings(self) -> Settings:
        settings = super()._settings()
        settings.etcd_endpoints = "http://simulated:2379"
        settings.failover_lease = LEASE_MS
        settings.ha_max_time_slave_not_catchup = LATE_MS
        settings.broker_role = "ASYNC_MASTER"
        return settings

    # -- its life

    def start(self, needed: int = 0) -> None:
        """A process begins."""
        self.settings = self._settings()
        self.roles = Roles(self.settings, self.disk)
        path = f"{ROOT}/config/replicaState.json"
        self.electability = Electability(path, self.disk, f"kernel {self.kernel}")
        self._open()
        self.failover = Failover(self.settings, self.clock, self.handle, self)

    def _open(self) -> None:
        """A life of the store begins, as in the daemon."""
        self.roles.choose()
        wanted, settings = store_settings(self.settings), self.settings
        if not settings.is_slave:
            self.cut_to = None
        if self.cut_to is not None:
            cut.take_back_progress(wanted, settings, self.clock, self.disk, self.cut_to)
        store = MessageStore(wanted, clock=self.clock, disk=self.disk)
        store.load(cut_to=self.cut_to)
        self.roles.opened(store, self.cut_to)
        self.electability.opened(was_stopped=store.was_stopped, sync_flush=store.sync_flush)
        self.cut_to, self.refused, self.followed, self.leads = None, "", None, 0
        self.in_sync = self.copies = self.confirmed = None
        self._first_confirmed = -1
        if settings.is_slave:
            self._hidden_end = store.max_physical_offset
            self.is_settled = self._hidden_end == store.min_physical_offset
            store.confirm(0)
        else:
            self.electability.caught_up()
            self._take_messages(store)
        self.store = store

    def _take_messages(self, store: MessageStore) -> None:
        self.is_settled = True
        self.in_sync = self.copies = InSync(
            self.clock,
            lambda: store.max_physical_offset,
            store.safe_limit,
            store.confirm,
            own_id=self.number,
            members=frozenset({self.number}),
            late_s=LATE_MS / 1000,
            timeout_ms=FOREVER_MS,
        )
        self.confirmed = self.in_sync.confirmed
        store.wait_for_copies(self.in_sync.when_copied)
        self.leads = self.roles.epoch

    def restart(self) -> None:
        """In the same process."""
        self.log.close()
        self.store = self.copies = self.in_sync = None
        self.leads = 0
        self._open()

    def crash(self, rng: random.Random | None) -> None:
        super().crash(rng)
        if rng is not None:
            self.kernel += 1
        self._end()

    def _end(self) -> None:
        if self.task is not None:
            self.task.close()
        self.task = self.in_sync = None
        self.leads, self.followed = 0, None

    def empty(self) -> None:
        super().empty()
        self._end()

    # -- one step of its failover

    def look(self, rng: random.Random) -> None:
        if self.task is None:
            if rng.random() < 0.3:
                self.failover._is_due = True  # notified of a change
            self.task = self.failover.renew() if rng.random() < 0.3 else self.failover.do_step()
        try:
            self.task.send(None)
        except StopIteration:
            self.task = None

    # -- what the master tells

    def hear_confirmed(self, end: int) -> None:
        if self._first_confirmed < 0:
            self._first_confirmed = end
        self.log.confirm(end)
        self.is_settled = self.is_settled or end >= self._hidden_end

    # -- what failover asks

    @property
    def refusals(self) -> Refusals:
        return self.log.refusals

    def announcement(self) -> Alive:
        return Alive(
            self.number,
            str(self.number),
            "",
            self.roles.epoch,
            self.log.max_physical_offset,
            self.electability.is_electable,
            True,
            self.leads,
        )

    async def follow(self, master: Alive, epoch: int) -> None:
        self.roles.note_epoch(epoch)
        if self.followed != master.broker_id:
            self.unlink()
            self.refused = ""
            self.followed = master.broker_id
        has_all = self._first_confirmed >= 0 and self._first_confirmed <= self.log.safe_limit()
        if has_all and self.roles.epoch == epoch:
            self.electability.caught_up()

    async def stand(self) -> None:
        self.unlink()

    async def mark_electable(self) -> None:
        self.electability.caught_up()

    def unlink(self) -> None:
        """The world ends the link."""
        self.followed = None
        self._first_confirmed = -1

    async def become_master(self, epoch: int) -> None:
        self.roles.decided("SYNC_MASTER", epoch)
        self.restart()

    async def become_slave(self) -> None:
        self.roles.decided(SLAVE)
        self.restart()
