"""Reads a heartbeat's body in all the forms that clients write: enums as names or numbers, null
lists, numbers as texts, missing keys."""

from dataclasses import dataclass
from typing import Any, Final

from aerobee.broker.base.refused import Refused
from aerobee.broker.services.clients.subscription import Subscription, subscription_from_json
from aerobee.broker.services.config_files.config_file import as_bool, as_int
from aerobee.protocol.json import fastjson
from aerobee.protocol.wire.codes import ResponseCode

ENTRIES_MAX: Final = 4096  # groups, and subscriptions of one group, in one heartbeat

SUBSCRIPTIONS_MAX: Final = 200_000  # of all groups of a heartbeat, whatever the settings say

CLIENT_ID_MAX: Final = 1024  # characters; it is kept, listed and logged

_SUBSCRIPTIONS: Final = "subscriptionDataSet"

CONSUME_ACTIVELY: Final = "CONSUME_ACTIVELY"
CONSUME_PASSIVELY: Final = "CONSUME_PASSIVELY"
BROADCASTING: Final = "BROADCASTING"
CLUSTERING: Final = "CLUSTERING"

_CONSUME_TYPES: Final = (CONSUME_ACTIVELY, CONSUME_PASSIVELY, "CONSUME_POP")
_MESSAGE_MODELS: Final = (BROADCASTING, CLUSTERING)
_CONSUME_FROM: Final = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)


@dataclass(frozen=True, slots=True)
class ConsumerData:
    """One consumer group of a heartbeat."""

    group: str
    consume_type: str = CONSUME_PASSIVELY
    message_model: str = CLUSTERING
    consume_from_where: str = _CONSUME_FROM[0]
    unit_mode: bool = False
    subscriptions: tuple[Subscription, ...] = ()


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A client's own description."""

    client_id: str
    producer_groups: tuple[str, ...] = ()
    consumers: tuple[ConsumerData, ...] = ()
    fingerprint: int = 0
    without_subscriptions: bool = False

    @property
    def size(self) -> int:
        """How many groups and subscriptions it has."""
        return len(self.consumers) + sum(len(each.subscriptions) for each in self.consumers)


def parse_heartbeat(
    body: bytes | memoryview, subscriptions_max: int = SUBSCRIPTIONS_MAX
) -> Heartbeat:
    """The heartbeat; Refused when it is malformed, or has more subscriptions in all."""
    value = fastjson.loads_request(body) if body else None
    if not isinstance(value, dict):
        raise Refused(ResponseCode.SYSTEM_ERROR, "the heartbeat's body is not a JSON object")
    client_id = value.get("clientID", value.get("clientId"))
    if not isinstance(client_id, str):  # an empty one is taken, as by RocketMQ
        raise Refused(ResponseCode.SYSTEM_ERROR, "the heartbeat has no clientID")
    if len(client_id) > CLIENT_ID_MAX:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"the heartbeat's clientID has {len(client_id)} characters; at most {CLIENT_ID_MAX} "
            "are taken",
        )
    producers = _entries(value.get("producerDataSet"), "producerDataSet")
    consumers = _entries(value.get("consumerDataSet"), "consumerDataSet")
    count = sum(len(_entries(each.get(_SUBSCRIPTIONS), _SUBSCRIPTIONS)) for each in consumers)
    if count > subscriptions_max:  # before they are read: that would take the loop for seconds
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"the heartbeat has {count} subscriptions, and maxSubscriptionsPerConnection is "
            f"{subscriptions_max}; use fewer groups in a client, or raise the limit",
        )
    return Heartbeat(
        client_id,
        tuple(name for entry in producers if (name := _group_name(entry))),
        tuple(_consumer(entry) for entry in consumers if _group_name(entry)),
        as_int(value.get("heartbeatFingerprint"), 0),
        as_bool(value.get("withoutSub"), False),
    )


def _entries(value: Any, key: str) -> list[dict[Any, Any]]:
    if value and not isinstance(value, list):
        raise Refused(ResponseCode.SYSTEM_ERROR, f"{key} of the heartbeat is not a list")
    entries = [entry for entry in value or () if isinstance(entry, dict)]
    if len(entries) > ENTRIES_MAX:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"{key} of the heartbeat has {len(entries)} entries; at most {ENTRIES_MAX} are taken",
        )
    return entries


def _group_name(entry: dict[Any, Any]) -> str:
    name = entry.get("groupName")
    return name if isinstance(name, str) else ""


def _consumer(entry: dict[Any, Any]) -> ConsumerData:
    subscriptions = _entries(entry.get(_SUBSCRIPTIONS), _SUBSCRIPTIONS)
    return ConsumerData(
        _group_name(entry),
        _enum(entry.get("consumeType"), _CONSUME_TYPES, 1),
        _enum(entry.get("messageModel"), _MESSAGE_MODELS, 1),
        _enum(entry.get("consumeFromWhere"), _CONSUME_FROM, 0),
        as_bool(entry.get("unitMode"), False),
        tuple(found for item in subscriptions if (found := subscription_from_json(item))),
    )


def _enum(value: Any, names: tuple[str, ...], default: int) -> str:
    """A name of the enum, whether it came as that or as its number."""
    if isinstance(value, str) and value in names:
        return value
    number = as_int(value, default)
    return names[number] if 0 <= number < len(names) else names[default]
