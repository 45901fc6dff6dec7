"""Pulls over real sockets from a real store: statuses, filters, limits, long polling."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from peers.in_process import Client, counted, pull_ext, running_broker, send_ext
from peers.pulling import CODECS, bodies, dispatched, fill, offsets, tagged
from waiting import until

from aerobee.broker.daemon.app import AppBroker
from aerobee.protocol.wire.codes import ResponseCode
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.frame import encode_frame

PARSE_FAILED = ResponseCode.SUBSCRIPTION_PARSE_FAILED


@pytest.mark.parametrize("codec", list(CODECS))
async def test_a_pull_brings_the_stored_records_in_the_codec_of_the_request(
    app: AppBroker, codec: str
) -> None:
    client = await Client.connect(app, CODECS[codec])
    await fill(client, 10)
    for code in (11, 361):
        answer = await client.request(code, pull_ext("Orders", offset=3))
        assert (answer.code, answer.remark) == (0, "FOUND")
        assert bodies(answer) == [b"%d" % n for n in range(3, 10)]
        assert offsets(answer) == (10, 0, 10)
        assert answer.ext["suggestWhichBrokerId"] == "0"
        assert answer.codec == CODECS[codec]
    await client.close()


async def test_large_answers_are_sent_in_pieces_and_come_whole(
    app: AppBroker, client: Client
) -> None:
    await client.request(310, send_ext("Orders"), bytes(1000))
    await client.ask_all(
        [
            client.command(310, send_ext("Orders", n % 4), bytes([n % 256]) * 1000)
            for n in range(400)
        ]
    )
    await dispatched(app)
    for queue_id in range(4):
        answer = await client.request(11, pull_ext("Orders", queue_id, maxMsgNums="1000"))
        assert [body[0] for body in bodies(answer)][-100:] == [
            n % 256 for n in range(400) if n % 4 == queue_id
        ]
    await client.request(310, send_ext("One"), bytes(1000))
    await client.ask_all([client.command(310, send_ext("One"), bytes(1000)) for _ in range(300)])
    await dispatched(app)
    answer = await client.request(11, pull_ext("One", maxMsgNums="1000"))
    assert len(bodies(answer)) == 301
    for _ in range(2):  # references are released once the answer is sent
        await client.request(11, pull_ext("Orders", 1))
    held = {file.holders for file in app.broker.store.commit_log.files.files}
    assert held == {0}


async def test_a_reader_that_is_never_idle_does_not_hold_the_files_for_ever(
    app: AppBroker, client: Client
) -> None:
    for _ in range(3):
        await client.request(310, send_ext("Orders"), bytes(100_000))
    await until(lambda: app.broker.store.max_offset("Orders", 0) == 3)
    reader, writer = await asyncio.open_connection("127.0.0.1", app.broker_port, limit=1 << 16)
    writer.write(encode_frame(Command(11, pull_ext("Orders"))) * 300)  # 90 MB of answers
    assert app._server is not None
    [connection] = [each for each in app._server.connections if each.name != _own(client)]
    most = received = 0
    while received < 60_000_000:
        received += len(await asyncio.wait_for(reader.read(1 << 20), 5))
        most = max(most, len(connection.outbox.releases))
    assert 2 < most < 60  # of the 200 answers sent
    writer.close()
    await until(lambda: connection.is_closed)
    assert {file.holders for file in app.broker.store.commit_log.files.files} == {0}


def _own(client: Client) -> str:
    ip, port = client.writer.get_extra_info("sockname")
    return f"{ip}:{port}"


# --- statuses and next offsets


async def test_an_empty_queue_is_distinguished_from_a_wrong_offset(client: Client) -> None:
    await client.request(310, send_ext("Orders", 0))
    at_start = await client.request(11, pull_ext("Orders", 1, 0))
    assert at_start.code == ResponseCode.PULL_NOT_FOUND
    assert at_start.remark in ("NO_MESSAGE_IN_QUEUE", "NO_MATCHED_LOGIC_QUEUE")
    assert offsets(at_start) == (0, 0, 0)
    beyond = await client.request(11, pull_ext("Orders", 1, 5))
    assert beyond.code == ResponseCode.PULL_OFFSET_MOVED and offsets(beyond) == (0, 0, 0)


@pytest.mark.parametrize(
    ("offset", "code", "remark", "following"),
    [
        (5, ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", 5),
        (6, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 5),
        (2**62, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 5),
        (-1, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", 0),
        (-(2**63), ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", 0),
    ],
)
async def test_offsets_outside_the_queue_are_corrected(
    client: Client, offset: int, code: int, remark: str, following: int
) -> None:
    await fill(client, 5)
    answer = await client.request(11, pull_ext("Orders", 0, offset))
    assert (answer.code, answer.remark) == (code, remark)
    assert offsets(answer) == (following, 0, 5)


async def test_a_filter_that_matches_nothing_continues_after_what_it_has_seen(
    client: Client,
) -> None:
    await tagged(client, "AABA")
    answer = await client.request(11, pull_ext("Orders", subscription="X"))
    assert (answer.code, answer.remark) == (20, "NO_MATCHED_MESSAGE")
    assert offsets(answer) == (4, 0, 4)


@pytest.mark.parametrize(
    ("expression", "kind", "expected"),
    [
        ("A", "TAG", b"AAA"),
        ("A || B", "TAG", b"AABA"),
        (" B||||C ", "TAG", b"BC"),
        ("*", "TAG", b"AABCA"),
        ("", "TAG", b"AABCA"),
        ("A || *", "TAG", b"AABCA"),
        ("letter = 'C' OR letter = 'B'", "SQL92", b"BC"),
        ("TAGS IS NOT NULL AND letter IN ('X', 'Y')", "SQL92", b""),
    ],
)
async def test_a_pull_selects_by_the_expression_that_it_carries(
    client: Client, expression: str, kind: str, expected: bytes
) -> None:
    await tagged(client, "AABCA")
    answer = await client.request(
        11, pull_ext("Orders", subscription=expression, expressionType=kind)
    )
    assert b"".join(bodies(answer)) == expected
    assert int(answer.ext["nextBeginOffset"]) == 5


# --- limits


async def test_no_more_comes_than_was_asked_for(client: Client) -> None:
    await fill(client, 20)
    answer = await client.request(11, pull_ext("Orders", maxMsgNums="7"))
    assert len(bodies(answer)) == 7 and offsets(answer)[0] == 7


@pytest.mark.parametrize("codec", list(CODECS))
@pytest.mark.parametrize("wanted", ["0", "-1", str(-(2**31))])
async def test_a_pull_of_no_messages_gets_one_as_from_rocketmq(
    app: AppBroker, codec: str, wanted: str
) -> None:
    """The Go client's Poll asks for 0."""
    client = await Client.connect(app, CODECS[codec])
    await tagged(client, "abab")
    sql: dict[str, Any] = {"expressionType": "SQL92", "subscription": "letter = 'b'"}
    for filtered, sought in (({}, "abab"), ({"subscription": "b"}, "bb"), (sql, "bb")):
        offset = 0
        for letter in sought:
            ext = pull_ext("Orders", 0, offset, maxMsgNums=wanted, **filtered)
            answer = await client.request(11, ext)
            assert bodies(answer) == [letter.encode()]
            offset = offsets(answer)[0]
        assert offset == 4
    await client.close()


