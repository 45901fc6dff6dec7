"""A name server in this process, and brokers that register with it by hand."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from waiting import finish

from aerobee.broker.daemon.namesrv import AppNameServer
from aerobee.broker.net.request_link import RequestLink
from aerobee.broker.services.name_service.registration_body import (
    compressed_slices,
    plain_slices,
)
from aerobee.broker.services.topics.config import TopicConfig
from aerobee.protocol.wire.codes import RequestCode
from aerobee.protocol.wire.command import Command

VERSION = {"counter": 1, "stateVersion": 0, "timestamp": 1700000000000}
TOPICS = {
    name: TopicConfig(name, 4, 3, 7 if name == "TBW102" else 6, topic_sys_flag=flag)
    for name, flag in (("TBW102", 0), ("orders", 0), ("unit", 1), ("unitSub", 3), ("sub", 2))
}
CALLS_MAX = 30_000  # of a turn; all of a registration of 20,000 topics: 700,000
Ask = Callable[..., Awaitable[Command]]


def encode_plain(version: dict[str, int], topics: dict[str, TopicConfig]) -> bytes:
    return finish(plain_slices(version, topics, -1))


def encode_compressed(version: dict[str, int], topics: dict[str, TopicConfig]) -> bytes:
    return finish(compressed_slices(version, topics, -1))


async def connect(server: AppNameServer) -> RequestLink:
    link = RequestLink(f"127.0.0.1:{server.namesrv_port}", lambda: None)
    await link.connect(5)
    return link


def identity(name: str = "broker-a", broker_id: int = 0, port: int = 10911) -> dict[str, Any]:
    return {
        "brokerName": name,
        "brokerAddr": f"10.0.0.1:{port}",
        "clusterName": "DefaultCluster",
        "brokerId": broker_id,
        "haServerAddr": f"10.0.0.1:{port + 1}",
    }


async def register(ask: Ask, body: bytes | None = None, **ext: Any) -> Command:
    fields = identity() | ext
    return await ask(RequestCode.REGISTER_BROKER, body or encode_plain(VERSION, TOPICS), **fields)


async def route_of(ask: Ask, topic: str) -> dict[str, Any]:
    answer = await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic)
    found: dict[str, Any] = json.loads(bytes(answer.body))
    return found
