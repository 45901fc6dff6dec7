"""The name service as its handlers see it: routes, key-value table, and which client sees what."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from aerobee.broker.base import resource_names
from aerobee.broker.base.clock import Clock
from aerobee.broker.base.peer import Peer
from aerobee.broker.base.turns import InOrder
from aerobee.broker.services.config_files.classes import config_path
from aerobee.broker.services.name_service.kv_config import ORDER_TOPIC_CONFIG, KvConfig
from aerobee.broker.services.name_service.route_data import QueueData
from aerobee.broker.services.name_service.routes import Routes
from aerobee.broker.services.topics.config import READ, WRITE
from aerobee.broker.settings import Settings
from aerobee.protocol.json import fastjson
from aerobee.protocol.names import RETRY_PREFIX

STANDARD_JSON_VERSION: Final = 401  # clients from 4.9.4 on read quoted keys


@dataclass
class NameService:
    """Everything that requests to a name server need."""

    settings: Settings
    clock: Clock
    routes: Routes
    kv: KvConfig
    address_for: Callable[[Peer], str]  # the local broker's address for this client
    ha_address_of: Callable[[str], str] = str  # its replication address, given that one
    registrations: InOrder = field(default_factory=InOrder)  # and removals of other brokers

    async def watch(self) -> None:
        """Drop brokers that went silent; ends by cancellation."""
        while True:
            await self.clock.sleep(self.settings.scan_not_active_broker_interval / 1000)
            self.routes.drop_silent()

    def route(self, topic: str, local_address: str) -> dict[str, Any] | None:
        """TopicRouteData, or None for a topic that no broker has."""
        queues = self.routes.queues(topic) or self._retry_queues_to_come(topic)
        brokers = []
        for data in queues:
            broker = self.routes.broker(data.broker_name, local_address)
            if broker is not None:
                brokers.append(broker)
        if not brokers:
            return None
        addresses = {address for broker in brokers for address in broker.addresses.values()}
        route = {
            "brokerDatas": [broker.to_json() for broker in brokers],
            "filterServerTable": {
                address: servers
                for address, servers in self.routes.filter_servers().items()
                if address in addresses
            },
            "queueDatas": [data.to_json() for data in queues],
        }
        if self.settings.order_message_enable:
            order = self.kv.get(ORDER_TOPIC_CONFIG, topic)
            if order is not None:
                route["orderTopicConf"] = order
        return route

    def _retry_queues_to_come(self, topic: str) -> list[QueueData]:
        """The queue that the retry topic of a new group will have.

        Consumers ask for it just before the first heartbeat, which makes the topic, and then not
        for half a minute: after "does not exist" their first retry would come that late.
        """
        local = self.routes.local
        if (
            local is None
            or not topic.startswith(RETRY_PREFIX)
            or not self.settings.auto_create_subscription_group
            or resource_names.group_problem(topic.removeprefix(RETRY_PREFIX))
        ):
            return []
        return [QueueData(local.name, 1, 1, READ | WRITE)]


def encode_route(route: dict[str, Any], *, standard: bool) -> bytes:
    """Never a blank: Go clients cut the text at commas and colons.

    Broker ids are quoted only for clients that ask for standard JSON, or are new enough."""
    if standard:
        return json.dumps(route, sort_keys=True, separators=(",", ":")).encode()
    return fastjson.dumps(route)


def kv_config_path(settings: Settings) -> str:
    if settings.kv_config_path:
        return os.path.abspath(os.path.expanduser(settings.kv_config_path))
    return config_path(os.path.join(settings.store_path_root_dir, "config"), "kvConfig.json")
