"""Administration from Python: topics, groups, lag, resets, brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, Literal

from aerobee.client.admin.details import Details
from aerobee.client.admin.types import Broker, Member, QueueLag, QueueStats, moment_of
from aerobee.client.admin.users import Users
from aerobee.client.core import Core
from aerobee.client.errors import Misuse, NotFound, refusal
from aerobee.client.message import timestamp_ms
from aerobee.client.transport.routes import AUTO_CREATE_QUEUES, PERM_READ, PERM_WRITE
from aerobee.protocol.json import fastjson
from aerobee.protocol.json.fastjson import MessageQueue
from aerobee.protocol.names import (
    TEMPLATE_TOPIC,
    is_system_group,
    is_users_topic,
)
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.replica_codes import PROMOTE

LIST_TIMERS: Final = 20110  # an Aerobee extension
Moment = Literal["first", "last"] | datetime | float


class Admin:
    """`aerobee topic`, `group` and `cluster` as an API."""

    def __init__(self, core: Core) -> None:
        self.users = Users(core)
        self.details = Details(core)
        self._core = core

    # -- the cluster

    async def brokers(self) -> list[Broker]:
        """Every broker that the name servers know."""
        answer = await self._ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO, "the cluster")
        table = fastjson.loads(answer.body).get("brokerAddrTable") or {}
        return sorted(
            (
                Broker(name, row.get("cluster", ""), int(number), address)
                for name, row in table.items()
                for number, address in row["brokerAddrs"].items()
            ),
            key=lambda broker: (broker.name, broker.number),
        )

    async def _masters(self) -> list[Broker]:
        masters = [broker for broker in await self.brokers() if broker.number == 0]
        if not masters:
            raise NotFound("the name servers know no broker", hint="is one registered there?")
        return masters

    async def runtime(self, address: str) -> dict[str, str]:
        """A broker's runtime state, by its own keys."""
        answer = await self._ask(address, RequestCode.GET_BROKER_RUNTIME_INFO, "the runtime info")
        return dict(fastjson.loads(answer.body).get("table") or {})

    async def settings(self, address: str) -> dict[str, str]:
        """Every setting of a broker."""
        answer = await self._ask(address, RequestCode.GET_BROKER_CONFIG, "the settings")
        lines = str(bytes(answer.body), "utf-8").splitlines()
        pairs = (line.partition("=") for line in lines if "=" in line)
        return {name.strip(): value.strip() for name, _, value in pairs}

    async def change_settings(self, address: str, changes: dict[str, str]) -> None:
        """Change settings of a running broker; it refuses those that need a restart."""
        body = "".join(f"{name}={value}\n" for name, value in changes.items()).encode()
        await self._ask(
            address,
            RequestCode.UPDATE_BROKER_CONFIG,
            f"the change of {', '.join(changes)}",
            {},
            body,
        )

    async def replication(self, address: str) -> dict[str, Any]:
        """A master's slaves, or a slave's master, by the broker's own keys."""
        answer = await self._ask(address, RequestCode.GET_BROKER_HA_STATUS, "the replicas")
        return dict(fastjson.loads(answer.body))

    async def promote(
        self, address: str, *, role: str = "", force: bool = False, accept_loss: bool = False
    ) -> int:
        """Promote a slave to master; returns the new epoch. `force`: even if its master is up.
        `accept_loss`: with etcd or a controller, even if it may lack acknowledged messages."""
        ext = {"brokerRole": role, "force": "true" if force else "false"}
        ext["acceptLoss"] = "true" if accept_loss else "false"
        answer = await self._ask(address, PROMOTE, f"the promotion of {address}", ext)
        return int(answer.ext["epoch"])

    # -- topics

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

    # -- groups

    async def groups(self, *, system: bool = False) -> list[str]:
        """The consumer groups that any broker knows; with `system` those of tools too."""
        found: set[str] = set()
        for broker in await self._masters():
            answer = await self._ask(
                broker.address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "the list of groups"
            )
            found.update(fastjson.loads(answer.body).get("subscriptionGroupTable") or ())
        return sorted(name for name in found if system or not is_system_group(name))

    async def group_config(self, group: str) -> dict[str, Any]:
        """The group's settings by broker."""
        found = {}
        for broker in await self._masters():
            answer = await self._ask(
                broker.address,
                RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
                f"the settings of group {group!r}",
            )
            table = fastjson.loads(answer.body).get("subscriptionGroupTable") or {}
            if group in table:
                found[broker.name] = table[group]
        if not found:
            raise NotFound(f"no broker knows the group {group!r}")
        return found

    async def create_group(
        self,
        group: str,
        *,
        max_retries: int = 16,
        consume_enabled: bool = True,
        broadcast_enabled: bool = True,
    ) -> None:
        """Create the group, or change it, on every master."""
        config = {
            "groupName": group,
            "consumeEnable": consume_enabled,
            "consumeBroadcastEnable": broadcast_enabled,
            "consumeFromMinEnable": True,
            "retryMaxTimes": max_retries,
            "retryQueueNums": 1,
            "brokerId": 0,
            "whichBrokerWhenConsumeSlowly": 1,
            "notifyConsumerIdsChangedEnable": True,
        }
        for broker in await self._masters():
            await self._put_group(broker.address, config)

    async def update_group(
        self,
        group: str,
        *,
        max_retries: int | None = None,
        consume_enabled: bool | None = None,
        broadcast_enabled: bool | None = None,
    ) -> None:
        """Change the group on the brokers that have it; None leaves a setting as it is."""
        changes = {
            "retryMaxTimes": max_retries,
            "consumeEnable": consume_enabled,
            "consumeBroadcastEnable": broadcast_enabled,
        }
        named = {key: value for key, value in changes.items() if value is not None}
        configs = await self.group_config(group)
        for broker in await self._masters():
            if broker.name in configs:
                config = configs[broker.name] | named
                config.pop("attributes", None)  # a request lists only those that change
                await self._put_group(broker.address, config)

    async def _put_group(self, address: str, config: dict[str, Any]) -> None:
        what = f"the creation or change of group {config['groupName']!r}"
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        await self._ask(address, code, what, {}, fastjson.dumps(config))

    async def delete_group(self, group: str) -> None:
        """Delete the group and its offsets."""
        ext = {"groupName": group, "cleanOffset": "true", "removeOffset": "true"}
        for broker in await self._masters():
            await self._ask(
                broker.address,
                RequestCode.DELETE_SUBSCRIPTIONGROUP,
                f"the deletion of group {group!r}",
                dict(ext),
            )

    async def members(self, group: str) -> list[Member]:
        """The clients that consume in the group now."""
        found = {
            row["clientId"]: Member(
                row["clientId"], row["clientAddr"], str(row["language"]), int(row["version"])
            )
            for body in await self._connections(group)
            for row in body.get("connectionSet") or ()
        }
        return sorted(found.values(), key=lambda member: member.client_id)

    async def conflicts(self, group: str) -> dict[str, list[dict[str, str]]]:
        """Topics that members of the group subscribe differently, which loses messages."""
        found: dict[str, list[dict[str, str]]] = {}
        for body in await self._connections(group):
            found |= body.get("conflicts") or {}
        return found

    async def is_broadcasting(self, group: str) -> bool:
        """Whether its members broadcast: then brokers do not keep the group's progress."""
        bodies = await self._connections(group)
        return any(body.get("messageModel") == "BROADCASTING" for body in bodies)

    async def _connections(self, group: str) -> list[dict[str, Any]]:
        """Each master's view of the group's members; empty where none is online."""
        found = []
        for broker in await self._masters():
            command = Command(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group})
            answer = await self._core.remoting.request(broker.address, command)
            if answer.code in (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR):
                continue
            if answer.code != ResponseCode.SUCCESS:
                raise refusal(answer.code, answer.remark, what=f"the members of {group!r}")
            found.append(fastjson.loads(answer.body))
        return found

    async def timers(self, topic: str | None = None, *, limit: int = 100) -> list[dict[str, Any]]:
        """Pending timers and delayed messages, next first; Aerobee's brokers only."""
        found: list[dict[str, Any]] = []
        for broker in await self._masters():
            cursor: str | None = ""
            enough = len(found) + limit
            while cursor is not None and len(found) < enough:
                ext = {"maxNum": str(min(limit, 1000))}
                ext |= {"topic": topic} if topic else {}
                ext |= {"cursor": cursor} if cursor else {}
                answer = await self._ask(broker.address, LIST_TIMERS, "the list of timers", ext)
                found += fastjson.loads(answer.body)["timers"]
                cursor = answer.ext.get("nextCursor")
        return sorted(found, key=lambda row: int(row["deliverTimestamp"]))[:limit]

    async def lag(self, group: str, topic: str | None = None) -> list[QueueLag]:
        """How far the group is behind, by queue."""
        ext = {"consumerGroup": group} | ({"topic": topic} if topic else {})
        found = []
        for broker in await self._masters():
            answer = await self._core.remoting.request(
                broker.address, Command(RequestCode.GET_CONSUME_STATS, dict(ext))
            )
            if answer.code != ResponseCode.SUCCESS:
                raise refusal(answer.code, answer.remark, what=f"the lag of group {group!r}")
            table = fastjson.loads(answer.body).get("offsetTable") or {}
            found += [
                QueueLag(
                    queue,
                    int(row["brokerOffset"]),
                    int(row["consumerOffset"]),
                    moment_of(row.get("lastTimestamp", 0)),
                )
                for queue, row in table.items()
            ]
        return sorted(found, key=lambda row: row.queue)

    async def reset(
        self, group: str, topic: str, to: Moment, *, queue_id: int | None = None
    ) -> dict[MessageQueue, int]:
        """Move the group on the topic to the first, the last, or the first message since a time.

        Returns the new offsets. Members that are online move there, too.
        """
        if isinstance(to, str) and to not in ("first", "last"):
            raise Misuse(f"reset to 'first', 'last' or a time, not {to!r}")
        moment = {"first": 0, "last": -1}[to] if isinstance(to, str) else timestamp_ms(to)
        route = await self._core.routes.refresh(topic)
        found: dict[MessageQueue, int] = {}
        for part in route.parts:
            ext = {
                "group": group,
                "topic": topic,
                "timestamp": str(moment),
                "isForce": "true",
                "queueId": str(-1 if queue_id is None else queue_id),
            }
            address = self._core.routes.address(part.broker)
            what = f"the reset of group {group!r}"
            answer = await self._ask(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, what, ext)
            table = fastjson.loads(answer.body).get("offsetTable") if answer.body else {}
            found |= {queue: int(offset) for queue, offset in (table or {}).items()}
        return found

    # -- asking

    async def _ask(
        self,
        address: str,
        code: int,
        what: str,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> Command:
        return await self._core.remoting.ask(address, code, ext, body, what=what)

    async def _ask_name_server(self, code: int, what: str) -> Command:
        answer = await self._core.routes.name_request(Command(code))
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer.code, answer.remark, what=what)
        return answer

    async def ping(self, address: str) -> float:
        """Round-trip time in seconds of a small request to a broker or name server."""
        loop = asyncio.get_running_loop()
        connection = await self._core.remoting.connection(address)
        begun = loop.time()
        await connection.request(
            Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TEMPLATE_TOPIC}),
            self._core.timeout,
        )
        return loop.time() - begun
