"""A group's members and what they want together, however many come and go."""

import random
from typing import Any, cast

from loop_turns import calls_of

from aerobee.broker.net.connection import Connection
from aerobee.broker.services.clients.consumer_group import ConsumerGroup, Member
from aerobee.broker.services.clients.subscription import Subscription, build_subscription


class Peer:
    """All that a group asks of a connection: to be one."""


def member_of(group: ConsumerGroup, client_id: str) -> Member:
    member = Member(cast(Connection, Peer()), client_id, "JAVA", 513)
    group.join(member)
    return member


def wants(expressions: dict[str, str], version: int = 1) -> list[Subscription]:
    return [build_subscription(topic, text, version=version) for topic, text in expressions.items()]


def test_a_member_that_comes_costs_no_more_in_a_large_group() -> None:
    def come_and_go(count: int) -> None:
        group = ConsumerGroup("g")
        members = [member_of(group, f"client-{n}") for n in range(count)]
        for n, member in enumerate(members):
            group.subscribe(member, wants({"T1": "a || b", "T2": "*"}, n))
        assert group.subscriptions["T1"].version == count - 1 and not group.conflicts
        for member in members:
            group.leave(member.connection)
        assert not group.subscriptions

    assert calls_of(lambda: come_and_go(800)) < 6 * calls_of(lambda: come_and_go(200))


def test_a_member_that_leaves_costs_no_more_in_a_large_group() -> None:
    """The newest of the members that stay is found without a look at each of them."""

    def leave_all(count: int) -> None:
        group = ConsumerGroup("g")
        members = [member_of(group, f"client-{n}") for n in range(count)]
        for member in members:
            group.subscribe(member, wants({"T1": "*"}))
        for member in reversed(members):
            group.leave(member.connection)
        assert not group.subscriptions and not group.client_ids()

    assert calls_of(lambda: leave_all(800)) < 6 * calls_of(lambda: leave_all(200))


def test_what_members_want_together_is_what_they_want_one_by_one() -> None:
    for seed in range(20):
        check_wants(random.Random(seed))


def check_wants(chance: random.Random) -> None:
    group = ConsumerGroup("g")
    for step in range(60):
        do = chance.random()
        if do < 0.3 or not group.members:
            member_of(group, f"client-{chance.randrange(5)}")
        elif do < 0.8:
            topics = chance.sample(["T1", "T2", "T3", "%RETRY%g"], chance.randrange(4))
            expressions = {topic: chance.choice(["*", "*", "a", "b || a"]) for topic in topics}
            group.subscribe(chance.choice([*group.members.values()]), wants(expressions, step))
        else:
            group.leave(chance.choice([*group.members]))
        assert seen(group) == one_by_one(group)


def seen(group: ConsumerGroup) -> tuple[Any, Any]:
    return group.subscriptions, group.conflicts


def one_by_one(group: ConsumerGroup) -> tuple[Any, Any]:
    """The same, computed from all members."""
    telling = [member for member in group.members.values() if member.subscriptions]
    newest: dict[str, Subscription] = {}
    for member in telling:
        for topic, subscription in member.subscriptions.items():
            if topic not in newest or subscription.version >= newest[topic].version:
                newest[topic] = subscription
    conflicts = {}
    for topic in newest:
        views = {member.client_id: member.subscriptions.get(topic) for member in telling}
        shapes = {view and view.selects for view in views.values()}
        if len(shapes) > 1 and topic != "%RETRY%g":
            conflicts[topic] = views
    return newest, conflicts
