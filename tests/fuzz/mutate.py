"""Requests that a client could send, and mutations of them."""

from __future__ import annotations

import json
import random
import struct

from aerobee.protocol.files.batch import encode_batch
from aerobee.protocol.wire.codes import RequestCode
from aerobee.protocol.wire.command import JSON, MSGPACK, ROCKETMQ, Command
from aerobee.protocol.wire.frame import encode_frame

NASTY_TEXTS = [
    "",
    "0",
    "-1",
    "1",
    "2147483647",
    "2147483648",
    "-2147483649",
    "9223372036854775807",
    "9223372036854775808",
    "9" * 400,
    "1.5",
    "1e9",
    "NaN",
    "true",
    "null",
    "../../etc/passwd",
    "/",
    ".",
    "a\0b",
    "%RETRY%cg",
    "%DLQ%cg",
    "%RETRY%" + "x" * 200,
    "SCHEDULE_TOPIC_XXXX",
    "TBW102",
    "rmq_sys_wheel_timer",
    "\x01\x02\x01\x02",
    "KEYS\x01a b c\x02TAGS\x01t\x02DELAY\x0199\x02",
    "TIMER_DELAY_SEC\x01-5\x02",
    "TIMER_DELIVER_MS\x01999999999999999999\x02",
    "TRAN_MSG\x01true\x02UNIQ_KEY\x01u\x02",
    "ü" * 50,
    "😀",
    "x" * 40_000,
    "{",
    "[]",
    "a || b || *",
    "a > 1 AND (b = 'x'",
    "SQL92",
]
NASTY_BODIES = [
    b"",
    b"{}",
    b"[]",
    b"null",
    b"{" * 2000,
    b'{"a":' * 500,
    b"\xff\xfe\x00",
    b'{"clientID":null,"consumerDataSet":[{}]}',
    b'{"clientID":5,"producerDataSet":[null,{"groupName":"/"}]}',
    b'{"consumerGroup":"g","clientId":"c","mqSet":[{"topic":"t","queueId":-1}]}',
    b'{"table":{0:1,{"topic":1}:2}}',
    encode_batch([(0, b"a", ""), (1, b"b", "KEYS\x01k\x02")]),
    encode_batch([(0, b"a" * 100, "")])[:50],
    bytes(300),
]
TOPIC = "Fuzz"
FIELDS = {
    "topic": TOPIC,
    "b": TOPIC,
    "a": "pg",
    "c": "TBW102",
    "d": "4",
    "e": "1",
    "f": "0",
    "g": "1700000000000",
    "h": "0",
    "i": "UNIQ_KEY\x01u\x02WAIT\x01true\x02",
    "j": "0",
    "producerGroup": "pg",
    "consumerGroup": "cg",
    "group": "cg",
    "groupName": "cg",
    "queueId": "0",
    "queueOffset": "0",
    "maxMsgNums": "32",
    "sysFlag": "4",
    "commitOffset": "0",
    "suspendTimeoutMillis": "20",
    "subscription": "*",
    "subVersion": "0",
    "expressionType": "TAG",
    "bornTimestamp": "1",
    "flag": "0",
    "properties": "KEYS\x01k",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "offset": "0",
    "delayLevel": "1",
    "timestamp": "0",
    "isForce": "true",
    "isOrder": "false",
    "key": "k",
    "maxNum": "10",
    "beginTimestamp": "0",
    "endTimestamp": "9999999999999",
    "clientID": "c1",
    "clientId": "c1",
    "readQueueNums": "4",
    "writeQueueNums": "4",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "order": "false",
    "commitOrRollback": "8",
    "tranStateTableOffset": "0",
    "commitLogOffset": "0",
    "msgId": "7F00000100002A9F0000000000000000",
    "transactionId": "u",
    "index": "0",
    "count": "10",
    "statsName": "TOPIC_PUT_NUMS",
    "statsKey": TOPIC,
    "srcGroup": "cg",
    "destGroup": "cg2",
    "compareGroup": "cg",
    "namespace": "ns",
    "value": "v",
    "brokerName": "broker-a",
    "brokerAddr": "127.0.0.1:1",
    "clusterName": "DefaultCluster",
    "haServerAddr": "",
    "brokerId": "0",
    "cluster": "DefaultCluster",
    "recallHandle": "x",
}
HEARTBEAT = json.dumps(
    {
        "clientID": "c1",
        "producerDataSet": [{"groupName": "pg"}],
        "consumerDataSet": [
            {
                "groupName": "cg",
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "subscriptionDataSet": [{"topic": TOPIC, "subString": "*", "subVersion": 1}],
            }
        ],
    }
).encode()

# These would legitimately break the control client.
LEFT_OUT = frozenset(
    {
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.UPDATE_NAMESRV_CONFIG,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
    }
)
CODES = [int(code) for code in RequestCode if code not in LEFT_OUT]
BUSY_CODES = [10, 11, 310, 320, 361, 34, 15, 36]


def request(rng: random.Random) -> Command:
    """A valid request, or one with a few invalid fields."""
    codec = rng.choice([JSON, JSON, ROCKETMQ, MSGPACK])
    code = rng.choice(BUSY_CODES if rng.random() < 0.5 else CODES)
    ext = dict(FIELDS)
    for name in rng.sample(sorted(ext), rng.choice([0, 0, 1, 2, 5])):
        if rng.random() < 0.3:
            del ext[name]
        else:
            ext[name] = rng.choice(NASTY_TEXTS)
    if rng.random() < 0.5:
        body = rng.choice([HEARTBEAT, b"hello", encode_batch([(0, b"a", "")] * 3)])
    else:
        body = rng.choice(NASTY_BODIES)
    if rng.random() < 0.1:
        ext["m"] = ext["batch"] = "true"
    return Command(
        code,
        ext,
        body,
        rng.randrange(-(2**31), 2**31),
        rng.choice([0, 0, 0, 0, 2, 1, 3, -1]),
        language=rng.choice(["JAVA", "GO", "CPP"]),
        version=rng.choice([0, 63, 317, 401, 513]),
        codec=codec,
    )


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Bytes with some of them flipped, cut, doubled, or given another length."""
    buffer = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8])):
        if not buffer:
            break
        at = rng.randrange(len(buffer))
        kind = rng.randrange(6)
        if kind == 0:
            buffer[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            buffer[at] = rng.randrange(256)
        elif kind == 2:
            del buffer[at : at + rng.randrange(1, 20)]
        elif kind == 3:
            buffer[at:at] = rng.randbytes(rng.randrange(1, 20))
        elif kind == 4 and len(buffer) >= 8:
            word = rng.choice([0, 4, 2**31 - 1, 2**32 - 1, len(buffer), rng.getrandbits(32)])
            struct.pack_into(">I", buffer, rng.choice([0, 4]), word)
        else:
            buffer[at:at] = buffer[at : at + 30]
    return bytes(buffer)


def frames(rng: random.Random) -> bytes:
    """What one write of a client could be: a few requests, perhaps damaged."""
    data = b"".join(encode_frame(request(rng)) for _ in range(rng.choice([1, 1, 2, 10])))
    return damaged(rng, data) if rng.random() < 0.4 else data
