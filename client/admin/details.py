"""More requests, for tools that show a cluster: progress of all groups, owners, producers, HA."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from aerobee.client.admin.types import QueueStats, moment_of
from aerobee.client.core import Core
from aerobee.client.errors import AerobeeError, BrokerError, NotFound, refusal
from aerobee.client.message import Message
from aerobee.protocol.files.record import decode_record
from aerobee.protocol.json import fastjson
from aerobee.protocol.json.fastjson import MessageQueue
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command

RELAY_SECONDS: Final = 12.0  # a broker waits 10 s for a client's answer to a forwarded request


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a group is in one queue; `sent` is how far its members have pulled."""

    queue: MessageQueue
    end: int
    committed: int
    sent: int
    consumed_ms: int

    @property
    def lag(self) -> int:
        return max(0, self.end - max(0, self.committed))


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """Store times of a queue's first and last message; `delay_ms` is the age of the next one."""

    queue: MessageQueue
    first_ms: int
    last_ms: int
    consumed_ms: int
    delay_ms: int


class Details:
    """Requests to one broker by its address, and those that concern single clients."""

    def __init__(self, core: Core) -> None:
        self._core = core

    # -- groups

    async def all_progress(self, address: str) -> dict[str, list[Progress]]:
        """Every group of a broker in every queue that it has an offset in."""
        body = await self._json(
            address,
            RequestCode.GET_BROKER_CONSUME_STATS,
            "the progress of all groups",
            {"isOrder": "false"},
        )
        found: dict[str, list[Progress]] = {}
        for entry in body.get("consumeStatsList") or ():
            for group, stats in entry.items():
                rows = found.setdefault(group, [])
                for stat in stats or ():
                    rows += _progress(stat)
        return found

    async def progress(self, address: str, group: str) -> list[Progress]:
        """One group on one broker."""
        ext = {"consumerGroup": group}
        what = f"the progress of group {group!r}"
        return _progress(await self._json(address, RequestCode.GET_CONSUME_STATS, what, ext))

    async def time_spans(self, address: str, topic: str, group: str) -> list[TimeSpan]:
        """How old the next message of the group is in each queue."""
        ext = {"topic": topic, "group": group}
        what = f"the times of topic {topic!r}"
        body = await self._json(address, RequestCode.QUERY_CONSUME_TIME_SPAN, what, ext)
        return [
            TimeSpan(
                _queue(row["messageQueue"]),
                int(row.get("minTimeStamp", 0)),
                int(row.get("maxTimeStamp", 0)),
                int(row.get("consumeTimeStamp", 0)),
                int(row.get("delayTime", 0)),
            )
            for row in body.get("consumeTimeSpanSet") or ()
        ]

    async def connections(self, address: str, group: str) -> dict[str, Any]:
        """Members, model and subscriptions of a group on a broker; {} when none is online."""
        command = Command(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group})
        answer = await self._core.remoting.request(address, command)
        if answer.code in (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR):
            return {}
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer.code, answer.remark, what=f"the members of {group!r}")
        return dict(fastjson.loads(answer.body))

    async def running(self, address: str, group: str, client_id: str) -> dict[str, Any]:
        """A member's own report, with its queues."""
        ext = {"consumerGroup": group, "clientId": client_id, "jstackEnable": "false"}
        what = f"the state of client {client_id!r}"
        answer = await self._core.remoting.ask(
            address, RequestCode.GET_CONSUMER_RUNNING_INFO, ext, what=what, timeout=RELAY_SECONDS
        )
        return dict(fastjson.loads(answer.body))

    async def move(self, address: str, group: str, queue: MessageQueue, offset: int) -> None:
        """Move a group in one queue to an offset."""
        ext = {
            "group": group,
            "topic": queue.topic,
            "timestamp": "-1",
            "isForce": "true",
            "queueId": str(queue.queue_id),
            "offset": str(offset),
        }
        what = f"the reset of group {group!r}"
        await self._ask(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, what, ext)

    async def all_groups(self, address: str) -> dict[str, dict[str, Any]]:
        """The settings of every group that a broker knows."""
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        body = await self._json(address, code, "the list of groups")
        return dict(body.get("subscriptionGroupTable") or {})

    async def change_group(self, address: str, group: str, **changes: Any) -> None:
        """Change settings of a group on a broker; the others stay as they are."""
        what = f"the settings of group {group!r}"
        table = await self.all_groups(address)
        if group not in table:
            raise NotFound(f"the broker at {address} does not know the group {group!r}")
        body = fastjson.dumps({**table[group], **changes})
        change = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        await self._core.remoting.ask(address, change, {}, body, what=what)

    async def consume_now(
        self, address: str, group: str, client_id: str, message: Message
    ) -> dict[str, Any]:
        """Have one member handle a stored message now; returns its result."""
        ext = {
            "consumerGroup": group,
            "clientId": client_id,
            "topic": message.stored.topic,
            "msgId": message.offset_message_id,
            "brokerName": message.broker,
        }
        what = f"the resending to {client_id!r}"
        answer = await self._core.remoting.ask(
            address, RequestCode.CONSUME_MESSAGE_DIRECTLY, ext, what=what, timeout=RELAY_SECONDS
        )
        return dict(fastjson.loads(answer.body)) if answer.body else {}

    # -- topics

    async def brokers_of(self, topic: str) -> list[str]:
        """The names of the brokers that have a topic; NoRoute when there is none."""
        return [part.broker for part in (await self._core.routes.refresh(topic)).parts]

    async def topic_stats(self, address: str, topic: str) -> list[QueueStats]:
        """The queues of a topic on one broker, and their ends."""
        what = f"the state of topic {topic!r}"
        code = RequestCode.GET_TOPIC_STATS_INFO
        answer = await self._ask(address, code, what, {"topic": topic})
        return list(_queue_stats(bytes(answer.body)))

    # -- messages

    async def stored_at_ms(self, address: str, physical_offset: int) -> int | None:
        """Store time of the record at this offset; None when there is none."""
        ext = {"offset": str(physical_offset)}
        command = Command(RequestCode.VIEW_MESSAGE_BY_ID, ext)
        answer = await self._core.remoting.request(address, command)
        if answer.code != ResponseCode.SUCCESS:
            return None
        try:
            return decode_record(answer.body).store_timestamp
        except ValueError:
            return None

    # -- clients and brokers

    async def producers(self, address: str) -> dict[str, list[dict[str, Any]]]:
        """The producers online by group; {} from brokers that do not report them."""
        try:
            body = await self._json(address, RequestCode.GET_ALL_PRODUCER_INFO, "the producers")
        except BrokerError:
            return {}
        return dict(body.get("data") or {})

    async def delay_offsets(self, address: str) -> dict[int, int]:
        """How far each delay level has been delivered, by level."""
        body = await self._json(address, RequestCode.GET_ALL_DELAY_OFFSET, "the delay levels")
        return {int(key): int(value) for key, value in (body.get("offsetTable") or {}).items()}

    async def offset_of(self, address: str, group: str, queue: MessageQueue) -> int:
        """The committed offset of any group, also the broker's own; -1 when there is none."""
        ext = {
            "consumerGroup": group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "setZeroIfNotFound": "false",
        }
        command = Command(RequestCode.QUERY_CONSUMER_OFFSET, ext)
        answer = await self._core.remoting.request(address, command)
        return int(answer.ext["offset"]) if answer.code == ResponseCode.SUCCESS else -1

    # -- asking

    async def _ask(self, address: str, code: int, what: str, ext: dict[str, str]) -> Command:
        return await self._core.remoting.ask(address, code, ext, what=what)

    async def _json(
        self, address: str, code: int, what: str, ext: dict[str, str] | None = None
    ) -> dict[str, Any]:
        answer = await self._ask(address, code, what, dict(ext or {}))
        try:
            return dict(fastjson.loads(answer.body)) if answer.body else {}
        except fastjson.JsonError as error:
            raise AerobeeError(f"{what} at {address} cannot be read: {error}") from None


@lru_cache(maxsize=2048)
def _queue_stats(body: bytes) -> tuple[QueueStats, ...]:
    """Cached: most topics of a watched cluster are quiet, so their answers repeat."""
    return tuple(
        QueueStats(
            queue,
            int(row["minOffset"]),
            int(row["maxOffset"]),
            moment_of(row.get("lastUpdateTimestamp", 0)),
        )
        for queue, row in (fastjson.loads(body).get("offsetTable") or {}).items()
    )


def _queue(row: Any) -> MessageQueue:
    if isinstance(row, MessageQueue):
        return row
    return MessageQueue(row["topic"], row["brokerName"], int(row["queueId"]))


def _progress(stat: dict[str, Any]) -> list[Progress]:
    return [
        Progress(
            queue,
            int(row["brokerOffset"]),
            int(row["consumerOffset"]),
            int(row.get("pullOffset", row["consumerOffset"])),
            int(row.get("lastTimestamp", 0)),
        )
        for queue, row in (stat.get("offsetTable") or {}).items()
    ]
