"""The live members of one consumer group and what they subscribe, together and apart."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import structlog

from aerobee.broker.connection import Connection
from aerobee.broker.services.heartbeats import CLUSTERING, CONSUME_PASSIVELY, ConsumerData
from aerobee.broker.services.names_check import is_retry_topic
from aerobee.broker.services.subscriptions import Subscription

log = structlog.get_logger("aerobee.clients")


class Member:
    """One client of a group, by one connection."""

    __slots__ = ("client_id", "connection", "language", "seen_at", "subscriptions", "version")

    def __init__(self, connection: Connection, client_id: str, language: str, version: int) -> None:
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


class ConsumerGroup:
    """A group with at least one member online."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.consume_type = CONSUME_PASSIVELY
        self.message_model = CLUSTERING
        self.consume_from_where = "CONSUME_FROM_LAST_OFFSET"
        self.outdated = False  # a pull spoke of subscriptions that no heartbeat has brought yet
        self.members: dict[Connection, Member] = {}
        self.subscriptions: dict[str, Subscription] = {}  # of all members together
        self.conflicts: dict[str, dict[str, Subscription | None]] = {}  # topic -> client id -> ...
        # topic -> what is wanted of it -> by how many members: thousands may come at once, and
        # to look at each of them for each would take seconds.
        self._wanted: dict[str, Counter[object]] = {}
        self._telling = 0  # members that have told what they subscribe

    def describe(self, data: ConsumerData) -> None:
        self.consume_type = data.consume_type
        self.message_model = data.message_model
        self.consume_from_where = data.consume_from_where

    def subscribe(self, member: Member, subscriptions: Iterable[Subscription]) -> bool:
        """Take a member's whole list; True when it is not the one before."""
        wanted = {subscription.topic: subscription for subscription in subscriptions}
        if wanted == member.subscriptions:
            return False
        before, member.subscriptions = member.subscriptions, wanted
        self._count(before, -1)
        self._count(wanted, 1)
        self._merge(before, [member])
        return True

    def join(self, member: Member) -> None:
        """Take a member in, in place of another by the same connection."""
        self.leave(member.connection)
        self.members[member.connection] = member

    def leave(self, connection: Connection) -> Member | None:
        member = self.members.pop(connection, None)
        if member is not None:
            self._count(member.subscriptions, -1)
            self._merge(member.subscriptions, ())
        return member

    def _count(self, subscriptions: dict[str, Subscription], step: int) -> None:
        self._telling += step if subscriptions else 0
        for topic, subscription in subscriptions.items():
            counts = self._wanted.setdefault(topic, Counter())
            counts[subscription.selects] += step
            counts += Counter()  # drops those that nobody wants any more
            if not counts:
                del self._wanted[topic]

    def _merge(self, gone: dict[str, Subscription], changed: Iterable[Member]) -> None:
        """Derive the group's subscriptions from its members', anew when one that counted went."""
        merged = dict(self.subscriptions)
        if any(merged.get(topic) is subscription for topic, subscription in gone.items()):
            merged, changed = {}, self.members.values()
        for member in changed:
            for topic, subscription in member.subscriptions.items():
                known = merged.get(topic)
                if known is None or subscription.version >= known.version:
                    merged[topic] = subscription
        self.subscriptions = merged
        self._find_conflicts()

    def _find_conflicts(self) -> None:
        found = {topic: views for topic in self.subscriptions if (views := self._views(topic))}
        for topic, views in found.items():
            if self._shape(views) != self._shape(self.conflicts.get(topic, {})):
                self._warn(topic, views)
        for topic in self.conflicts.keys() - found.keys():
            log.info("members of a group agree again", group=self.name, topic=topic)
        self.conflicts = found

    def _views(self, topic: str) -> dict[str, Subscription | None]:
        """What each member says of the topic, when they differ; else nothing."""
        counts = self._wanted[topic]
        all_tell = self.consume_type != CONSUME_PASSIVELY or counts.total() == self._telling
        if is_retry_topic(topic) or (len(counts) == 1 and all_tell):
            return {}
        members = [member for member in self.members.values() if member.subscriptions]
        views = {member.client_id: member.subscriptions.get(topic) for member in members}
        if self.consume_type != CONSUME_PASSIVELY:  # pullers may well divide topics by hand
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
        """topic -> what each member says of it, for those who ask."""
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