async def test_no_more_bytes_come_than_were_asked_for_but_always_one_message(
    app: AppBroker, client: Client
) -> None:
    await client.request(310, send_ext("Orders"), bytes(5000))
    for _ in range(3):
        await client.request(310, send_ext("Orders"), bytes(5000))
    await dispatched(app)
    one = await client.request(11, pull_ext("Orders", maxMsgBytes="100"))
    assert len(bodies(one)) == 1
    two = await client.request(11, pull_ext("Orders", maxMsgBytes="12000"))
    assert len(bodies(two)) == 2


async def test_the_settings_bound_a_pull(tmp_path: Path) -> None:
    async with running_broker(tmp_path, max_transfer_count_on_message_in_memory=5) as app:
        client = await Client.connect(app)
        await fill(client, 20)
        answer = await client.request(11, pull_ext("Orders", maxMsgNums="2147483647"))
        assert len(bodies(answer)) == 5
        await client.close()


# --- checks


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"topic": "Unknown"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"topic": "../x"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"consumerGroup": "a/b"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"consumerGroup": "g" * 200}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"consumerGroup": ""}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"queueId": "-1"}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": "4"}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": "2147483648"}, ResponseCode.INVALID_PARAMETER),
        ({"queueOffset": "x"}, ResponseCode.INVALID_PARAMETER),
        ({"expressionType": "LUA", "subscription": "x"}, PARSE_FAILED),
        (
            {"expressionType": "SQL92", "subscription": "a >"},
            PARSE_FAILED,
        ),
        ({"subscription": "x" * 40_000}, PARSE_FAILED),
        ({"sysFlag": "0"}, ResponseCode.SUBSCRIPTION_NOT_EXIST),
    ],
)
async def test_pulls_that_cannot_be_are_refused_with_a_reason(
    client: Client, more: dict[str, str], code: int
) -> None:
    await fill(client, 1)
    for request_code in (11, 361):
        answer = await client.request(request_code, pull_ext("Orders") | more)
        assert answer.code == code and answer.remark


