"""Automatic failover: carries out what an arbiter's view means for this broker.

`ha/election` decides who leads, `ha/in_sync` who is in sync. This keeps our announcement alive,
reads the view when it has changed, and does the next step. An arbiter that does not answer changes
no role. A master continues without it while its whole in-sync set follows it: then
none of them can have been elected.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from typing import Any, Final

import structlog

from aerobee.broker.base.clock import Clock
from aerobee.broker.base.refused import Refused
from aerobee.broker.daemon.leading import Leading
from aerobee.broker.daemon.replica import NotStartedAgain, Replica
from aerobee.broker.ha.arbiter import Alive, Arbiter, ArbiterError, View
from aerobee.broker.ha.election import Elect, FollowMaster, Lead, Stand, Step, Voter, Wait
from aerobee.broker.settings import Settings
from aerobee.broker.store.refusals import Cause
from aerobee.protocol.wire.codes import ResponseCode

log = structlog.get_logger("aerobee.ha")

CHECK_S: Final = 0.25  # between two checks of the in-sync set
LAST_WORD_S: Final = 2.0
ASKED_S: Final = 10.0  # after this time an operator's request is dropped
START_AGAIN_S: Final = 1.0
BEAT_S: Final = 1.0  # between two renewals of the lease, at most
SHORTEST_S: Final = 0.05  # ... at least, after one that took long


class Failover:
    def __init__(
        self, settings: Settings, clock: Clock, arbiter: Arbiter, us: Replica, life: str = ""
    ) -> None:
        """`life`: of this process, for the record."""
        self._settings = settings
        self._clock = clock
        self._arbiter = arbiter
        self._us = us
        self._voter = Voter(us.broker_id, life or uuid.uuid4().hex)
        self._leading = Leading(settings, clock, arbiter, us)
        self._lease_s = settings.lease_ms / 1000
        self._beat_s = min(self._lease_s / 3, BEAT_S)
        self._view: View | None = None
        self._read_at = 0.0
        self._is_due = True  # the view may be older than what is known
        self._wake = asyncio.Event()
        self._announced: Alive | None = None
        self._announcing = asyncio.Lock()
        self._stands = -1
        self._deadline = 0.0  # of our lease, counted from before the request for it
        self._asked_until = 0.0  # an operator wants us to be the master
        self._accept_loss = False  # ... even if we lack acknowledged messages
        self._failing_since: float | None = None
        self._reason = ""  # why the arbiter does not answer
        self.step: Step | None = None

    # -- called by others

    @property
    def is_away(self) -> bool:
        """Whether the arbiter has not answered the last request."""
        return self._failing_since is not None

    def status(self) -> dict[str, Any]:
        """For `aerobee replicas`, doctor and the console."""
        view, since = self._view, self._failing_since
        record = view.record if view is not None else None
        away_s = round(self._clock.monotonic() - since, 1) if since is not None else None
        return {
            "ack": self._settings.failover_ack,
            "alive": sorted(view.alive) if view is not None else [],
            "awayReason": self._reason if away_s is not None else "",
            "awaySeconds": away_s,
            "arbiter": self._settings.arbiter_name,
            "electionsWon": self._leading.elections,
            "epoch": record.epoch if record is not None else 0,
            "brokerId": self._us.broker_id,
            "inSync": sorted(record.in_sync) if record is not None else [],
            "master": record.master if record is not None else None,
            "leads": self._us.leads > 0,
            "step": type(self.step).__name__.lower() if self.step is not None else "",
            "waitsFor": self.step.reason if isinstance(self.step, Wait) else "",
        }

    def promote(self, *, accept_loss: bool) -> int:
        """An operator wants us to be the master; returns our epoch. Refused says why not."""
        record = self._view.record if self._view is not None else None
        if self.is_away or self._view is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"{self._settings.arbiter_name} does not answer: {self._reason}",
            )
        if self._us.leads:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"this broker is the master already, in epoch {self._us.leads}",
            )
        own = self._us.announcement()
        if self._voter.why_not(self._view, own) and not accept_loss:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                "this replica is not in sync: it may lack messages that were acknowledged; "
                "promote one that is in sync, or say --accept-loss",
            )
        self._asked_until = self._clock.monotonic() + ASKED_S
        self._accept_loss = accept_loss
        self._wake.set()
        return max(record.epoch if record is not None else 0, own.last_epoch) + 1

    # -- running

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_alive(), name="lease")
            tasks.create_task(self._listen(), name="changes at the arbiter")
            tasks.create_task(self._fence_in_time(), name="fence")
            while True:
                await self.do_step()
                await self._announce_again()
                await self._pause()

    async def end(self) -> None:
        """After the store is closed: release the lease, so that others take over at once."""
        try:
            async with asyncio.timeout(LAST_WORD_S):
                await self._arbiter.withdraw()
        except (ArbiterError, TimeoutError) as error:
            log.info("the lease could not be released", reason=str(error), then="it expires")
        await self._arbiter.close()

    async def _pause(self) -> None:
        if self._is_due and not self.is_away:
            return
        try:
            async with asyncio.timeout(CHECK_S):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _listen(self) -> None:
        while True:
            await self._arbiter.changed()
            self._is_due = True
            self._wake.set()

    async def _keep_alive(self) -> None:
        """Renew the lease from the event loop: if the loop is stuck, others take over."""
        while True:
            began = self._clock.monotonic()
            await self.renew()
            took_s = self._clock.monotonic() - began
            await self._clock.sleep(max(self._beat_s - took_s, SHORTEST_S))

    async def _fence_in_time(self) -> None:
        """Apart from `do_step`, which may wait for the arbiter: clients must be refused in time."""
        while True:
            await self._clock.sleep(CHECK_S)
            self._leading.fence(self._deadline, self._reason)

    async def renew(self) -> None:
        """Keep our announcement alive, or make it again."""
        asked_at = self._clock.monotonic()
        try:
            async with self._announcing:
                if not await self._arbiter.renew():
                    if self._announced is None:
                        return
                    await self._arbiter.announce(self._announced)
                self._deadline = asked_at + self._lease_s
                self._answered()
        except ArbiterError as error:
            self._away(error)

    def _away(self, error: ArbiterError) -> None:
        self._reason = str(error)
        if self._failing_since is None:
            self._failing_since = self._clock.monotonic()
            log.warning(
                f"{self._settings.arbiter_name} does not answer",
                reason=self._reason,
                then="roles stay as they are; a master continues while all in-sync replicas follow",
            )

    def _answered(self) -> None:
        if self._failing_since is not None:
            seconds = round(self._clock.monotonic() - self._failing_since, 1)
            self._failing_since = None
            self._is_due = True
            log.info(f"{self._settings.arbiter_name} answers again", after_s=seconds)

    async def _announce(self, alive: Alive) -> None:
        async with self._announcing:
            await self._arbiter.announce(alive)  # which makes no lease longer
            self._announced = alive
        self._answered()

    # -- one step

    async def do_step(self) -> None:
        """Decide on the next step and do it."""
        self._leading.fence(self._deadline, self._reason)
        now = self._clock.monotonic()
        try:
            if self._announced is None:
                await self._announce(self._us.announcement())
            if self._is_due or now - self._read_at > self._beat_s:
                self._is_due = False
                self._read_at = now
                self._view = await self._arbiter.read()
                self._answered()
            if self._view is not None:
                await self._act(self._view)
        except ArbiterError as error:
            self._is_due = True
            self._away(error)
        except OSError as error:  # of our disk, when saving that we are electable
            log.error("a step of the failover has failed", reason=str(error), then="retried")
        except NotStartedAgain as error:  # retry: perhaps no other replica is electable
            log.error("this broker does not run", reason=str(error), then="retried")
            self._is_due = True
            await self._clock.sleep(START_AGAIN_S)

    async def _act(self, view: View) -> None:
        own = replace(self._us.announcement(), stands=self._stands)
        now = self._clock.monotonic()
        asked, accept_loss = now < self._asked_until, self._accept_loss
        step = self._voter.decide(view, own, now, asked=asked, accept_loss=accept_loss)
        if not isinstance(step, Stand | Elect):
            self._asked_until = 0.0  # done, or no longer possible without a loss
        if isinstance(step, Wait) and step != self.step:
            log.warning("no master is followed", reason=step.reason)
        self.step = step
        if isinstance(step, Lead):
            await self._lead(view, step)
        elif not self._us.is_up or (self._us.leads and view.record is not None):
            await self._give_way(view)
        elif isinstance(step, FollowMaster):
            await self._us.follow(step.master, step.epoch)
            self._stands = -1
            await self._announce_if_new(replace(self._us.announcement(), stands=-1))
        elif isinstance(step, Stand):
            await self._us.stand()
            await self._announce(replace(self._us.announcement(), stands=step.epoch))
            self._stands = step.epoch
            self._is_due = True
        elif isinstance(step, Elect):
            await self._elect(step)
        elif view.record is None and own != self._announced:
            await self._announce(own)  # the longest log is elected: keep our log end current
        else:
            await self._announce_if_new(own)

    async def _announce_again(self) -> None:
        """Announce again if our announcement was deleted while our lease is still valid."""
        view, known = self._view, self._announced
        if view is None or known is None or self._us.broker_id in view.alive or self.is_away:
            return
        try:
            await self._announce(known)
            self._is_due = True
        except ArbiterError as error:
            self._away(error)

    async def _announce_if_new(self, alive: Alive) -> None:
        """Announce, unless only our log end has changed: that matters only in elections."""
        known = self._announced
        if known is None or alive != replace(known, log_end=alive.log_end):
            await self._announce(alive)

    async def _elect(self, step: Elect) -> None:
        self._is_due = True
        loss_accepted = self._accept_loss and self._clock.monotonic() < self._asked_until
        if loss_accepted or not step.revision:  # our log becomes the reference
            await self._us.mark_electable()
        log.info("this replica wants to be the master", epoch=step.record.epoch)
        if await self._arbiter.compare_and_set(step.revision, step.record) is not None:
            self._asked_until = 0.0

    async def _give_way(self, view: View) -> None:
        if self._us.leads and view.record is not None:
            self._us.refusals.set(
                Cause.SUPERSEDED,
                f"another broker is the master: {view.record.master or 'not elected yet'}, in "
                f"epoch {view.record.epoch}; this one was in epoch {self._us.leads}",
            )
        await self._us.become_slave()
        self._is_due = True

    async def _lead(self, view: View, step: Lead) -> None:
        if self._us.leads != step.record.epoch:
            await self._leading.begin(view, step)
            self._stands = -1
        await self._announce_if_new(replace(self._us.announcement(), stands=-1))
        changed = await self._leading.update_set(view, step)
        if changed is not view:
            self._is_due = True
            self._view = changed or view
