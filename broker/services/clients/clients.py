"""Connected producers and consumers, by their heartbeats, and the subscriptions of each group.

A group's subscription of a topic is the newest (by the clients' own number) of its live members.
When members want different messages of a topic, some are lost to the group whatever a broker does:
that is logged once as a warning, and kept for queries.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

import structlog

from aerobee.broker.base.clock import Clock
from aerobee.broker.base.peer import Peer
from aerobee.broker.base.turns import Turns
from aerobee.broker.services.clients.consumer_group import ConsumerGroup, Member
from aerobee.broker.services.clients.heartbeats import BROADCASTING, ConsumerData
from aerobee.broker.services.clients.returning import RETURN_S, SDK_RETURN_S, Returning
from aerobee.broker.services.clients.subscription import Subscription
from aerobee.broker.services.clients.subscription_counts import SubscriptionCounts
from aerobee.broker.services.groups.table import Groups
from aerobee.broker.settings import Settings
from aerobee.protocol.json import fastjson
from aerobee.protocol.wire.codes import RequestCode
from aerobee.protocol.wire.command import Command

log = structlog.get_logger("aerobee.clients")

_SCAN_S: Final = 10.0
# A thousand members that start together would otherwise send each other a million notices.
_MEMBERS_TOLD_AT_ONCE: Final = 16
_NOTICE_DELAY_S: Final = 0.1

# Called after a group's members or subscriptions changed; with None once its last member is gone.
GroupListener = Callable[[str, ConsumerGroup | None], None]


class Clients:
    """Producers and consumers that are online."""

    def __init__(
        self,
        settings: Settings,
        groups: Groups,
        clock: Clock,
        turns: Turns | None = None,
        returning: Returning | None = None,
    ) -> None:
        self.on_group_change: list[GroupListener] = []
        self._settings = settings
        self._groups = groups
        self._clock = clock
        self._turns = Turns() if turns is None else turns
        self._returning = Returning(None) if returning is None else returning
        self._stopping = False
        self._consumers: dict[str, ConsumerGroup] = {}
        self._producers: dict[str, dict[Peer, Member]] = {}
        # client id -> its connections, the newest last -> in how many groups it produces by it
        self._producing: dict[str, dict[Peer, int]] = {}
        self._to_notify: set[str] = set()  # large groups, notified after a delay
        self._turn: dict[str, int] = {}  # the producer of each group that was asked last
        self._registered: dict[Peer, tuple[set[str], set[str]]] = {}  # consumers, producers
        self._subscribed = SubscriptionCounts(settings)

    # --- consumers

    def consumer_group(self, group: str) -> ConsumerGroup | None:
        return self._consumers.get(group)

    def consumer_groups(self) -> list[ConsumerGroup]:
        return list(self._consumers.values())

    def consumers_of(self, group: str) -> list[Member]:
        """The group's members, in the order in which they joined."""
        known = self._consumers.get(group)
        return list(known.members.values()) if known else []

    def client_ids(self, group: str) -> list[str]:
        """Each member's client id once, in the same order for every member."""
        known = self._consumers.get(group)
        if known is None:
            return []
        absent = self._returning.of(group)
        return sorted({*known.client_ids(), *absent}) if absent else known.client_ids()

    def list_body(self, group: str) -> bytes | None:
        """The answer to GET_CONSUMER_LIST_BY_GROUP; None when no member of the group is here."""
        known = self._consumers.get(group)
        if known is None:
            return None
        if self._returning.of(group):
            return fastjson.dumps({"consumerIdList": self.client_ids(group)})
        return known.list_body()

    def subscription(self, group: str, topic: str) -> Subscription | None:
        known = self._consumers.get(group)
        return known.subscriptions.get(topic) if known else None

    def knows_subscriptions(self, group: str, connection: Peer) -> bool:
        """Whether this member's subscriptions are known, and no pull had a newer version."""
        known = self._consumers.get(group)
        if known is None or known.outdated:
            return False
        member = known.members.get(connection)
        return member is not None and bool(member.subscriptions)

    def groups_subscribing(self, topic: str) -> list[str]:
        return [name for name, group in self._consumers.items() if topic in group.subscriptions]

    def register_consumer(
        self,
        connection: Peer,
        client_id: str,
        data: ConsumerData,
        *,
        language: str = "OTHER",
        version: int = 0,
        without_subscriptions: bool = False,
    ) -> bool:
        """Record a consumer's heartbeat; True if it changed members or subscriptions. Refused when
        its connection would have too many subscriptions."""
        if not without_subscriptions:
            self._subscribed.check(connection, data, self._consumers.get(data.group))
        self._groups_by(connection)[0].add(data.group)
        group = self._consumers.get(data.group)
        if group is None:
            group = self._consumers[data.group] = ConsumerGroup(data.group)
        group.describe(data)
        member = group.members.get(connection)
        joined = member is None or member.client_id != client_id
        before_count = 0 if member is None else len(member.subscriptions)
        if member is None or joined:
            member = Member(connection, client_id, language, version)
            group.join(member)
            self._returning.came(data.group, client_id)
            log.info("consumer joined", group=data.group, client_id=client_id, peer=connection.name)
        member.seen_at = self._clock.monotonic()
        before = group.subscriptions
        subscribed = False
        if not without_subscriptions:
            subscribed = group.subscribe(member, data.subscriptions)
            group.outdated = False
        self._subscribed.add(connection, len(member.subscriptions) - before_count)
        if joined or subscribed:
            topics_changed = before.keys() != group.subscriptions.keys()
            self._group_changed(data.group, notify=joined or topics_changed)
        return joined or subscribed

    def unregister_consumer(self, connection: Peer, group_name: str, client_id: str = "") -> None:
        """Remove a member; its group is notified, or removed when it was the last."""
        if self._returning.settle(group_name, client_id):
            self.notify(group_name)
        group = self._consumers.get(group_name)
        if group is None:
            return
        member = group.leave(connection)
        if member is None:
            return
        self._subscribed.add(connection, -len(member.subscriptions))
        self._groups_by(connection)[0].discard(group_name)
        log.info(
            "consumer left", group=group_name, client_id=member.client_id, peer=connection.name
        )
        if not group.members:
            del self._consumers[group_name]
        self._group_changed(group_name, notify=True)

    def _group_changed(self, name: str, *, notify: bool) -> None:
        group = self._consumers.get(name)
        if notify and group is not None and group.message_model != BROADCASTING:
            self.notify(name)
        for listener in self.on_group_change:
            listener(name, group)

    def _may_notify(self, name: str) -> bool:
        config = self._groups.find(name)
        return self._settings.notify_consumer_ids_changed_enable and (
            config is None or config.notify_consumer_ids_changed_enable
        )

    def notify(self, group: str) -> None:
        """Ask every member, the new one too, to rebalance."""
        known = self._consumers.get(group)
        if (
            known is None
            or self._stopping
            or not self._may_notify(group)
            or group in self._to_notify
        ):
            return
        if len(known.members) > _MEMBERS_TOLD_AT_ONCE:
            self._to_notify.add(group)
            asyncio.get_running_loop().call_later(_NOTICE_DELAY_S, self._notify_late, group)
        else:
            self._notify_members(group, list(known.members))

    def _notify_late(self, group: str) -> None:
        self._to_notify.discard(group)
        known = self._consumers.get(group)
        if known is not None:
            self._notify_members(group, list(known.members))

    def _notify_members(self, group: str, connections: list[Peer]) -> None:
        """A bounded number at once; the rest in the next turns of the loop."""
        for connection in connections[-_MEMBERS_TOLD_AT_ONCE:]:
            connection.send_oneway(
                Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group})
            )
        del connections[-_MEMBERS_TOLD_AT_ONCE:]
        if connections:
            self._turns.later(partial(self._notify_members, group, connections))

    # --- producers

    def register_producer(
        self,
        connection: Peer,
        client_id: str,
        group: str,
        *,
        language: str = "OTHER",
        version: int = 0,
    ) -> bool:
        """Record a producer's heartbeat; False when its connection has registered too many."""
        groups = self._groups_by(connection)[1]
        if group not in groups:
            if len(groups) >= self._settings.max_producer_groups_per_connection:
                return False
            groups.add(group)
        members = self._producers.setdefault(group, {})
        member = members.get(connection)
        if member is None or member.client_id != client_id:
            if member is not None:
                self._produces_less(member)
            member = members[connection] = Member(connection, client_id, language, version)
            connections = self._producing.setdefault(client_id, {})
            connections[connection] = connections.get(connection, 0) + 1
            log.info("producer joined", group=group, client_id=client_id, peer=connection.name)
        member.seen_at = self._clock.monotonic()
        return True

    def unregister_producer(self, connection: Peer, group: str) -> None:
        members = self._producers.get(group)
        if members is None or (member := members.pop(connection, None)) is None:
            return
        self._produces_less(member)
        self._groups_by(connection)[1].discard(group)
        log.info("producer left", group=group, client_id=member.client_id, peer=connection.name)
        if not members:
            del self._producers[group]
            self._turn.pop(group, None)

    def _produces_less(self, member: Member) -> None:
        """A producer has left one of the groups of its connection."""
        groups = self._producing[member.client_id]
        groups[member.connection] -= 1
        if not groups[member.connection]:
            del groups[member.connection]
        if not groups:
            del self._producing[member.client_id]

    def producer_groups(self) -> dict[str, list[Member]]:
        return {group: list(members.values()) for group, members in self._producers.items()}

    def producers_of(self, group: str) -> list[Member]:
        return list(self._producers.get(group, {}).values())

    def producer_channel(self, group: str) -> Peer | None:
        """One open connection of the group, in turn, to check a transaction with."""
        members = [member for member in self.producers_of(group) if not member.connection.is_closed]
        if not members:
            return None
        turn = self._turn[group] = self._turn.get(group, -1) + 1
        return members[turn % len(members)].connection

    def producer_by_client_id(self, client_id: str) -> Peer | None:
        """The newest connection of the producer that waits for a reply: an older one may be dead
        without our having noticed."""
        for connection in reversed(self._producing.get(client_id, {})):
            if not connection.is_closed:
                return connection
        return None

    # --- going

    def _groups_by(self, connection: Peer) -> tuple[set[str], set[str]]:
        """The consumer and the producer groups that this connection registered."""
        known = self._registered.get(connection)
        if known is None:
            known = self._registered[connection] = (set(), set())
            connection.on_close.append(self.connection_closed)
        return known

    def connection_closed(self, connection: Peer) -> None:
        """Remove everything that this connection has registered."""
        consumers, producers = self._registered.get(connection, ((), ()))
        for group in list(consumers):
            self.unregister_consumer(connection, group)
        for group in list(producers):
            self.unregister_producer(connection, group)
        self._registered.pop(connection, None)

    def _expiring(self) -> Iterator[None]:
        """Remove members without a recent heartbeat; close connections that have no other member.
        In pieces: a network that fails takes thousands of clients at once."""
        limit = self._clock.monotonic() - self._settings.channel_expired_timeout / 1000
        consumers = [
            (group.name, member)
            for group in self._consumers.values()
            for member in group.members.values()
            if member.seen_at < limit
        ]
        producers = [
            (name, member)
            for name, members in self._producers.items()
            for member in members.values()
            if member.seen_at < limit
        ]
        for name, member in consumers:
            group = self._consumers.get(name)
            if group is not None and self._is_silent(member, group.members, limit):
                self._log_expired(name, member)
                self.unregister_consumer(member.connection, name)
            yield
        for name, member in producers:
            if self._is_silent(member, self._producers.get(name, {}), limit):
                self._log_expired(name, member)
                self.unregister_producer(member.connection, name)
            yield
        for connection in {member.connection for _, member in (*consumers, *producers)}:
            if not any(self._registered.get(connection, ())):
                connection.close("no heartbeat")

    @staticmethod
    def _is_silent(member: Member, members: Mapping[Peer, Member], limit: float) -> bool:
        """Whether it is still a member, and no heartbeat has come since."""
        return members.get(member.connection) is member and member.seen_at < limit

    def _log_expired(self, group: str, member: Member) -> None:
        log.warning(
            "a client sent no heartbeat and is removed",
            group=group,
            client_id=member.client_id,
            peer=member.connection.name,
            after_ms=self._settings.channel_expired_timeout,
        )

    # --- start and stop

    def load(self) -> None:
        self._returning.load()

    def stop(self) -> None:
        """Before connections are closed: members must not take over the queues of closed ones."""
        self._stopping = True
        self._returning.save(
            {
                group.name: {each.client_id: each.language for each in group.members.values()}
                for group in self._consumers.values()
                if group.message_model != BROADCASTING
            }
        )

    async def run(self) -> None:
        """Remove silent clients regularly, until cancelled."""
        for pause_s, sdk_only in ((SDK_RETURN_S, True), (RETURN_S - SDK_RETURN_S, False)):
            if self._returning:
                await self._clock.sleep(pause_s)
                for group in self._returning.give_up(sdk_only=sdk_only):
                    self.notify(group)
        while True:
            await self._clock.sleep(_SCAN_S)
            for _ in self._expiring():
                if self._turns.is_over():
                    await asyncio.sleep(0)
