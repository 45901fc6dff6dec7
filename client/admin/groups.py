"""Administration of consumer groups: their settings, members, lag, timers and offsets."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal

from aerobee.client.admin.cluster import ClusterAdmin
from aerobee.client.admin.types import Member, QueueLag, moment_of
from aerobee.client.errors import Misuse, NotFound, refusal
from aerobee.client.message import timestamp_ms
from aerobee.protocol.json import fastjson
from aerobee.protocol.json.fastjson import MessageQueue
from aerobee.protocol.names import is_system_group
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command

LIST_TIMERS: Final = 20110  # an Aerobee extension
Moment = Literal["first", "last"] | datetime | float


class GroupAdmin(ClusterAdmin):
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
