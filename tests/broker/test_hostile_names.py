"""Unknown names in every request: no table of the broker grows with them."""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from effort import examples
from peers.in_process import Client, running_broker, send_ext

from aerobee.broker.daemon.app import AppBroker
from aerobee.protocol.wire.codes import RequestCode
from aerobee.protocol.wire.frame import encode_frame

OF_EACH_KIND = examples(60, 30)
CREATED_MAX = OF_EACH_KIND * 5 // 6  # topics, and groups, that clients may create implicitly
NAMES = (
    *(
        "topic",
        "b",
        "a",
        "producerGroup",
        "consumerGroup",
        "group",
        "groupName",
        "key",
        "namespace",
    ),
    *("clientID", "clientId", "destGroup", "srcGroup", "statsKey", "msgId", "transactionId"),
    *("subscription", "recallHandle", "brokerName", "clusterName"),
)
NUMBERS = {
    **dict.fromkeys(("c", "defaultTopic"), "TBW102"),
    **dict.fromkeys(("d", "defaultTopicQueueNums", "readQueueNums", "writeQueueNums"), "1"),
    **dict.fromkeys(("e", "f", "g", "h", "j", "queueId", "queueOffset", "offset", "flag"), "0"),
    **dict.fromkeys(("commitOffset", "timestamp", "beginTimestamp", "suspendTimeoutMillis"), "0"),
    **{"maxMsgNums": "1", "sysFlag": "1", "subVersion": "1", "perm": "6", "maxNum": "1"},
    **{"endTimestamp": "9999999999999", "delayLevel": "1", "expressionType": "TAG"},
    **{"topicFilterType": "SINGLE_TAG", "order": "false", "isForce": "true", "value": "v"},
}
# Operators create permanent entries with these, without a limit; one ends the connection's turn.
BY_OPERATORS = {
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_BROKER_CONFIG,
    RequestCode.PUT_KV_CONFIG,
}


def sizes(thing: object, path: str = "broker", seen: set[int] | None = None) -> Iterator[Any]:
    """(path, length) of each container reachable from the broker's own objects."""
    seen = set() if seen is None else seen
    if id(thing) in seen or path.count(".") > 5:
        return
    seen.add(id(thing))
    if isinstance(thing, dict | list | set | deque):
        yield path, len(thing)
        return
    if not type(thing).__module__.startswith("aerobee.broker"):
        return
    slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    for name in (*slots, *getattr(thing, "__dict__", ())):
        yield from sizes(getattr(thing, name, None), f"{path}.{name}", seen)


class Stranger:
    """Makes requests in which every name is a new one."""

    def __init__(self) -> None:
        self._random = random.Random(1)
        self._number = 0

    def name(self) -> str:
        self._number += 1
        return f"stranger{self._number}" + "y" * self._random.choice((1, 40))

    def request(self, code: int) -> tuple[int, dict[str, str], bytes]:
        ext = NUMBERS | {name: self.name() for name in NAMES}
        text = f"KEYS\x01{self.name()}\x02TAGS\x01{self.name()}\x02UNIQ_KEY\x01{self.name()}\x02"
        return code, ext | {"i": text, "properties": text}, self._body(code)

    def _body(self, code: int) -> bytes:
        topic = {"topic": self.name(), "brokerName": self.name(), "queueId": 1}
        select = {"topic": self.name(), "subString": self.name(), "subVersion": 1}
        group = {"groupName": self.name(), "consumeType": "CONSUME_PASSIVELY"}
        if code == RequestCode.HEART_BEAT:
            consumer = group | {"messageModel": "CLUSTERING", "subscriptionDataSet": [select]}
            sets = {"producerDataSet": [{"groupName": self.name()}], "consumerDataSet": [consumer]}
            return json.dumps({"clientID": self.name()} | sets).encode()
        asked = {"consumerGroup": self.name(), "group": self.name(), "clientId": self.name()}
        lists = {"mqSet": [topic], "messageQueueList": [topic], "subscriptionData": select}
        return json.dumps(asked | lists | {"topic": self.name()}).encode()


async def ask_as_a_stranger(app: AppBroker, stranger: Stranger) -> None:
    for code in sorted(set(RequestCode) - BY_OPERATORS):
        client = await Client.connect(app)
        commands = [client.command(*stranger.request(code)) for _ in range(OF_EACH_KIND)]
        client.writer.write(b"".join(map(encode_frame, commands)))
        await client.request(RequestCode.SEND_MESSAGE_V2, send_ext("Known"), b"still served")
        await client.close()


async def test_no_table_grows_with_names_that_nobody_knows(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"max_topics": CREATED_MAX, "max_groups": CREATED_MAX}
    async with running_broker(tmp_path, **limits) as app:
        stranger = Stranger()
        await ask_as_a_stranger(app, stranger)
        before = dict(sizes(app.broker))
        await ask_as_a_stranger(app, stranger)
        await ask_as_a_stranger(app, stranger)
        pairs = {path: (before.get(path, 0), size) for path, size in sizes(app.broker)}
        grown = {path: pair for path, pair in pairs.items() if pair[1] - pair[0] > OF_EACH_KIND}
        assert len(before) > 50
        assert not grown
