"""Bugs to plant in failover: what a hurried author might write, or others once wrote.

The simulation must catch every one; `SEEDS` has a seed that does. RocketMQ's are named by their
numbers, Kafka's by KIP.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest
from crash.planted import Mutants

from aerobee.broker.daemon.failover import Failover
from aerobee.broker.daemon.leading import Leading
from aerobee.broker.ha import electable
from aerobee.broker.ha.arbiter import Alive, ArbiterError, Record, View
from aerobee.broker.ha.election import Elect, Lead, Step, Voter
from aerobee.broker.ha.in_sync import InSync
from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.store.results import DurableCallback, PutStatus
from ha.simulation.failover_node import Node

MUTANTS = Mutants()
mutant = MUTANTS.add


@mutant
def a_shrink_counts_before_the_record_has_it_9897(patch: pytest.MonkeyPatch) -> None:
    def proposed(self: InSync, wanted: frozenset[int]) -> frozenset[int]:
        self.recorded = wanted
        self._undecided = frozenset()
        self._count()
        return self._undecided

    patch.setattr(InSync, "proposed", proposed)


@mutant
def a_growth_counts_only_once_it_is_answered_5663(patch: pytest.MonkeyPatch) -> None:
    def count(self: InSync) -> None:
        self.waited_for = self.recorded - {self._own_id}
        self._advance()

    patch.setattr(InSync, "_count", count)


@mutant
def an_unknown_outcome_is_taken_for_none(patch: pytest.MonkeyPatch) -> None:
    real = Leading.propose

    async def propose(self: Leading, view: View, in_sync: InSync) -> View | None:
        assert view.record is not None
        try:
            return await real(self, view, in_sync)
        except ArbiterError:  # "it has failed": forget it
            in_sync._joining.clear()
            in_sync.decided(view.record.in_sync)
            raise

    patch.setattr(Leading, "propose", propose)


@mutant
def a_master_that_nobody_follows_acknowledges_alone_6662(patch: pytest.MonkeyPatch) -> None:
    real = InSync.when_copied

    def when_copied(self: InSync, end: int, callback: DurableCallback) -> None:
        if self.by_broker():
            real(self, end, callback)
        else:
            callback(PutStatus.PUT_OK)

    patch.setattr(InSync, "when_copied", when_copied)


@mutant
def consumers_see_what_is_not_confirmed_7017(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MessageStore, "confirm", lambda self, end: None)


@mutant
def a_replica_shows_all_that_it_has_after_a_start(patch: pytest.MonkeyPatch) -> None:
    always = property(lambda self: True, lambda self, value: None)
    patch.setattr(Node, "is_settled", always, raising=False)


@mutant
def replicas_are_told_of_what_is_not_on_the_master_s_disk(patch: pytest.MonkeyPatch) -> None:
    def confirmed(self: InSync) -> int:
        return self._confirm if self.waited_for else self._log_end()

    patch.setattr(InSync, "confirmed", confirmed)


@mutant
def who_is_not_in_sync_is_elected(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Voter, "_why_not", lambda self, record, own: "")


@mutant
def a_power_cut_member_is_electable_kip_966(patch: pytest.MonkeyPatch) -> None:
    def is_electable(saved: Any, _boot_id: str, **_: bool) -> bool:
        return saved is not None and saved.get("electable") is True

    patch.setattr(electable, "is_electable", is_electable)


@mutant
def a_starting_broker_is_master_from_memory(patch: pytest.MonkeyPatch) -> None:
    real = Voter.decide

    def decide(self: Voter, view: View, own: Alive, now: float, **asked: bool) -> Step:
        record = view.record
        if record is not None and record.master == self._id and own.electable:
            return Lead(record)
        return real(self, view, own, now, **asked)

    async def become_master(self: Node, epoch: int) -> None:
        if epoch == self.roles.epoch:  # go on with it
            self.settings.broker_role = "SYNC_MASTER"
            self.is_settled = True
            self._take_messages(self.log)
            self.log.refusals.clear(1)  # type: ignore[arg-type]
            self.log.confirm(None)
        else:
            await real_become(self, epoch)

    real_become = Node.become_master
    patch.setattr(Voter, "decide", decide)
    patch.setattr(Node, "become_master", become_master)


@mutant
def a_member_may_come_back_with_less(patch: pytest.MonkeyPatch) -> None:
    real = InSync.acked

    def acked(self: InSync, link: object, who: Any, end: int) -> None:
        real(self, link, who, end)
        self._too_far.clear()

    patch.setattr(InSync, "acked", acked)
    patch.setattr(electable, "is_electable", lambda saved, _boot, **_: True)


@mutant
def who_is_near_joins_before_it_has_all(patch: pytest.MonkeyPatch) -> None:
    real = InSync.propose

    def propose(self: InSync, able: Collection[int]) -> frozenset[int] | None:
        found = real(self, able)
        joined = self.recorded | self._joining.keys()
        return found if found is not None or joined == self.recorded else joined

    patch.setattr(InSync, "propose", propose)


@mutant
def an_election_ignores_that_the_record_has_changed(patch: pytest.MonkeyPatch) -> None:
    real = Failover._elect

    async def elect(self: Failover, step: Elect) -> None:
        handle: Any = self._arbiter
        await real(self, replace(step, revision=handle._shared.revision))

    patch.setattr(Failover, "_elect", elect)


@mutant
def an_epoch_is_used_twice(patch: pytest.MonkeyPatch) -> None:
    def elected(self: Voter, epoch: int, own: Alive) -> Record:
        return Record(own.last_epoch + 1, self._id, frozenset({self._id}), self._life)

    patch.setattr(Voter, "_elected", elected)


# A seed that catches it.
SEEDS: dict[str, int] = {
    "a_shrink_counts_before_the_record_has_it_9897": 47,
    "a_growth_counts_only_once_it_is_answered_5663": 53,
    "an_unknown_outcome_is_taken_for_none": 598,
    "a_master_that_nobody_follows_acknowledges_alone_6662": 2,
    "consumers_see_what_is_not_confirmed_7017": 53,
    "a_replica_shows_all_that_it_has_after_a_start": 1,
    "replicas_are_told_of_what_is_not_on_the_master_s_disk": 183,
    "who_is_not_in_sync_is_elected": 2,
    "a_power_cut_member_is_electable_kip_966": 1094,
    "a_starting_broker_is_master_from_memory": 1,
    "a_member_may_come_back_with_less": 387,
    "who_is_near_joins_before_it_has_all": 583,
    "an_election_ignores_that_the_record_has_changed": 107,
    "an_epoch_is_used_twice": 246,
}
