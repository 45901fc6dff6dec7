"""Who is elected, and when: the decisions without an arbiter."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from aerobee.broker.ha.arbiter import Alive, Record, View
from aerobee.broker.ha.election import (
    BEGIN_S,
    PATIENCE_S,
    Elect,
    FollowMaster,
    Lead,
    Stand,
    Step,
    Voter,
    Wait,
)

GIB = 1 << 30


def record(epoch: int = 5, master: int = 1, members: tuple[int, ...] = (1, 2, 3)) -> Record:
    return Record(epoch, master, frozenset(members), f"life of {master}")


def view(of: Record | None, *alive: Alive, revision: int = 9) -> View:
    return View(of, revision if of is not None else 0, {each.broker_id: each for each in alive})


MASTER = Alive(1, "one:1", "one:2", last_epoch=5, log_end=900, leads=5)
TWO = Alive(2, last_epoch=5, log_end=800)
THREE = Alive(3, last_epoch=5, log_end=850)


def test_a_master_that_is_there_is_followed() -> None:
    assert Voter(2, "x").decide(view(record(), MASTER, TWO), TWO, 0.0) == FollowMaster(MASTER, 5)


def test_a_starting_broker_is_never_master_from_memory() -> None:
    """Its stale announcement may still exist."""
    step = Voter(1, "a new life").decide(view(record(), MASTER, TWO), replace(MASTER, leads=0), 0.0)
    assert step == Stand(5)


def test_one_that_has_just_won_is_not_taken_for_gone() -> None:
    winner = replace(THREE, stands=5)
    found = view(record(6, 3, (3,)), winner, TWO)
    assert Voter(2, "x").decide(found, TWO, 0.0) == FollowMaster(winner, 6)


def test_members_stand_once_the_master_is_gone() -> None:
    assert Voter(2, "x").decide(view(record(), TWO, THREE), TWO, 0.0) == Stand(5)


def test_the_longest_log_wins_at_once_when_all_stand() -> None:
    two, three = replace(TWO, stands=5), replace(THREE, stands=5)
    gone = view(record(), two, three)
    assert isinstance(Voter(2, "x").decide(gone, two, 0.0), Wait)
    assert Voter(3, "y").decide(gone, three, 0.0) == Elect(
        Record(6, 3, frozenset({3}), "y"), revision=9
    )


def test_the_longest_log_wins_beyond_2_gib() -> None:
    two = replace(TWO, stands=5, log_end=3 * GIB)
    three = replace(THREE, stands=5, log_end=GIB)
    assert isinstance(Voter(2, "x").decide(view(record(), two, three), two, 0.0), Elect)


def test_a_newer_epoch_wins_over_a_longer_log() -> None:
    two, three = replace(TWO, stands=5), replace(THREE, stands=5, last_epoch=4)
    assert isinstance(Voter(2, "x").decide(view(record(), two, three), two, 0.0), Elect)


def test_a_member_that_is_silent_is_waited_for_and_then_not() -> None:
    three = replace(THREE, stands=5)
    voter = Voter(3, "x")
    assert isinstance(voter.decide(view(record(), three), three, 10.0), Wait)
    assert isinstance(voter.decide(view(record(), three), three, 10.0 + PATIENCE_S), Elect)


def test_patience_begins_again_with_another_revision() -> None:
    three = replace(THREE, stands=5)
    voter = Voter(3, "x")
    voter.decide(view(record(), three), three, 10.0)
    later = view(record(), three, revision=10)
    assert isinstance(voter.decide(later, three, 10.0 + PATIENCE_S), Wait)


def test_a_replica_outside_the_recorded_set_is_not_elected() -> None:
    alone = view(record(members=(1,)), TWO)
    step = Voter(2, "x").decide(alone, TWO, 100.0)
    assert isinstance(step, Wait) and "not in sync" in step.reason and "1" in step.reason


def test_power_cut_member_is_not_electable() -> None:
    two = replace(TWO, electable=False)
    step = Voter(2, "x").decide(view(record(), two), two, 100.0)
    assert isinstance(step, Wait) and "lost power" in step.reason


def test_one_that_is_not_electable_keeps_nobody_from_winning() -> None:
    two = replace(TWO, stands=5)
    three = replace(THREE, stands=5, electable=False)
    assert isinstance(Voter(2, "x").decide(view(record(), two, three), two, 0.0), Elect)


def test_last_one_standing_waits_for_a_person() -> None:
    two = replace(TWO, electable=False)
    voter, gone = Voter(2, "x"), view(record(members=(1,)), two)
    assert isinstance(voter.decide(gone, two, 100.0), Wait)
    assert isinstance(voter.decide(gone, two, 100.0, asked=True), Wait)
    assert voter.decide(gone, two, 100.0, asked=True, accept_loss=True) == Stand(5)
    two = replace(two, stands=5)
    assert voter.decide(gone, two, 100.0, asked=True, accept_loss=True) == Elect(
        Record(6, 2, frozenset({2}), "x"), revision=9
    )


def test_a_person_may_replace_a_master_that_is_there() -> None:
    two = replace(TWO, stands=5)
    step = Voter(2, "x").decide(view(record(), MASTER, two), two, 0.0, asked=True)
    assert isinstance(step, Elect) and step.record.epoch == 6


def test_a_replica_that_left_the_set_since_an_operator_asked_keeps_following() -> None:
    two = replace(TWO, stands=5)
    left = view(record(members=(1, 3)), MASTER, two)
    assert Voter(2, "x").decide(left, two, 0.0, asked=True) == FollowMaster(MASTER, 5)


def test_the_holder_of_the_record_leads() -> None:
    mine = replace(record(), holder="x")
    assert Voter(1, "x").decide(view(mine, TWO), MASTER, 0.0) == Lead(mine)


def test_the_first_record_is_made_by_the_longest_log_after_a_while() -> None:
    voter = Voter(3, "x")
    assert isinstance(voter.decide(view(None, TWO, THREE), THREE, 5.0), Wait)
    step = voter.decide(view(None, TWO, THREE), THREE, 5.0 + BEGIN_S)
    assert step == Elect(Record(6, 3, frozenset({3}), "x"), revision=0)
    other = Voter(2, "y")
    other.decide(view(None, TWO, THREE), TWO, 5.0)
    assert isinstance(other.decide(view(None, TWO, THREE), TWO, 50.0), Wait)


def test_a_slave_by_its_settings_makes_no_first_record() -> None:
    two = replace(TWO, may_begin=False)
    voter = Voter(2, "x")
    voter.decide(view(None, two), two, 5.0)
    assert isinstance(voter.decide(view(None, two), two, 50.0), Wait)


def after_a_while(own: Alive, *others: Alive) -> Step:
    """Without a record."""
    voter, seen = Voter(own.broker_id, "x"), view(None, own, *others)
    voter.decide(seen, own, 5.0)
    return voter.decide(seen, own, 5.0 + BEGIN_S)


def test_a_record_that_was_deleted_is_recreated_by_the_one_that_leads() -> None:
    ahead = replace(TWO, log_end=MASTER.log_end + 100)  # as it announced once
    step = after_a_while(ahead, MASTER)
    assert isinstance(step, Wait) and "broker 1 leads" in step.reason
    assert isinstance(after_a_while(MASTER, ahead), Elect)
    assert isinstance(after_a_while(replace(MASTER, may_begin=False), ahead), Elect)
    newer = replace(THREE, leads=6)
    assert isinstance(after_a_while(MASTER, newer), Wait)
    assert isinstance(after_a_while(newer, MASTER), Elect)


def test_without_a_record_one_that_may_lack_messages_waits_for_a_person() -> None:
    two = replace(TWO, electable=False)
    step = after_a_while(two)
    assert isinstance(step, Wait) and "--accept-loss" in step.reason
    assert isinstance(Voter(2, "x").decide(view(None, two), two, 0.0, asked=True), Wait)
    lossy = Voter(2, "x").decide(view(None, two), two, 0.0, asked=True, accept_loss=True)
    assert lossy == Stand(0)
    new = Alive(2, electable=False)
    assert isinstance(after_a_while(new), Elect)


@pytest.mark.parametrize(
    "odd", [{"broker_id": "1"}, {"log_end": 1.5}, {"leads": None}, {"electable": 1}, {"address": 7}]
)
def test_an_announcement_with_other_types_is_none(odd: dict[str, object]) -> None:
    content = json.loads(MASTER.encode()) | odd
    with pytest.raises(ValueError, match="no announcement"):
        Alive.decode(json.dumps(content).encode())


def test_records_and_announcements_survive_their_bytes() -> None:
    assert Record.decode(record().encode()) == record()
    assert Alive.decode(MASTER.encode()) == MASTER
