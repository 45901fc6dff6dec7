"""Requests as clients build them, each with one or more unusual fields.

Texts in braces are facts of the broker that is asked: `{offset}` and `{id}` of a stored message,
`{half}` and `{half_queue}` of a half message, `{broker}` its name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from peers.wire import pull_ext

TOPIC, GROUP, OTHER = "Odd", "OddReaders", "OddOthers"
CLIENT_ID = "odd-client"
MESSAGES = 3  # in queue 0 of TOPIC


@dataclass(frozen=True)
class Ask:
    """One request; `on` says of which port."""

    code: int
    ext: dict[str, str]
    body: bytes = b""
    on: str = "broker"


@dataclass(frozen=True)
class Row:
    """Requests of one connection, one after the other; their answers are compared in `sees` too."""

    name: str
    asks: tuple[Ask, ...]
    sees: tuple[str, ...] = ()  # ext fields; "messages" is how many the body holds
    is_new: bool = False  # 4.9.7 does not know the request, and may not even answer


def row(name: str, *asks: Ask, sees: str = "", is_new: bool = False) -> Row:
    return Row(name, asks, tuple(sees.split()), is_new)


def _with(base: dict[str, str], more: dict[str, str | None]) -> dict[str, str]:
    """The fields of `base` with those of `more`; None leaves one out."""
    return {key: text for key, text in (base | more).items() if text is not None}


def json_body(value: Any) -> bytes:
    return json.dumps(value).encode()


def pull(code: int = 11, **more: str | None) -> Ask:
    """A pull with the subscription inside, without waiting."""
    return Ask(code, _with(pull_ext(TOPIC, consumerGroup=GROUP), more))


def send(body: bytes = b"body", code: int = 310, **more: str | None) -> Ask:
    base = {
        "a": "OddProducers",
        "b": TOPIC,
        "c": "TBW102",
        "d": "4",
        "e": "1",
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": "WAIT\x01true",
        "j": "0",
        "k": "false",
        "m": "false",
    }
    return Ask(code, _with(base, more), body)


def heartbeat(group: str = GROUP, topic: str = TOPIC, version: int = 1, **more: Any) -> Ask:
    subscription = {
        "classFilterMode": False,
        "codeSet": [],
        "expressionType": "TAG",
        "subString": "*",
        "subVersion": version,
        "tagsSet": [],
        "topic": topic,
    }
    consumer = {
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "consumeType": "CONSUME_PASSIVELY",
        "groupName": group,
        "messageModel": "CLUSTERING",
        "subscriptionDataSet": [subscription],
        "unitMode": False,
    } | more
    body = {"clientID": CLIENT_ID, "consumerDataSet": [consumer], "producerDataSet": []}
    return Ask(34, {}, json_body(body))


def sql(expression: str) -> dict[str, Any]:
    """An entry of a heartbeat's subscriptions."""
    entry = {"topic": TOPIC, "expressionType": "SQL92", "subString": expression}
    return entry | {"subVersion": 1}


def beat(body: Any) -> Ask:
    return Ask(34, {}, body if isinstance(body, bytes) else json_body(body))


def commit(**more: str | None) -> Ask:
    base = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": "1"}
    return Ask(15, _with(base, more))


def progress(**more: str | None) -> Ask:
    return Ask(14, _with({"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0"}, more))


def queue(code: int, **more: str | None) -> Ask:
    return Ask(code, _with({"topic": TOPIC, "queueId": "0"}, more))


def search(**more: str | None) -> Ask:
    return Ask(29, _with({"topic": TOPIC, "queueId": "0", "timestamp": "0"}, more))


def by_key(**more: str | None) -> Ask:
    base = {"topic": TOPIC, "key": "k", "maxNum": "32", "beginTimestamp": "0"}
    return Ask(12, _with(base | {"endTimestamp": str(2**62)}, more))


def back(**more: str | None) -> Ask:
    base = {"offset": "{offset}", "group": GROUP, "delayLevel": "0", "originMsgId": "x"}
    base |= {"originTopic": TOPIC, "unitMode": "false", "maxReconsumeTimes": "16"}
    return Ask(36, _with(base, more))


def end(**more: str | None) -> Ask:
    base = {"producerGroup": "OddProducers", "tranStateTableOffset": "{half_queue}"}
    base |= {"commitLogOffset": "{half}", "commitOrRollback": "8", "msgId": "{id}"}
    return Ask(37, _with(base | {"fromTransactionCheck": "false"}, more))


def locks(code: int = 41, **more: Any) -> Ask:
    queues = [{"topic": TOPIC, "brokerName": "{broker}", "queueId": 0}]
    body = {"clientId": CLIENT_ID, "consumerGroup": GROUP, "mqSet": queues} | more
    return Ask(code, {}, json_body(body))


def topic(name: str, **more: str | None) -> Ask:
    base = {"topic": name, "defaultTopic": "TBW102", "readQueueNums": "2", "writeQueueNums": "2"}
    base |= {"perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    return Ask(17, _with(base, more))


def group(name: str | None, **more: Any) -> Ask:
    return Ask(200, {}, json_body({"groupName": name} | more))


def reset(**more: str | None) -> Ask:
    base = {"topic": TOPIC, "group": GROUP, "timestamp": "0", "isForce": "true"}
    return Ask(222, _with(base, more))


def clone(**more: str | None) -> Ask:
    base = {"srcGroup": GROUP, "destGroup": OTHER, "topic": TOPIC, "offline": "true"}
    return Ask(314, _with(base, more))


def mode(**more: Any) -> Ask:
    body = {"topic": TOPIC, "consumerGroup": GROUP, "mode": "PULL", "popShareQueueNum": 0}
    return Ask(401, {}, json_body(body | more))


def assignment(**more: Any) -> Ask:
    body = {"topic": TOPIC, "consumerGroup": GROUP, "clientId": CLIENT_ID, "strategyName": "AVG"}
    return Ask(400, {}, json_body(body | {"messageModel": "CLUSTERING"} | more))


def entries(**more: str | None) -> Ask:
    return Ask(321, _with({"topic": TOPIC, "queueId": "0", "index": "0", "count": "10"}, more))


def settings(text: str) -> Ask:
    return Ask(25, {}, text.encode())


def names(code: int, **ext: str) -> Ask:
    return Ask(code, ext, on="namesrv")


def batch_of(*bodies: bytes, properties: bytes = b"") -> bytes:
    """Messages as a batch's body holds them."""
    parts = []
    for body in bodies:
        size = 4 + 4 + 4 + 4 + 4 + len(body) + 2 + len(properties)
        part = size.to_bytes(4, "big") + bytes(12) + len(body).to_bytes(4, "big") + body
        parts.append(part + len(properties).to_bytes(2, "big") + properties)
    return b"".join(parts)