async def test_permissions_are_kept(app: AppBroker, client: Client) -> None:
    await fill(client, 1)
    broker = app.broker
    pull = pull_ext("Orders")
    topic, group = broker.topics.get("Orders"), broker.groups.get("cg")
    assert topic is not None and group is not None
    broker.topics.put(replace(topic, perm=2))
    assert (await client.request(11, pull)).code == ResponseCode.NO_PERMISSION
    broker.topics.put(topic)
    broker.groups.put(replace(group, consume_enable=False))
    assert (await client.request(11, pull)).code == ResponseCode.NO_PERMISSION
    broker.groups.put(group)
    broker.groups.set_forbidden("cg", "Orders", True)
    assert (await client.request(11, pull)).code == ResponseCode.NO_PERMISSION
    broker.groups.set_forbidden("cg", "Orders", False)
    app.settings.lite_pull_message_enable = False
    assert (await client.request(361, pull)).code == ResponseCode.NO_PERMISSION
    assert (await client.request(11, pull)).code == 0
    app.settings.broker_permission = 2
    assert (await client.request(11, pull)).code == ResponseCode.NO_PERMISSION


async def test_without_auto_creation_an_unknown_group_is_refused(tmp_path: Path) -> None:
    async with running_broker(tmp_path, auto_create_subscription_group=False) as app:
        client = await Client.connect(app)
        await client.request(310, send_ext("Orders"))
        answer = await client.request(11, pull_ext("Orders"))
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        await client.close()


async def test_sql92_can_be_switched_off(tmp_path: Path) -> None:
    async with running_broker(tmp_path, enable_property_filter=False) as app:
        client = await Client.connect(app)
        await fill(client, 1)
        ext = pull_ext("Orders", subscription="a = 1", expressionType="SQL92")
        answer = await client.request(11, ext)
        assert answer.code == ResponseCode.SYSTEM_ERROR and "enablePropertyFilter" in (
            answer.remark or ""
        )
        await client.close()


# --- the subscription of the heartbeat


async def heartbeat(client: Client, *, short: bool = False, **subscription: object) -> str:
    """Whether all is to be sent next time; a short one says that nothing has changed."""
    body = {
        "clientID": "c1",
        "heartbeatFingerprint": 7,
        "withoutSub": short,
        "consumerDataSet": [
            {
                "groupName": "cg",
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": subscription.pop("model", "CLUSTERING"),
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "subscriptionDataSet": [
                    {"topic": "Orders", "subString": "*", "subVersion": 100} | subscription
                ],
            }
        ],
    }
    answer = await client.request(34, {}, json.dumps(body).encode())
    assert answer.code == 0
    return answer.ext["IS_SUB_CHANGE"]


