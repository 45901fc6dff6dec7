"""The same facts from a broker without EXPLAIN_MESSAGE, as far as other requests report them.

It keeps no history: earlier subscriptions, resets and readers are not known.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from typing import Any, Final

from aerobee.client.admin.admin import Admin
from aerobee.client.core import Core
from aerobee.protocol.files import properties as props
from aerobee.protocol.files.ids import is_offset_message_id, parse_offset_message_id
from aerobee.protocol.files.record import StoredMessage, decode_record, decode_records
from aerobee.protocol.json import fastjson
from aerobee.protocol.json.fastjson import MessageQueue
from aerobee.protocol.message_copies import HOLDING_TOPICS, copy_of, original_topic
from aerobee.protocol.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANSACTION_OP_TOPIC,
    is_system_group,
    retry_topic,
)
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.message_facts import (
    DONE,
    WAITING,
    Broker,
    Copy,
    Filter,
    Group,
    Member,
    Standing,
)

AT_ONCE: Final = 16  # requests in flight
COPIES_MAX: Final = 32
PERM_READ: Final = 4
_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_NOT_ASKED: Final = (TRANSACTION_OP_TOPIC, "OFFSET_MOVED_EVENT", "TBW102")


class _Asker:
    """One broker."""

    def __init__(self, core: Core, name: str, address: str) -> None:
        self.core = core
        self.name = name
        self.address = address
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def ask(self, code: int, ext: dict[str, str]) -> Command | None:
        """The answer, None when the broker refuses."""
        async with self._turn:
            answer = await self.core.remoting.request(self.address, Command(code, ext))
        return answer if answer.code == ResponseCode.SUCCESS else None

    async def json(self, code: int, ext: dict[str, str]) -> dict[Any, Any]:
        answer = await self.ask(code, ext)
        value = fastjson.loads(answer.body) if answer is not None and answer.body else None
        return value if isinstance(value, dict) else {}


async def facts(
    core: Core, name: str, address: str, message_id: str, topic: str | None, group: str | None
) -> Broker:
    broker = _Asker(core, name, address)
    messages = await _find(broker, message_id, topic)
    if topic is not None:
        messages = [message for message in messages if original_topic(message) == topic]
    real = original_topic(messages[0]) if messages else topic or ""
    found = Broker(broker=name, now=time.time_ns() // 1_000_000, topic=real)
    found.copies = list(await asyncio.gather(*(_copy(broker, one) for one in messages)))
    await _add_delays(broker, found.copies)
    if messages:
        names = [group] if group else await _group_names(broker, real, messages)
        configs = await broker.json(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {})
        table = configs.get("subscriptionGroupTable") or {}
        found.groups = list(
            await asyncio.gather(*(_group(broker, one, real, messages, table) for one in names))
        )
    return found


# --- copies


async def _find(broker: _Asker, message_id: str, topic: str | None) -> list[StoredMessage]:
    unique_id = message_id
    if is_offset_message_id(message_id):
        first = await _at_offset(broker, message_id)
        if first is None:
            return []
        unique_id = first.property(props.UNIQ_KEY) or ""
        if not unique_id:
            return [first]
    names = await Admin(broker.core).topics(system=True)
    if topic is not None:
        names = [name for name in names if name.startswith((RETRY_PREFIX, DLQ_PREFIX))] + [topic]
    wanted = dict.fromkeys([*names, *HOLDING_TOPICS])
    found = await asyncio.gather(
        *(_in_topic(broker, name, unique_id) for name in wanted if name not in _NOT_ASKED)
    )
    each = {message.physical_offset: message for messages in found for message in messages}
    return [each[offset] for offset in sorted(each)]


async def _at_offset(broker: _Asker, message_id: str) -> StoredMessage | None:
    _, offset = parse_offset_message_id(message_id)
    answer = await broker.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)})
    message = decode_record(answer.body) if answer is not None else None
    return message if message is not None and message.message_id == message_id.upper() else None


async def _in_topic(broker: _Asker, topic: str, unique_id: str) -> list[StoredMessage]:
    ext = {
        "topic": topic,
        "key": unique_id,
        "maxNum": str(COPIES_MAX),
        "beginTimestamp": "0",
        "endTimestamp": str(2**63 - 1),
        "indexType": "U",
        "_UNIQUE_KEY_QUERY": "true",
    }
    answer = await broker.ask(RequestCode.QUERY_MESSAGE, ext)
    found = decode_records(answer.body) if answer is not None else []
    return [
        message
        for message in found
        if message.topic == topic and message.property(props.UNIQ_KEY) == unique_id
    ]


async def _copy(broker: _Asker, message: StoredMessage) -> Copy:
    ext = {"topic": message.topic, "queueId": str(message.queue_id)}
    ends = await broker.ask(RequestCode.GET_MAX_OFFSET, ext)
    end = int(ends.ext.get("offset", "-1")) if ends is not None else -1
    copy = copy_of(message)
    copy.in_queue = message.queue_offset < end if end >= 0 else None
    copy.due_at = _timer_due(message) if message.topic == TIMER_TOPIC else None
    return copy


def _timer_due(message: StoredMessage) -> int | None:
    text = message.property(props.TIMER_OUT_MS) or ""
    return int(text) if text.isdigit() else None


async def _add_delays(broker: _Asker, copies: list[Copy]) -> None:
    """When delayed copies are due, and whether their level has come to them."""
    delayed = [copy for copy in copies if copy.topic == SCHEDULE_TOPIC]
    if not delayed:
        return
    settings = await Admin(broker.core).settings(broker.address)
    levels = settings.get("messageDelayLevel", "").split()
    table = (await broker.json(RequestCode.GET_ALL_DELAY_OFFSET, {})).get("offsetTable") or {}
    progress = {int(level): int(offset) for level, offset in table.items()}
    for copy in delayed:
        level = copy.queue_id + 1
        if 0 < level <= len(levels):
            copy.due_at = copy.stored_at + _level_ms(levels[level - 1])
        copy.state = DONE if progress.get(level, 0) > copy.queue_offset else WAITING


def _level_ms(text: str) -> int:
    matched = re.fullmatch(r"(\d+)([smhd])", text)
    return int(matched[1]) * _UNITS_MS[matched[2]] if matched else 0


# --- groups


async def _group_names(broker: _Asker, topic: str, messages: list[StoredMessage]) -> list[str]:
    answer = await broker.json(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": topic})
    found = set(answer.get("groupList") or ())
    for message in messages:
        for prefix in (RETRY_PREFIX, DLQ_PREFIX):
            if message.topic.startswith(prefix):
                found.add(message.topic.removeprefix(prefix))
    return sorted(name for name in found if not is_system_group(name))


async def _group(
    broker: _Asker, name: str, topic: str, messages: list[StoredMessage], table: Mapping[str, Any]
) -> Group:
    config = table.get(name)
    online = await broker.json(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": name})
    subscriptions = online.get("subscriptionTable") or {}
    rows = online.get("connectionSet") or ()
    copies = [message for message in messages if message.topic in (topic, retry_topic(name))]
    subscription = subscriptions.get(topic)
    standings = await asyncio.gather(
        *(_standing(broker, name, message, subscription) for message in copies)
    )
    return Group(
        group=name,
        is_known=config is not None or bool(rows),
        consume_enabled=bool((config or {}).get("consumeEnable", True)),
        retry_max=None if config is None else int(config.get("retryMaxTimes", 16)),
        broadcasts=online.get("messageModel") == "BROADCASTING",
        members=[Member(client_id=row["clientId"], address=row["clientAddr"]) for row in rows],
        subscribes=topic in subscriptions if rows else None,
        standings=list(standings),
    )


async def _standing(
    broker: _Asker, group: str, message: StoredMessage, subscription: dict[str, Any] | None
) -> Standing:
    ext = {"consumerGroup": group, "topic": message.topic}
    stats = (await broker.json(RequestCode.GET_CONSUME_STATS, ext)).get("offsetTable") or {}
    row = stats.get(MessageQueue(message.topic, broker.name, message.queue_id)) or {}
    topic_ext = {"topic": message.topic, "lo": "true"}
    config = await broker.json(RequestCode.GET_TOPIC_CONFIG, topic_ext)
    standing = Standing(
        topic=message.topic,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        committed=int(row.get("consumerOffset", -1)),
        pulled=int(row["pullOffset"]) if "pullOffset" in row else None,
        max_offset=int(row["brokerOffset"]) if "brokerOffset" in row else None,
    )
    perm = config.get("perm")
    if isinstance(perm, int) and not perm & PERM_READ:
        standing.refusal = f"topic {message.topic} may not be read (its perm is {perm})"
    if subscription is not None and not message.topic.startswith(RETRY_PREFIX):
        standing.filter = _filter(subscription, message)
    return standing


def _filter(subscription: dict[str, Any], message: StoredMessage) -> Filter:
    """What the group selects now. Only the broker can evaluate SQL92, and it does not report it."""
    kind = str(subscription.get("expressionType") or "TAG")
    wanted = Filter(expression_type=kind, expression=str(subscription.get("subString") or "*"))
    if kind == "TAG":
        tags = [str(tag) for tag in subscription.get("tagsSet") or ()]
        tag = message.property(props.TAGS)
        wanted.matches = not tags or tag in tags
        if not wanted.matches:
            has = f"its tag is {tag}" if tag else "it has no tag"
            wanted.term = f"{has}, the group wants {' || '.join(tags)}"
    return wanted
