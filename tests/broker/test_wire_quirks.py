"""What clients in other languages really send, as hand-made bytes: the broker must accept it all.

C++ sends long names, numbers and booleans in the header, integers for enums and "oneways" that look
like requests; ali-ons commits -1 and tags "null"; Go pulls by the subscription of its heartbeat and
cuts routes as text. Nothing here uses Aerobee's own encoders.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
from peers.aerobee_broker import AerobeeBroker
from peers.tools import wait_for
from peers.wire import Answer, Wire, frame

CPP_SECURITY = {"AccessKey": "", "Signature": "", "OnsChannel": ""}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AerobeeBroker]:
    settings = {"transactionTimeOut": "300", "transactionCheckInterval": "300"}
    with AerobeeBroker(tmp_path_factory.mktemp("broker"), **settings) as broker:
        yield broker
        broker.stop()


@pytest.fixture
def wire(broker: AerobeeBroker) -> Iterator[Wire]:
    with Wire(broker.broker) as wire:
        yield wire


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)[:100]


def cpp_send(topic: str, queue: int = 0, **more: Any) -> dict[str, Any]:
    """The header of SEND_MESSAGE (10) as the C++ client writes it."""
    fields = {
        "producerGroup": "cpp",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "queueId": queue,
        "sysFlag": 0,
        "bornTimestamp": int(time.time() * 1000),
        "flag": 0,
        "properties": "KEYS\x01k1\x02TAGS\x01red\x02WAIT\x01true\x02",
        "reconsumeTimes": 0,
        "unitMode": False,
        "consumeRetryTimes": 16,
    }
    return CPP_SECURITY | fields | more


def pull_header(topic: str, group: str = "g", **more: Any) -> dict[str, Any]:
    fields = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": 0,
        "queueOffset": 0,
        "maxMsgNums": 32,
        "sysFlag": 4,
        "commitOffset": 0,
        "subVersion": 0,
        "suspendTimeoutMillis": 1000,
        "subscription": "*",
    }
    return CPP_SECURITY | fields | more


def bodies(records: bytes) -> list[bytes]:
    """The message bodies in a pull's answer, cut out by the record's layout."""
    found = []
    while records:
        (size,) = struct.unpack_from(">i", records)
        (length,) = struct.unpack_from(">i", records, 84)
        found.append(records[88 : 88 + length])
        records = records[size:]
    return found


def heartbeat(client: str, group: str, topic: str, **subscription: Any) -> bytes:
    """As C++ writes it: integers for enums, the version as text, no expressionType."""
    subscribed = {"topic": topic, "subString": "*", "subVersion": "1", "codeSet": [], "tagsSet": []}
    consumer = {
        "groupName": group,
        "consumeType": 1,
        "messageModel": 1,
        "consumeFromWhere": 4,
        "unitMode": False,
        "subscriptionDataSet": [subscribed | subscription],
    }
    return json.dumps({"clientID": client, "consumerDataSet": [consumer]}).encode()


def assert_readable_by_all(answer: Answer) -> None:
    """What C++ and Go need of any answer, or they misread, drop it or crash."""
    header = answer.header
    assert {"code", "language", "version", "opaque", "flag", "extFields"} <= header.keys()
    assert all(isinstance(value, str) for value in answer.ext.values()), answer.ext
    assert -(2**15) <= header["version"] < 2**15
    assert -(2**15) <= header["code"] < 2**15
    assert header["flag"] & 1


def test_a_cpp_send_with_numbers_and_booleans_is_stored(wire: Wire, topic: str) -> None:
    answer = wire.request(10, cpp_send(topic, queue=3), b"from C++")
    assert_readable_by_all(answer)
    assert answer.code == 0, answer
    assert answer.ext["queueId"] == "3"
    assert answer.ext["queueOffset"] == "0"
    assert len(answer.ext["msgId"]) == 32
    int(answer.ext["msgId"], 16)
    pulled = wire.request(11, pull_header(topic, queueId=3))
    assert_readable_by_all(pulled)
    assert (pulled.code, bodies(pulled.body)) == (0, [b"from C++"])
    assert {
        "suggestWhichBrokerId",
        "nextBeginOffset",
        "minOffset",
        "maxOffset",
    } <= pulled.ext.keys()
    by_id = wire.request(33, CPP_SECURITY | {"offset": int(answer.ext["msgId"][16:], 16)})
    assert bodies(by_id.body) == [b"from C++"]


def test_a_cpp_oneway_that_looks_like_a_request_is_answered_in_its_turn(
    wire: Wire, topic: str
) -> None:
    opaques = [wire.send(10, cpp_send(topic), b"%d" % n) for n in range(5)]
    assert [wire.receive().header["opaque"] for _ in opaques] == opaques


def test_a_real_oneway_is_stored_and_never_answered(wire: Wire, topic: str) -> None:
    wire.send(10, cpp_send(topic), b"silent", flag=2)
    answer = wire.request(10, cpp_send(topic), b"loud")
    assert wire.unasked == []
    assert answer.ext["queueOffset"] == "1"


def test_a_cpp_batch_in_code_10_becomes_its_messages(wire: Wire, topic: str) -> None:
    """C++ says batch:"1", which Apache takes for no batch, storing the lot as one message."""
    batch = b""
    for body in (b"one", b"two"):
        rest = struct.pack(">iiii", 0, 0, 0, len(body)) + body + struct.pack(">h", 0)
        batch += struct.pack(">i", 4 + len(rest)) + rest
    answer = wire.request(10, cpp_send(topic, batch="1"), batch)
    assert answer.code == 0, answer
    pulled = wire.request(11, pull_header(topic))
    assert bodies(pulled.body) == [b"one", b"two"]


def test_cpp_may_send_its_traces_to_the_topic_of_its_region(wire: Wire) -> None:
    """Release 2 of C++ sends them to a name otherwise reserved for the broker; Apache allows it."""
    topic = "rmq_sys_TRACE_DATA_DefaultRegion"
    answer = wire.request(10, cpp_send(topic), b"a trace")
    assert answer.code == 0, answer
    assert bodies(wire.request(11, pull_header(topic)).body) == [b"a trace"]


def test_a_cpp_heartbeat_with_integers_for_enums_makes_a_member_at_once(
    broker: AerobeeBroker, wire: Wire, topic: str
) -> None:
    wire.request(10, cpp_send(topic), b"m")
    beat = wire.request(34, dict(CPP_SECURITY), heartbeat("cpp-1", topic, topic))
    assert beat.code == 0, beat
    members = wire.request(38, CPP_SECURITY | {"consumerGroup": topic})
    assert json.loads(members.body) == {"consumerIdList": ["cpp-1"]}
    assert_readable_by_all(members)
    with Wire(broker.broker) as other:
        other.request(34, dict(CPP_SECURITY), heartbeat("cpp-2", topic, topic))
        members = other.request(38, {"consumerGroup": topic})
        assert json.loads(members.body) == {"consumerIdList": ["cpp-1", "cpp-2"]}
        notices = [notice for notice in [*other.unasked] if notice.code == 40]
        assert [notice.header["flag"] for notice in notices] == [2], (
            "the newcomer is notified, oneway"
        )
    with Wire(broker.namesrv) as names:
        retry = names.request(105, {"topic": f"%RETRY%{topic}"})
        assert retry.code == 0, "the retry topic has a route from the first heartbeat on"

    def is_alone() -> bool:
        members = wire.request(38, {"consumerGroup": topic})
        return bool(json.loads(members.body) == {"consumerIdList": ["cpp-1"]})

    wait_for(is_alone, timeout=30, what="the other one's connection is closed")  # notified again
    assert sum(notice.code == 40 for notice in wire.unasked) >= 2


def test_a_young_queue_starts_at_zero_for_a_new_group(wire: Wire, topic: str) -> None:
    wire.request(10, cpp_send(topic), b"m")
    place = {"consumerGroup": topic, "topic": topic, "queueId": 0}
    answer = wire.request(14, place)
    assert (answer.code, answer.ext) == (0, {"offset": "0"})


def test_ali_ons_commits_minus_one_and_is_answered(wire: Wire, topic: str) -> None:
    wire.request(10, cpp_send(topic), b"m")
    place = {"consumerGroup": topic, "topic": topic, "queueId": 0}
    answer = wire.request(15, place | {"commitOffset": -1})
    assert answer.code == 0, answer
    assert wire.request(14, place).ext["offset"] == "0"
    assert wire.request(15, place | {"commitOffset": 1}).code == 0
    assert wire.request(14, place).ext["offset"] == "1"


def test_the_tag_null_of_ali_ons_is_a_tag_like_any_other(wire: Wire, topic: str) -> None:
    properties = "TAGS\x01null\x02WAIT\x01true\x02"
    wire.request(10, cpp_send(topic, properties=properties), b"tagged null")
    wire.request(10, cpp_send(topic, properties="WAIT\x01true\x02"), b"no tag")
    pulled = wire.request(11, pull_header(topic, subscription="null"))
    assert bodies(pulled.body) == [b"tagged null"]


def test_go_pulls_by_the_subscription_of_its_heartbeat(wire: Wire, topic: str) -> None:
    for tag in ("red", "blue", "red"):
        wire.request(10, cpp_send(topic, properties=f"TAGS\x01{tag}\x02"), tag.encode())
    nanoseconds = 1_794_811_084_180_123_457  # more than a double can hold
    beat = heartbeat("go", topic, topic, subString="red", subVersion=nanoseconds, tagsSet=["red"])
    assert wire.request(34, {}, beat).code == 0
    header = pull_header(topic, topic, sysFlag="2", subVersion=str(nanoseconds))
    del header["subscription"]
    pulled = wire.request(11, header)
    assert (pulled.code, bodies(pulled.body)) == (0, [b"red", b"red"])
    newer = wire.request(11, header | {"subVersion": str(nanoseconds + 1)})
    assert newer.code == 25, "a subscription newer than the heartbeat's is not known yet"


def test_null_lists_in_a_heartbeat_of_go_are_empty_ones(wire: Wire, topic: str) -> None:
    wire.request(10, cpp_send(topic), b"m")
    beat = heartbeat("go", topic, topic, tagsSet=None, codeSet=None)
    assert wire.request(34, {}, beat).code == 0
    assert json.loads(wire.request(38, {"consumerGroup": topic}).body)["consumerIdList"] == ["go"]


def test_a_route_has_no_blank_and_keys_as_each_client_reads_them(
    broker: AerobeeBroker, wire: Wire, topic: str
) -> None:
    wire.request(10, cpp_send(topic), b"m")
    with Wire(broker.namesrv) as names:
        old = names.request(105, {"topic": topic}, version=317, language="GO").body
        assert b'"brokerAddrs":{0:"' in old
        assert b" " not in old and b"\n" not in old
        standard = names.request(105, {"topic": topic, "acceptStandardJsonOnly": True}).body
        (data,) = json.loads(standard)["brokerDatas"]
        assert data["brokerAddrs"] == {"0": broker.broker}
        (queues,) = json.loads(standard)["queueDatas"]
        assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (4, 4, 6)
        missing = names.request(105, {"topic": f"{topic}-none"})
        assert (missing.code, missing.body) == (17, b"")
        template = names.request(105, {"topic": "TBW102", "acceptStandardJsonOnly": True}).body
        assert json.loads(template)["queueDatas"][0]["perm"] == 7


def test_a_cpp_send_back_and_its_retry_reach_the_group_again(wire: Wire, topic: str) -> None:
    sent = wire.request(10, cpp_send(topic), b"again")
    wire.request(34, {}, heartbeat("cpp", topic, topic))
    back = wire.request(
        36,
        CPP_SECURITY
        | {
            "offset": int(sent.ext["msgId"][16:], 16),
            "group": topic,
            "delayLevel": 1,
            "originMsgId": sent.ext["msgId"],
            "originTopic": topic,
            "unitMode": False,
            "maxReconsumeTimes": 16,
        },
    )
    assert back.code == 0, back
    retry = pull_header(f"%RETRY%{topic}", topic, sysFlag=6, suspendTimeoutMillis=5000)
    pulled = wire.request(11, retry)
    assert bodies(pulled.body) == [b"again"]
    assert b"RETRY_TOPIC\x01" + topic.encode() in pulled.body


def test_a_cpp_transaction_is_asked_for_and_committed(wire: Wire, topic: str) -> None:
    producer = json.dumps({"clientID": "cpp", "producerDataSet": [{"groupName": topic}]}).encode()
    assert wire.request(34, {}, producer).code == 0
    properties = f"TRAN_MSG\x01true\x02PGROUP\x01{topic}\x02UNIQ_KEY\x01A1B2\x02"
    header = cpp_send(topic, producerGroup=topic, sysFlag=4, properties=properties)
    sent = wire.request(10, header, b"deal")
    assert sent.code == 0, sent
    check = wire.receive()
    assert (check.code, check.header["flag"]) == (39, 2)
    assert {"tranStateTableOffset", "commitLogOffset", "msgId", "transactionId", "offsetMsgId"} <= (
        check.ext.keys()
    )
    assert all(isinstance(value, str) for value in check.ext.values())
    assert b"PGROUP\x01" + topic.encode() in check.body
    assert bodies(check.body) == [b"deal"]
    decision = {
        "producerGroup": topic,
        "tranStateTableOffset": int(check.ext["tranStateTableOffset"]),
        "commitLogOffset": int(check.ext["commitLogOffset"]),
        "commitOrRollback": 8,
        "fromTransactionCheck": True,
        "msgId": check.ext["msgId"],
        "transactionId": check.ext["transactionId"],
    }
    wire.send(37, CPP_SECURITY | decision)  # C++ marks it as a oneway too late
    pulled = wire.request(11, pull_header(topic, sysFlag=6, suspendTimeoutMillis=5000))
    assert bodies(pulled.body) == [b"deal"]


def test_bytes_may_come_one_by_one_and_opaques_may_be_negative(wire: Wire, topic: str) -> None:
    request = {"code": 10, "language": "CPP", "version": 63, "opaque": -7, "flag": 0}
    data = frame(request | {"extFields": cpp_send(topic)}, b"slow")
    for n in range(len(data)):
        wire.socket.sendall(data[n : n + 1])
    answer = wire.receive()
    assert (answer.header["opaque"], answer.code) == (-7, 0)


def test_a_binary_header_is_answered_by_a_binary_header(wire: Wire) -> None:
    ext = b"\x00\x0dconsumerGroup\x00\x00\x00\x04none"
    header = struct.pack(">hBhiiii", 38, 0, 401, 99, 0, 0, len(ext)) + ext
    wire.socket.sendall(struct.pack(">iI", 4 + len(header), 1 << 24 | len(header)) + header)
    length, mark = struct.unpack(">iI", wire.socket.recv(8, 0x100))  # MSG_WAITALL
    assert mark >> 24 == 1
    answer = wire.socket.recv(length - 4, 0x100)
    _code, _language, _version, opaque, flag = struct.unpack_from(">hBhii", answer)
    assert (opaque, flag & 1) == (99, 1)


def test_fields_of_newer_clients_and_nulls_are_no_hindrance(wire: Wire, topic: str) -> None:
    newer: dict[str, Any] = {
        "ns": "space",
        "nsd": "false",
        "bname": "x",
        "oway": "false",
        "lo": "true",
    }
    more: dict[str, Any] = {"n": None, "ReqT": "0", "__ZONE_NAME": "z", "AccessKey": "someone"}
    more |= {"Signature": "c2lnbmVk", "SecurityToken": "token", "OnsChannel": "CLOUD"}
    answer = wire.request(10, cpp_send(topic, **newer, **more), b"m", remark=None)
    assert answer.code == 0, answer


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (54321, {}),
        (10, None),
        (11, {"topic": "t", "consumerGroup": "g", "queueId": "x"}),
        (10, {"topic": "t", "queueId": "99999999999999999999"}),
        (14, {"consumerGroup": "g"}),
        (33, {"offset": -1}),
        (33, {"offset": 2**62}),
        (38, {}),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_and_the_connection_continues(
    wire: Wire, code: int, ext: dict[str, Any] | None
) -> None:
    header = {"code": code, "language": "CPP", "version": 63, "opaque": 5, "flag": 0}
    wire.socket.sendall(frame(header if ext is None else header | {"extFields": ext}))
    answer = wire.receive()
    assert answer.header["opaque"] == 5
    assert answer.code != 0
    assert answer.header.get("remark"), "a refusal says why"
    assert wire.request(105, {"topic": "TBW102"}).code == 0
