"""The regular work of a master that an arbiter has elected: its in-sync set, and when it must
refuse messages."""

from __future__ import annotations

from dataclasses import replace

import structlog

from aerobee.broker.base.clock import Clock
from aerobee.broker.daemon.replica import Replica
from aerobee.broker.ha.arbiter import Arbiter, View
from aerobee.broker.ha.election import Lead
from aerobee.broker.ha.in_sync import InSync
from aerobee.broker.settings import Settings
from aerobee.broker.store.refusals import Cause, Refusals

log = structlog.get_logger("aerobee.ha")


class Leading:
    def __init__(self, settings: Settings, clock: Clock, arbiter: Arbiter, us: Replica) -> None:
        self._settings = settings
        self._clock = clock
        self._arbiter = arbiter
        self._us = us
        self._known_revision = 0  # of the record
        self._won = 0  # the last epoch that we were elected in
        self.elections = 0  # that we have won

    async def begin(self, view: View, step: Lead) -> None:
        """Take messages in the record's epoch, if we do not yet."""
        epoch = step.record.epoch
        if self._us.leads == epoch:
            return
        if self._won != epoch:  # else a start has failed
            self._won = epoch
            self.elections += 1
        log.info("this broker is elected", epoch=epoch)
        await self._us.become_master(epoch)
        self._known_revision = view.revision

    async def update_set(self, view: View, step: Lead) -> View | None:
        """Update the in-sync set; returns the view with the set that is now recorded. None: our
        change was refused."""
        in_sync, settings = self._us.in_sync, self._settings
        assert in_sync is not None
        if view.revision != self._known_revision:  # what we proposed before is decided
            in_sync.decided(step.record.in_sync)
            self._known_revision = view.revision
        refuse_if_few(in_sync, settings, self._us.refusals)
        changed = await self.propose(view, in_sync)
        refuse_if_few(in_sync, settings, self._us.refusals)
        return changed

    async def propose(self, view: View, in_sync: InSync) -> View | None:
        wanted = in_sync.propose([one for one, alive in view.alive.items() if alive.electable])
        if wanted is None:
            return view
        assert view.record is not None
        record = replace(view.record, in_sync=wanted)
        before = in_sync.proposed(wanted)
        revision = await self._arbiter.compare_and_set(view.revision, record)
        if revision is None:
            in_sync.refused(before)
            return None
        log.info(
            "the in-sync set has changed", before=sorted(view.record.in_sync), now=sorted(wanted)
        )
        in_sync.decided(wanted)
        self._known_revision = revision
        return View(record, revision, view.alive)

    def fence(self, deadline: float, reason: str) -> None:
        """Refuse messages once our lease has expired, as another master may be elected then. It
        cannot be while all of our set follow us, and an acknowledgement needs all of them
        anyway: this only lets clients know sooner."""
        us = self._us
        if not us.leads or us.in_sync is None:
            return
        us.in_sync.observe()
        if self._clock.monotonic() > deadline and not us.in_sync.all_follow():
            us.refusals.set(
                Cause.FENCED,
                f"{self._settings.arbiter_name} has not heard from this master in time, and not "
                f"all in-sync replicas follow it: another broker may be the master by now "
                f"({reason or 'no answer'})",
            )
        else:
            us.refusals.clear(Cause.FENCED)


def refuse_if_few(in_sync: InSync, settings: Settings, refusals: Refusals) -> None:
    in_sync.least = settings.min_in_sync_replicas  # which may have been changed
    if in_sync.is_enough:
        refusals.clear(Cause.FEW_IN_SYNC)
    else:
        refusals.set(
            Cause.FEW_IN_SYNC,
            f"{len(in_sync.recorded)} replicas are in sync, minInSyncReplicas={in_sync.least} are "
            f"needed: start the others",
        )
