"""The in-sync set of a master: what is confirmed, who joins, who leaves."""

from __future__ import annotations

import pytest
from crash.simulator import SimClock

from aerobee.broker.ha.in_sync import NEAR_BYTES, InSync
from aerobee.broker.store.results import PutStatus

LATE_S = 3.0


class Master:
    def __init__(self, *members: int, least: int = 1) -> None:
        self.clock = SimClock()
        self.end = 1000
        self.safe_end = 1 << 62
        self.confirms: list[int | None] = []
        self.answers: dict[int, PutStatus] = {}
        self.electable = [1, 2]
        self.set = InSync(
            self.clock,
            lambda: self.end,
            lambda: min(self.end, self.safe_end),
            self.confirms.append,
            own_id=1,
            members=frozenset({1, *members}),
            late_s=LATE_S,
            timeout_ms=1000,
            least=least,
        )

    def put(self) -> int:
        self.end += 100
        end = self.end
        self.set.when_copied(end, lambda status: self.answers.__setitem__(end, status))
        return end

    def later(self, seconds: float) -> frozenset[int] | None:
        """Check as often as a master does; the last proposal."""
        found = None
        for _ in range(round(seconds / 0.25)):
            self.clock.ms += 250
            found = self.set.propose(self.electable)
        return found


@pytest.fixture
def alone() -> Master:
    return Master()


@pytest.fixture
def pair() -> Master:
    """With broker 2 in sync."""
    master = Master(2)
    master.set.acked("link", 2, 1000)
    return master


def test_a_master_alone_in_its_set_acknowledges_at_once(alone: Master) -> None:
    assert alone.answers == {alone.put(): PutStatus.PUT_OK}
    assert alone.set.confirmed() == alone.end


def test_a_put_waits_for_every_member(pair: Master) -> None:
    end = pair.put()
    assert not pair.answers and pair.set.confirmed() == 1000
    pair.set.acked("link", 2, end)
    assert pair.answers == {end: PutStatus.PUT_OK} and pair.confirms[-1] == end


def test_a_late_member_whose_link_is_silent_does_not_join_again(pair: Master) -> None:
    """Its connection stays for haHousekeepingInterval, though nothing comes over it."""
    end = pair.put()
    wanted = pair.later(LATE_S + 0.5)
    assert wanted == frozenset({1})
    pair.set.proposed(wanted)
    pair.set.decided(wanted)
    assert pair.answers == {end: PutStatus.PUT_OK}
    for _ in range(20):
        pair.later(0.25)
        pair.set.acked("link", 2, 1000)  # a heartbeat; it receives nothing
        assert pair.answers[pair.put()] is PutStatus.PUT_OK
    pair.set.acked("link", 2, end)
    pair.later(0.25)
    last = pair.put()
    assert last not in pair.answers  # it receives again, so its ack is required


def test_shrink_counts_only_after_the_record_has_it(pair: Master) -> None:
    end = pair.put()
    pair.set.left("link")
    wanted = pair.later(LATE_S + 0.5)
    assert wanted == frozenset({1})
    pair.set.proposed(wanted)
    assert not pair.answers  # the outcome is unknown
    pair.set.decided(wanted)
    assert pair.answers == {end: PutStatus.PUT_OK}


def test_growth_of_unknown_outcome_still_waits(alone: Master) -> None:
    alone.set.acked("link", 2, 1000)
    wanted = alone.later(0.25)
    assert wanted == frozenset({1, 2})
    alone.set.proposed(wanted)
    alone.set.left("link")
    end = alone.put()
    assert alone.later(LATE_S * 2) == frozenset({1})  # another change must resolve it
    assert not alone.answers
    alone.set.decided(frozenset({1, 2}))  # it was recorded after all
    assert not alone.answers
    alone.set.decided(frozenset({1}))
    assert alone.answers == {end: PutStatus.PUT_OK}


def test_a_growth_that_was_refused_is_not_waited_for_unlike_one_of_unknown_outcome(
    alone: Master,
) -> None:
    """A controller refuses members whose heartbeats it does not get."""
    alone.set.acked("link", 2, 1000)
    assert alone.later(0.25) == frozenset({1, 2})
    before = alone.set.proposed(frozenset({1, 2}))
    alone.set.left("link")
    alone.set.refused(before)
    assert alone.later(0.25) is None  # nothing left to resolve
    assert alone.answers == {} and alone.put() in alone.answers
    alone.set.proposed(frozenset({1, 2}))  # no answer
    alone.set.refused(alone.set.proposed(frozenset({1})))
    assert alone.put() not in alone.answers


def test_puts_wait_for_one_that_joins_from_before_it_is_proposed(alone: Master) -> None:
    alone.set.acked("link", 2, 1000)
    alone.put()
    alone.set.propose((2,))
    later = alone.put()
    assert later not in alone.answers
    alone.set.acked("link", 2, later)
    assert alone.answers[later] is PutStatus.PUT_OK


