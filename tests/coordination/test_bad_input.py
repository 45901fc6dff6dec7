"""Whatever is asked, the answer is a code and a sentence, never a broken handler."""

import random
from typing import Any

import pytest
from effort import examples
from structlog.testing import capture_logs

from aerobee.broker.services.topics.config import TopicConfig
from aerobee.protocol.json import fastjson
from coordination.serving import Peer, Serving

CODES = (
    *(12, 14, 15, 17, 18, 21, 25, 26, 28, 29, 30, 31, 32, 33, 34, 35, 38, 43, 45),
    *(200, 201, 202, 203, 204, 207, 208, 215, 222, 223, 225, 300, 303, 305, 306, 307, 308, 309),
    *(314, 315, 316, 317, 321, 328, 329, 343, 345, 351, 352, 353, 400, 401, 402, 200050),
)
NAMES = (
    *("topic", "consumerGroup", "group", "groupName", "producerGroup", "queueId", "offset"),
    *("commitOffset", "timestamp", "key", "maxNum", "beginTimestamp", "endTimestamp", "index"),
    *("count", "readQueueNums", "writeQueueNums", "perm", "order", "attributes", "isForce"),
    *("clientId", "clientID", "msgId", "statsName", "statsKey", "srcGroup", "destGroup"),
    *("topicSeq", "maxTopicNum", "dataVersion", "groupSeq", "topicFilterType", "boundaryType"),
    *("compareGroup", "filterGroups", "topicList", "readable", "isOrder", "topicSysFlag"),
)
TEXTS = (
    *("T", "g", "nope", "", " ", "-1", "0", "1", "2147483647", "-2147483648", "2147483648"),
    *("9223372036854775807", "-9223372036854775808", "99999999999999999999", "1e9", "NaN", "0x10"),
    *("true", "FALSE", "null", "../../etc/passwd", "a@b", "%RETRY%g", "TBW102", "x" * 300, "\0"),
    *("{}", '{"counter":1}', "[", "\u00e9\u4e2d\U0001f600", "1.5", "+a=b,-c", "7F000001", ";;"),
    "7F0000010000AC250000000000000000",
)
BODIES: tuple[Any, ...] = (
    *(b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 5000, b'{"a":' * 3000, b"k=v\n=\n\\u12"),
    {"clientID": 5, "consumerDataSet": [5, None, {"groupName": ["x"]}]},
    {"clientID": "c", "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{}, 1]}]},
    {"clientID": "c", "consumerDataSet": {"groupName": "g"}, "producerDataSet": "text"},
    {"topicConfigList": [{"topicName": "T", "readQueueNums": "many", "attributes": {"a": None}}]},
    {"topicConfigList": [{"topicName": 7}]},
    {"groupConfigList": [{"groupName": "g", "retryQueueNums": [1], "attributes": []}]},
    {"groupName": "g", "retryMaxTimes": 10**30, "groupRetryPolicy": "x"},
    {"topic": "T", "consumerGroup": "g", "clientId": 5, "strategyName": {}, "messageModel": []},
    {"topic": "T", "consumerGroup": "g", "clientId": "c", "mode": {"a": 1}},
)


@pytest.mark.parametrize("code", CODES)
async def test_no_request_breaks_its_handler(serving: Serving, peer: Peer, code: int) -> None:
    serving.broker.topics.put(TopicConfig("T", 2, 2))
    serving.broker.groups.get("g")
    await serving.store("T", 0, b"one")
    await peer.ask(34, body={"clientID": "c", "consumerDataSet": [{"groupName": "g"}]})
    peer.version = 20  # relays to itself are rejected at once, without a wait
    choose = random.Random(code)
    with capture_logs() as logs:
        for _ in range(examples(60, share=30)):
            names = choose.sample(NAMES, choose.randint(0, 25))
            ext = {name: choose.choice(TEXTS) for name in names}
            answer = await peer.ask(code, ext, choose.choice(BODIES))
            assert answer.code == 0 or answer.remark, (code, ext)
    failures = [entry for entry in logs if entry["event"] == "request failed"]
    assert not failures, failures[0]
    assert not [name for name in serving.broker.topics.all() if "/" in name or "\0" in name]
    assert fastjson.loads((await peer.ask(28)).body)["table"]["brokerActive"] == "true"


QUEUES = b"{{topic:1,brokerName:2,queueId:0}:1,{topic:'t',brokerName:2,queueId:0}:1}"


@pytest.mark.parametrize(
    "value",
    [b"1e999", b'{"a":' * 470 + b"1" + b"}" * 470, QUEUES],
    ids=["no number", "too deep", "keys of two kinds"],
)
async def test_a_configuration_that_no_file_can_hold_is_refused_and_others_are_saved(
    serving: Serving, peer: Peer, value: bytes
) -> None:
    group = b'{"groupName":"bad","ofAnotherVersion":' + value + b"}"
    policy = b'{"groupName":"bad","groupRetryPolicy":{"retries":' + value + b"}}"
    topic = b'{"topicConfigList":[{"topicName":"bad","ofAnotherVersion":' + value + b"}]}"
    for code, body in ((200, group), (200, policy), (18, topic)):
        answer = await peer.ask(code, body=body)
        assert (answer.code, bool(answer.remark)) == (29, True)
    assert (await peer.ask(200, body={"groupName": "good"})).code == 0
    one = {"topicName": "good", "readQueueNums": 1, "writeQueueNums": 1}
    assert (await peer.ask(18, body={"topicConfigList": [one]})).code == 0
    assert serving.broker.groups.file.is_saved and serving.broker.topics.file.is_saved
    assert serving.broker.groups.find("bad") is None and serving.broker.topics.get("bad") is None


async def test_retries_are_counted_only_for_topics_that_exist(serving: Serving, peer: Peer) -> None:
    serving.broker.topics.put(TopicConfig("T", 1, 1))
    for number, origin in enumerate(("T", "made-up-1", "made-up-2")):
        properties = f"RETRY_TOPIC\x01{origin}\x02"
        ext = dict(a="g", b="%RETRY%g", c="TBW102", d=4, e=0, f=0, g=1, h=0, i=properties, j=99)
        assert (await peer.ask(310, ext, b"x")).code == 0
        stored = await serving.store("T", 0, b"%d" % number, properties=properties)
        back = {"offset": stored.physical_offset, "group": "g", "delayLevel": 1}
        assert (await peer.ask(36, back)).code == 0
    stats = serving.broker.stats
    assert {topic for topic, _, _ in stats.dead_counters()} == {"T", "%RETRY%g"}
    sent_back = stats.find("SNDBCK_PUT_NUMS", "T@g")
    assert sent_back is not None and sent_back[0].nums == 3
    assert stats.find("SNDBCK_PUT_NUMS", "made-up-1@g") is None


@pytest.mark.parametrize("code", [18, 34, 41, 200, 225, 400])
async def test_a_large_body_that_only_the_tolerant_parser_reads_is_refused(
    peer: Peer, code: int
) -> None:
    """It would take the loop a second for each megabyte, whatever rights the client has."""
    answer = await peer.ask(code, body=b"{a:[" + b"1," * (200 << 10) + b"]}")
    assert (answer.code, "no standard JSON" in str(answer.remark)) == (29, True)
