"""The live members of one consumer group and what they subscribe, together and apart."""

import heapq
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import structlog

from aerobee.broker.base.peer import Peer
from aerobee.broker.base.resource_names import is_retry_topic
from aerobee.broker.services.clients.heartbeats import CLUSTERING, CONSUME_PASSIVELY, ConsumerData
from aerobee.broker.services.clients.subscription import Subscription
from aerobee.protocol.json import fastjson

log = structlog.get_logger("aerobee.clients")


class Member:
    """One client of a group, by one connection."""

    __slots__ = ("client_id", "connection", "language", "seen_at", "subscriptions", "version")

    def __init__(self, connection: Peer, client_id: str, language: str, version: int) -> None:
        self.connection = connection
        self.client_id = client_id
        self.language = language
        self.version = version
        self.seen_at = 0.0  # by the clock's monotonic()
        self.subscriptions: dict[str, Subscription] = {}

    def to_json(self) -> dict[str, Any]:
        """As consumerConnection and producerConnection show it."""
        return {
            "clientAddr": self.connection.name,
            "clientId": self.client_id,
            "language": self.language,
            "version": self.version,
        }


class _Wish(NamedTuple):
    """A member's subscription, as an entry of a heap whose first entry is the newest."""

    minus_version: int
    minus_turn: int  # unique: the fields after it are not compared
    subscription: Subscription
    member: Member