async def test_a_pull_without_a_subscription_uses_that_of_the_heartbeat(client: Client) -> None:
    await tagged(client, "ABA")
    pull = pull_ext("Orders", sysFlag="0", subVersion="100")
    del pull["subscription"], pull["expressionType"]
    assert (await client.request(11, pull)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    await heartbeat(client, subString="A", expressionType="TAG")
    assert bodies(await client.request(11, pull)) == [b"A", b"A"]
    newer = await client.request(11, pull | {"subVersion": "101"})
    assert newer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    other = await client.request(11, pull | {"topic": "TBW102"})
    assert other.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    await heartbeat(client, subString="letter = 'B'", expressionType="SQL92", subVersion=200)
    assert bodies(await client.request(11, pull)) == [b"B"]


async def test_a_heartbeat_is_wanted_in_full_when_a_pull_is_ahead_of_it(client: Client) -> None:
    """5.5 clients drop one when two of their threads send at the same time."""
    await tagged(client, "A")
    pull = pull_ext("Orders", sysFlag="0", subVersion="101")
    del pull["subscription"], pull["expressionType"]
    assert await heartbeat(client, subVersion=100) == "false"
    assert await heartbeat(client, short=True) == "false"
    assert (await client.request(11, pull)).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    assert await heartbeat(client, short=True) == "true"
    assert await heartbeat(client, subVersion=101) == "false"
    assert bodies(await client.request(11, pull)) == [b"A"]
    assert await heartbeat(client, short=True) == "false"


async def test_broadcast_can_be_forbidden_to_a_group(app: AppBroker, client: Client) -> None:
    await fill(client, 1)
    await heartbeat(client, model="BROADCASTING")
    pull = pull_ext("Orders", sysFlag="0")
    assert (await client.request(11, pull)).code == 0
    group = app.broker.groups.get("cg")
    assert group is not None
    app.broker.groups.put(replace(group, consume_broadcast_enable=False))
    assert (await client.request(11, pull)).code == ResponseCode.NO_PERMISSION


# --- offsets by pull


async def test_a_pull_commits_the_offset_that_it_carries(app: AppBroker, client: Client) -> None:
    await fill(client, 10)
    query = app.broker.offsets.query
    await client.request(11, pull_ext("Orders", offset=8, commitOffset="5"))
    assert query("cg", "Orders", 0) == -1  # the bit is not set
    await client.request(11, pull_ext("Orders", offset=8, commitOffset="5", sysFlag="5"))
    assert query("cg", "Orders", 0) == 5
    waiting = client.command(
        11, pull_ext("Orders", offset=10, commitOffset="7", sysFlag="7", suspendTimeoutMillis="100")
    )
    await client.ask(waiting)
    assert query("cg", "Orders", 0) == 7
    await client.request(11, pull_ext("Orders", offset=8, commitOffset="-1", sysFlag="5"))
    assert query("cg", "Orders", 0) == 7


async def test_a_reset_is_returned_with_the_next_pull_once(app: AppBroker, client: Client) -> None:
    await fill(client, 10)
    app.broker.offsets.reset("cg", "Orders", 0, 4)
    moved = await client.request(11, pull_ext("Orders", offset=9))
    assert (moved.code, moved.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET")
    assert offsets(moved) == (4, 0, 10)
    assert len(bodies(await client.request(11, pull_ext("Orders", offset=4)))) == 6


async def test_a_reset_that_was_taken_is_carried_out_though_resets_are_switched_off(
    app: AppBroker, client: Client
) -> None:
    await fill(client, 10)
    app.broker.offsets.reset("cg", "Orders", 0, 4)
    app.settings.change({"useServerSideResetOffset": "false"})
    moved = await client.request(11, pull_ext("Orders", offset=9))
    assert (moved.code, offsets(moved)[0]) == (ResponseCode.PULL_OFFSET_MOVED, 4)
    commit = {"consumerGroup": "cg", "topic": "Orders", "queueId": "0", "commitOffset": "7"}
    await client.request(15, commit)
    assert app.broker.offsets.query("cg", "Orders", 0) == 7


async def test_pulls_are_counted_by_topic_and_group(app: AppBroker, client: Client) -> None:
    await fill(client, 10)
    before = counted(app, "GROUP_GET_NUMS", "Orders@cg")
    await client.request(11, pull_ext("Orders"))
    assert counted(app, "GROUP_GET_NUMS", "Orders@cg") == before + 10
    assert app.broker.offsets.query_pull("cg", "Orders", 0) == 10
