"""One replica's failover, step by step, with an arbiter that does what it is told."""

from __future__ import annotations

import random
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest
from crash.simulator import SimClock

from aerobee.broker.base.refused import Refused
from aerobee.broker.daemon.failover import ASKED_S
from aerobee.broker.daemon.replica import NotStartedAgain
from aerobee.broker.ha.arbiter import Alive, Record
from aerobee.broker.ha.election import FollowMaster
from ha.simulation.failover_node import Node
from ha.simulation.sim_arbiter import SimArbiter

MASTER = Alive(1, "1", last_epoch=1, leads=1)
LED = Record(1, 1, frozenset({1, 2}), "life of 1")


class World:
    """Broker 2 is real, broker 1 is what it announces."""

    def __init__(self) -> None:
        self.clock = SimClock()
        self.arbiter = SimArbiter(random.Random(1), self.clock)
        self.arbiter.is_kind = True
        self.node = Node(2, "ASYNC_FLUSH", 8192, self.clock, self.arbiter)
        self.node.start()

    def lead(self, record: Record = LED) -> None:
        self.arbiter.change(self.arbiter.revision, record)
        self.arbiter.alive[1] = MASTER

    def look(self, times: int = 1) -> None:
        for _ in range(times):
            self.clock.ms += 250
            self.node.failover._is_due = True
            run(self.node.failover.do_step())


def run(steps: Coroutine[Any, Any, None]) -> None:
    try:
        while True:
            steps.send(None)
    except StopIteration:
        pass


@pytest.fixture
def follower() -> World:
    """In sync with a master that is there."""
    world = World()
    world.lead()
    world.node.electability.caught_up()
    world.look(2)
    assert isinstance(world.node.failover.step, FollowMaster)
    return world


def test_an_operator_makes_a_master(follower: World) -> None:
    follower.node.failover.promote(accept_loss=False)
    follower.look(4)
    assert follower.node.leads == 2


@pytest.mark.parametrize("seconds", [1, ASKED_S + 1])
def test_a_replica_that_left_the_set_while_it_was_cut_off_is_not_promoted_afterwards(
    follower: World, seconds: float
) -> None:
    """The master has acknowledged without it since."""
    node = follower.node
    node.failover.promote(accept_loss=False)
    node.handle.is_cut_off = True
    follower.look(2)
    follower.lead(replace(LED, in_sync=frozenset({1})))
    follower.clock.ms += round(seconds * 1000)
    node.handle.is_cut_off = False
    follower.look(6)
    assert follower.arbiter.record is not None and follower.arbiter.record.master == 1
    with pytest.raises(Refused, match="--accept-loss"):
        node.failover.promote(accept_loss=False)
    node.failover.promote(accept_loss=True)
    follower.look(4)
    assert node.leads == 2


def test_a_promotion_requested_long_ago_is_not_carried_out(follower: World) -> None:
    node = follower.node
    node.failover.promote(accept_loss=True)
    node.handle.is_cut_off = True
    follower.look(2)
    follower.clock.ms += round(ASKED_S * 1000)
    node.handle.is_cut_off = False
    follower.look(6)
    assert not node.leads and isinstance(node.failover.step, FollowMaster)


def test_a_master_that_does_not_start_tries_again(
    follower: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its set is itself: nobody else could be elected."""
    pauses: list[float] = []

    async def sleep(_: SimClock, seconds: float) -> None:
        pauses.append(seconds)

    async def fail(_: Node, epoch: int) -> None:
        raise NotStartedAgain(f"not in epoch {epoch}")

    monkeypatch.setattr(SimClock, "sleep", sleep)
    with monkeypatch.context() as patch:
        patch.setattr(Node, "become_master", fail)
        follower.node.failover.promote(accept_loss=False)
        follower.look(5)
    assert pauses and follower.node.leads == 0
    follower.look(2)
    assert follower.node.leads == 2


def test_an_epoch_that_a_failed_start_has_begun_is_not_begun_twice(follower: World) -> None:
    node = follower.node
    run(node.become_master(2))
    run(node.become_master(2))
    assert node.roles.epochs.last == 2 and node.roles.must_lead
    run(node.become_slave())
    assert not node.roles.must_lead


def test_without_a_record_each_tells_how_long_its_log_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was deleted, and broker 1 leads on."""
    world = World()
    world.arbiter.alive[1] = MASTER
    world.look()
    grown = replace(world.node.announcement(), log_end=777)
    monkeypatch.setattr(Node, "announcement", lambda _: grown)
    world.look(2)
    assert world.arbiter.alive[2].log_end == 777