class ConsumerGroup:
    """A group with at least one member online."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.consume_type = CONSUME_PASSIVELY
        self.message_model = CLUSTERING
        self.consume_from_where = "CONSUME_FROM_LAST_OFFSET"
        self.outdated = False  # a pull had newer subscriptions than the heartbeats so far
        self.members: dict[Peer, Member] = {}
        self.subscriptions: dict[str, Subscription] = {}  # of all members together
        # Thousands of members may join or leave together, and recomputing this from all of them
        # each time would take seconds. So what is derived from them is updated incrementally.
        self._client_ids: list[str] = []  # in order, one for each member
        self._list_body: bytes | None = None
        self._newest: dict[str, list[_Wish]] = {}  # topic -> a heap, with members that have gone
        self._turn = 0
        self._wanted: dict[str, Counter[object]] = {}  # topic -> what is wanted -> by how many
        self._shapes: dict[str, frozenset[object]] = {}  # of topics that members want differently
        self._subscribed = 0  # members that have sent their subscriptions

    def describe(self, data: ConsumerData) -> None:
        self.consume_type = data.consume_type
        self.message_model = data.message_model
        self.consume_from_where = data.consume_from_where

    def subscribe(self, member: Member, subscriptions: Iterable[Subscription]) -> bool:
        """Replace a member's subscriptions; True if they have changed."""
        wanted = {subscription.topic: subscription for subscription in subscriptions}
        if wanted == member.subscriptions:
            return False
        before, member.subscriptions = member.subscriptions, wanted
        self._count(before, -1)
        self._count(wanted, 1)
        self._turn += 1
        for topic, subscription in wanted.items():
            entry = _Wish(-subscription.version, -self._turn, subscription, member)
            heapq.heappush(self._newest.setdefault(topic, []), entry)
        self._merge(before.keys() | wanted.keys())
        return True

    def join(self, member: Member) -> None:
        """Add a member, in place of another with the same connection."""
        self.leave(member.connection)
        self.members[member.connection] = member
        insort(self._client_ids, member.client_id)
        self._list_body = None

    def leave(self, connection: Peer) -> Member | None:
        member = self.members.pop(connection, None)
        if member is not None:
            del self._client_ids[bisect_left(self._client_ids, member.client_id)]
            self._list_body = None
            self._count(member.subscriptions, -1)
            self._merge(member.subscriptions)
        return member

    def client_ids(self) -> list[str]:
        """Each member's client id once, in the same order for every member."""
        return list(dict.fromkeys(self._client_ids))

    def list_body(self) -> bytes:
        """The answer to GET_CONSUMER_LIST_BY_GROUP: every member asks after every change."""
        if self._list_body is None:
            self._list_body = fastjson.dumps({"consumerIdList": self.client_ids()})
        return self._list_body

    def _count(self, subscriptions: dict[str, Subscription], step: int) -> None:
        self._subscribed += step if subscriptions else 0
        for topic, subscription in subscriptions.items():
            counts = self._wanted.setdefault(topic, Counter())
            counts[subscription.selects] += step
            counts += Counter()  # drops those without a subscriber
            if not counts:
                del self._wanted[topic]

    def _merge(self, topics: Iterable[str]) -> None:
        """Derive the group's subscriptions of these topics from its members'."""
        merged = dict(self.subscriptions)
        for topic in topics:
            newest = self._newest_of(topic)
            if newest is None:
                merged.pop(topic, None)
            else:
                merged[topic] = newest
        self.subscriptions = merged
        self._find_conflicts()

    def _newest_of(self, topic: str) -> Subscription | None:
        """The one with the greatest version, the latest of equal ones; None: no member has one."""
        heap = self._newest.get(topic, [])
        if len(heap) > 2 * self._subscribed + 16:  # most are of members that left
            heap[:] = [entry for entry in heap if self._counts(topic, entry)]
            heapq.heapify(heap)
        while heap and not self._counts(topic, heap[0]):
            heapq.heappop(heap)
        if heap:
            return heap[0].subscription
        self._newest.pop(topic, None)
        return None

    def _counts(self, topic: str, entry: _Wish) -> bool:
        member = entry.member
        return (
            member.subscriptions.get(topic) is entry.subscription
            and self.members.get(member.connection) is member
        )

    def _find_conflicts(self) -> None:
        """Log when members begin to want different messages of a topic, and when they agree."""
        shapes = {topic: shape for topic in self.subscriptions if (shape := self._shape_of(topic))}
        for topic, shape in shapes.items():
            if shape != self._shapes.get(topic) and (views := self._views(topic)):
                self._warn(topic, views)
        for topic in self._shapes.keys() - shapes.keys():
            log.info("members of a group agree again", group=self.name, topic=topic)
        self._shapes = shapes

    def _shape_of(self, topic: str) -> frozenset[object]:
        """The members' different subscriptions, None for no subscription; empty if they agree."""
        counts = self._wanted[topic]
        all_subscribe = self.consume_type != CONSUME_PASSIVELY or counts.total() == self._subscribed
        if is_retry_topic(topic) or (len(counts) == 1 and all_subscribe):
            return frozenset()
        return frozenset(counts) if all_subscribe else frozenset(counts) | {None}

    @property
    def conflicts(self) -> dict[str, dict[str, Subscription | None]]:
        """topic -> client id -> what it wants, where members want different messages."""
        return {topic: views for topic in self._shapes if (views := self._views(topic))}

    def _views(self, topic: str) -> dict[str, Subscription | None]:
        """Each member's subscription to the topic, if they differ; else empty."""
        members = [member for member in self.members.values() if member.subscriptions]
        views = {member.client_id: member.subscriptions.get(topic) for member in members}
        if self.consume_type != CONSUME_PASSIVELY:  # pull clients may divide topics
            views = {client_id: view for client_id, view in views.items() if view is not None}
        return views if len(self._shape(views)) > 1 else {}

    @staticmethod
    def _shape(views: dict[str, Subscription | None]) -> set[object]:
        return {None if view is None else view.selects for view in views.values()}

    def _warn(self, topic: str, views: dict[str, Subscription | None]) -> None:
        by_shape: dict[object, str] = {}
        for client_id, view in views.items():
            shape = None if view is None else view.selects
            text = "not at all" if view is None else f"{view.expression_type} {view.expression!r}"
            by_shape.setdefault(shape, f"{client_id} subscribes {text}")
        log.warning(
            "members of a group subscribe a topic differently: messages that only some of them "
            "want are lost to the group; give all the same subscription, or each its own group",
            group=self.name,
            topic=topic,
            subscriptions=list(by_shape.values()),
        )

    def conflicts_json(self) -> dict[str, list[dict[str, Any]]]:
        """topic -> each member's subscription, for admin requests."""
        return {
            topic: [
                {"clientId": client_id}
                | (
                    {"expressionType": view.expression_type, "subString": view.expression}
                    if view
                    else {}
                )
                for client_id, view in views.items()
            ]
            for topic, views in self.conflicts.items()
        }
