"""Administration of topics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aerobee.client.admin.cluster import ClusterAdmin
from aerobee.client.admin.details import Details
from aerobee.client.admin.types import QueueStats
from aerobee.client.core import Core
from aerobee.client.transport.routes import AUTO_CREATE_QUEUES, PERM_READ, PERM_WRITE
from aerobee.protocol.json import fastjson
from aerobee.protocol.names import TEMPLATE_TOPIC, is_users_topic
from aerobee.protocol.wire.codes import RequestCode


class TopicAdmin(ClusterAdmin):
    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self.details = Details(core)

    async def topics(self, *, system: bool = False) -> list[str]:
        """The topics; with `system` those of brokers, retries and dead letters too."""
        answer = await self._ask_name_server(
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, "the list of topics"
        )
        names: Iterable[str] = fastjson.loads(answer.body).get("topicList") or ()
        if system:
            return sorted(names)
        brokers = await self.brokers()
        hidden = {row.name for row in brokers} | {row.cluster for row in brokers}
        return sorted(name for name in names if is_users_topic(name, hidden))

    async def create_topic(
        self,
        name: str,
        *,
        queues: int = AUTO_CREATE_QUEUES,
        readable: bool = True,
        writable: bool = True,
        order: bool = False,
        attributes: dict[str, str] | None = None,
    ) -> None:
        """Create the topic, or change it, on every master."""
        config = {
            "readQueueNums": queues,
            "writeQueueNums": queues,
            "perm": (PERM_READ if readable else 0) | (PERM_WRITE if writable else 0),
            "order": order,
        }
        for broker in await self._masters():
            await self._put_topic(broker.address, name, config, attributes or {})

    async def update_topic(
        self,
        name: str,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        readable: bool | None = None,
        writable: bool | None = None,
        attributes: dict[str, str] | None = None,
    ) -> None:
        """Change the topic on the brokers that have it; None leaves a setting as it is. Messages in
        queues beyond `read_queues` stay stored, unreadable until there are as many again."""
        for broker, config in (await self.topic_config(name)).items():
            for key, count in (("readQueueNums", read_queues), ("writeQueueNums", write_queues)):
                config[key] = config[key] if count is None else count
            for bit, allowed in ((PERM_READ, readable), (PERM_WRITE, writable)):
                if allowed is not None:
                    config["perm"] = config["perm"] & ~bit | (bit if allowed else 0)
            address = self._core.routes.address(broker)
            await self._put_topic(address, name, config, attributes or {})

    async def _put_topic(
        self, address: str, name: str, config: dict[str, Any], attributes: dict[str, str]
    ) -> None:
        ext = {
            "topic": name,
            "defaultTopic": TEMPLATE_TOPIC,
            "readQueueNums": str(config["readQueueNums"]),
            "writeQueueNums": str(config["writeQueueNums"]),
            "perm": str(config["perm"]),
            "topicFilterType": config.get("topicFilterType", "SINGLE_TAG"),
            "topicSysFlag": str(config.get("topicSysFlag", 0)),
            "order": "true" if config["order"] else "false",
        }
        if attributes:
            ext["attributes"] = ",".join(f"+{key}={value}" for key, value in attributes.items())
        what = f"the creation or change of topic {name!r}"
        await self._ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, what, ext)

    async def delete_topic(self, name: str) -> None:
        """Delete the topic with its queues and offsets, on every broker."""
        what = f"the deletion of topic {name!r}"
        ext = {"topic": name}
        for broker in await self._masters():
            await self._ask(broker.address, RequestCode.DELETE_TOPIC_IN_BROKER, what, dict(ext))
        for server in self._core.routes.name_servers:
            await self._ask(server, RequestCode.DELETE_TOPIC_IN_NAMESRV, what, dict(ext))

    async def topic_config(self, name: str) -> dict[str, Any]:
        """The topic's settings by broker."""
        found: dict[str, Any] = {}
        route = await self._core.routes.refresh(name)
        for part in route.parts:
            answer = await self._ask(
                self._core.routes.address(part.broker),
                RequestCode.GET_TOPIC_CONFIG,
                f"the settings of topic {name!r}",
                {"topic": name, "lo": "true"},
            )
            found[part.broker] = fastjson.loads(answer.body)
        return found

    async def topic_stats(self, name: str) -> list[QueueStats]:
        """The queues of a topic and their ends."""
        route = await self._core.routes.refresh(name)
        found: list[QueueStats] = []
        for part in route.parts:
            found += await self.details.topic_stats(self._core.routes.address(part.broker), name)
        return sorted(found, key=lambda row: row.queue)
