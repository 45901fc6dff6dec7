"""How many subscriptions each connection has registered, for all its groups, and the limit."""

from aerobee.broker.base.peer import Peer
from aerobee.broker.base.refused import Refused
from aerobee.broker.services.clients.consumer_group import ConsumerGroup
from aerobee.broker.services.clients.heartbeats import ConsumerData
from aerobee.broker.settings import Settings
from aerobee.protocol.wire.codes import ResponseCode


class SubscriptionCounts:
    """Counted as they come and go: thousands of groups may share a connection."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._counts: dict[Peer, int] = {}

    def check(self, connection: Peer, data: ConsumerData, group: ConsumerGroup | None) -> None:
        """Refused when the connection would have too many with this entry of its heartbeat."""
        member = None if group is None else group.members.get(connection)
        others = self._counts.get(connection, 0)
        others -= 0 if member is None else len(member.subscriptions)
        most = self._settings.max_subscriptions_per_connection
        if others + len(data.subscriptions) > most:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"group {data.group} is not registered with {len(data.subscriptions)} "
                f"subscriptions: other groups of this connection have {others}, and "
                f"maxSubscriptionsPerConnection is {most}",
            )

    def add(self, connection: Peer, count: int) -> None:
        count += self._counts.get(connection, 0)
        if count:
            self._counts[connection] = count
        else:
            self._counts.pop(connection, None)