def test_one_joins_under_load_though_it_never_has_all(alone: Master) -> None:
    alone.set.acked("link", 2, alone.end)
    for _ in range(4):
        behind = alone.end
        alone.put()
        wanted = alone.later(0.25)
        if wanted is not None:
            break
        alone.set.acked("link", 2, behind + 100)
        alone.put()
    assert wanted == frozenset({1, 2})


def test_a_replica_that_lacks_a_part_of_what_is_confirmed_does_not_join(alone: Master) -> None:
    alone.later(0.25)
    alone.end = 1000 + 2 * NEAR_BYTES
    alone.later(0.25)
    alone.set.acked("link", 2, 1000)
    assert alone.later(1.0) is None
    alone.set.acked("link", 2, alone.end - 100)
    assert alone.later(0.5) is None  # close: from now on its ack is required
    alone.set.acked("link", 2, alone.end)
    assert alone.later(0.25) == frozenset({1, 2})


def test_a_replica_that_has_caught_up_joins_though_much_is_in_flight(alone: Master) -> None:
    """At 100 MB/s there is always more than a MiB on the wire."""
    for _ in range(6):
        alone.set.acked("link", 2, alone.end)
        alone.end += 8 * NEAR_BYTES
        wanted = alone.later(0.25)
    assert wanted == frozenset({1, 2})


def test_one_that_was_to_join_and_does_not_come_nearer_is_not_waited_for(alone: Master) -> None:
    alone.end += 1000
    alone.set.acked("link", 2, alone.end - 500)
    alone.later(0.25)
    end = alone.put()
    assert not alone.answers
    alone.later(LATE_S + 0.5)
    assert alone.answers == {end: PutStatus.PUT_OK}


def test_a_log_before_this_epoch_does_not_join(alone: Master) -> None:
    alone.set.acked("link", 2, 900)
    assert alone.later(1.0) is None and not alone.set.waited_for


def test_a_member_that_reconnects_below_confirm_is_taken_out_first(pair: Master) -> None:
    pair.set.acked("link", 2, pair.put())
    pair.set.left("link")
    pair.set.acked("another", 2, 500)
    assert pair.later(0.25) == frozenset({1})
    pair.set.acked("another", 2, pair.end)
    assert pair.later(0.25) == frozenset({1})  # it must leave before it may rejoin


def test_a_slow_member_leaves_the_set(pair: Master) -> None:
    for _ in range(20):
        pair.put()
        wanted = pair.later(0.25)
    assert wanted == frozenset({1})


def test_an_idle_member_stays(pair: Master) -> None:
    assert pair.later(10 * LATE_S) is None and pair.set.all_follow()


def test_a_member_counts_by_its_newest_connection(pair: Master) -> None:
    end = pair.put()
    pair.set.acked("another", 2, 1000)
    pair.set.left("link")
    assert not pair.answers
    pair.set.acked("another", 2, end)
    assert pair.answers == {end: PutStatus.PUT_OK}


def test_a_replica_that_is_not_electable_does_not_join(alone: Master) -> None:
    alone.electable = [1]
    alone.set.acked("link", 2, 1000)
    assert alone.later(1.0) is None
    assert alone.answers == {alone.put(): PutStatus.PUT_OK}


def test_a_slave_without_an_id_is_no_member(alone: Master) -> None:
    alone.set.acked("link", "10.0.0.7", alone.end)
    assert alone.later(1.0) is None


def test_not_all_follow_when_one_is_gone_or_late(pair: Master) -> None:
    pair.put()
    pair.later(LATE_S + 0.5)
    assert not pair.set.all_follow()


def test_what_our_own_disk_may_lose_is_not_sent_to_replicas(pair: Master) -> None:
    pair.safe_end = 1000
    pair.set.acked("link", 2, pair.put())
    assert pair.set.confirmed() == 1000


def test_fewer_members_than_are_needed_acknowledge_nothing() -> None:
    master = Master(least=2)
    first = master.put()
    assert not master.answers
    master.set.acked("link", 2, first)
    master.later(0.25)
    assert not master.answers  # joining, not recorded yet
    master.set.decided(frozenset({1, 2}))
    assert master.answers == {first: PutStatus.PUT_OK}


def test_a_put_that_waits_while_the_set_becomes_too_small_times_out() -> None:
    master = Master(2, least=2)
    master.set.acked("link", 2, 1000)
    end = master.put()
    master.set.decided(frozenset({1}))
    assert not master.answers
    master.clock.ms += 1001
    master.set.waiters.expire()
    assert master.answers == {end: PutStatus.FLUSH_SLAVE_TIMEOUT}


def test_confirm_never_goes_back(pair: Master) -> None:
    end = pair.put()
    pair.set.acked("link", 2, end)
    pair.set.left("link")
    pair.set.acked("another", 2, 200)
    assert pair.set.confirmed() == end
