"""Pulls over real sockets from a real store: statuses, filters, limits, long polling."""

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from peers.in_process import Client, counted, pull_ext, running_broker, send_ext
from waiting import until

from aerobee.broker.daemon.app import AppBroker
from aerobee.broker.handlers.pull.reading import PullReads
from aerobee.broker.services import long_polling
from aerobee.broker.store.files import page_cache
from aerobee.broker.store.results import ReadResult
from aerobee.protocol.files import properties
from aerobee.protocol.files.record import decode_records
from aerobee.protocol.wire.codes import ResponseCode
from aerobee.protocol.wire.command import JSON, MSGPACK, ROCKETMQ, Command
from aerobee.protocol.wire.frame import encode_frame

CODECS = {"JSON": JSON, "ROCKETMQ": ROCKETMQ, "MSGPACK": MSGPACK}
PARSE_FAILED = ResponseCode.SUBSCRIPTION_PARSE_FAILED
WAIT = {"sysFlag": "6", "suspendTimeoutMillis": "5000"}  # subscription inside, may be held

WAIT_LONG = WAIT | {"suspendTimeoutMillis": "600000"}  # its time does not end within a test


async def dispatched(app: AppBroker) -> None:
    """What is stored can be pulled."""
    store = app.broker.store
    await until(lambda: store.dispatched_offset == store.max_physical_offset)


async def fill(client: Client, count: int, topic: str = "Orders", **more: Any) -> None:
    """Messages 0..count-1 in queue 0, visible when this returns."""
    await client.request(310, send_ext(topic, **more), b"0")
    commands = [client.command(310, send_ext(topic, **more), b"%d" % n) for n in range(1, count)]
    if commands:
        await client.ask_all(commands)
    await client.request(11, pull_ext(topic, offset=count - 1) | WAIT)


async def tagged(client: Client, tags: str, topic: str = "Orders") -> None:
    """One message for each letter, its tag."""
    for tag in tags:
        text = properties.encode({"UNIQ_KEY": "u", "TAGS": tag, "letter": tag})
        await client.request(310, send_ext(topic, i=text), tag.encode())
    await client.request(11, pull_ext(topic, offset=len(tags) - 1) | WAIT)


def bodies(answer: Command) -> list[bytes]:
    return [bytes(message.body) for message in decode_records(answer.body)]


def offsets(answer: Command) -> tuple[int, int, int]:
    ext = answer.ext
    return int(ext["nextBeginOffset"]), int(ext["minOffset"]), int(ext["maxOffset"])


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
    for _ in range(2):  # what was held for the answer is let go once it is sent
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
    assert 2 < most < 60  # of the 200 whose answers were sent
    writer.close()
    await until(lambda: connection.is_closed)
    assert {file.holders for file in app.broker.store.commit_log.files.files} == {0}


def _own(client: Client) -> str:
    ip, port = client.writer.get_extra_info("sockname")
    return f"{ip}:{port}"


# --- statuses and next offsets


async def test_an_empty_queue_is_told_from_a_wrong_offset(client: Client) -> None:
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


async def test_a_filter_that_matches_nothing_goes_on_behind_what_it_has_seen(
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
async def test_who_asks_for_no_message_gets_one_as_from_rocketmq(
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
    """Clients of 5.5 forget to send one when two of their threads want to at once."""
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


async def test_a_reset_is_told_to_the_next_pull_once(app: AppBroker, client: Client) -> None:
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


# --- long polling


async def test_a_held_pull_is_answered_by_the_next_message(app: AppBroker) -> None:
    reader, writer = await Client.connect(app), await Client.connect(app)
    await fill(writer, 1)
    waiting = asyncio.create_task(reader.request(11, pull_ext("Orders", offset=1) | WAIT_LONG))
    await until(lambda: len(app.broker.long_polling) == 1)
    assert not waiting.done()
    await writer.request(310, send_ext("Orders"), b"new")
    answer = await waiting
    assert bodies(answer) == [b"new"]
    assert len(app.broker.long_polling) == 0
    await reader.close()
    await writer.close()


async def test_a_pull_that_waits_at_a_new_queue_is_woken_by_its_first_message(
    app: AppBroker,
) -> None:
    reader, writer = await Client.connect(app), await Client.connect(app)
    await fill(writer, 1)
    waiting = asyncio.create_task(reader.request(11, pull_ext("Orders", 3) | WAIT))
    await until(lambda: len(app.broker.long_polling))
    await writer.request(310, send_ext("Orders", 2), b"another queue")
    await writer.request(310, send_ext("Orders", 3), b"first")
    assert bodies(await asyncio.wait_for(waiting, 2)) == [b"first"]
    await reader.close()
    await writer.close()


async def test_a_reset_wakes_the_pulls_that_wait(app: AppBroker, client: Client) -> None:
    await fill(client, 3)
    waiting = asyncio.create_task(client.request(11, pull_ext("Orders", 0, 3) | WAIT))
    await until(lambda: len(app.broker.long_polling))
    app.broker.offsets.reset("cg", "Orders", 0, 1)
    app.broker.long_polling.wake_queue("Orders", 0)
    answer = await asyncio.wait_for(waiting, 2)
    assert (answer.remark, offsets(answer)) == ("OFFSET_RESET", (1, 0, 3))


async def test_many_held_pulls_are_answered_by_one_message(app: AppBroker) -> None:
    writer = await Client.connect(app)
    await fill(writer, 1)
    readers = [await Client.connect(app, codec) for codec in CODECS.values()]
    waiting = [
        asyncio.create_task(reader.request(11, pull_ext("Orders", offset=1) | WAIT))
        for reader in readers
        for _ in range(5)
    ]
    await until(lambda: len(app.broker.long_polling) == 15)
    await writer.request(310, send_ext("Orders"), b"new")
    assert [bodies(answer) for answer in await asyncio.gather(*waiting)] == [[b"new"]] * 15
    for client in (*readers, writer):
        await client.close()


async def test_pulls_that_are_woken_together_read_what_they_share_once(
    app: AppBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = await Client.connect(app)
    await fill(writer, 1)
    reader = await Client.connect(app)
    asked = [pull_ext("Orders", offset=1, consumerGroup=f"g{number}") | WAIT for number in range(8)]
    asked.append(pull_ext("Orders", offset=1) | WAIT | {"maxMsgNums": "1"})
    waiting = [asyncio.create_task(reader.request(11, ext)) for ext in asked]
    await until(lambda: len(app.broker.long_polling) == len(asked))
    store, reads = app.broker.store, []
    real = store.read_plain

    def read_plain(queue: Any, offset: int, count: int, size: int) -> Any:
        reads.append((offset, count))
        return real(queue, offset, count, size)

    monkeypatch.setattr(store, "read_plain", read_plain)
    await writer.request(310, send_ext("Orders"), b"new")
    answers = await asyncio.gather(*waiting)
    assert [bodies(answer) for answer in answers] == [[b"new"]] * len(asked)
    assert [offsets(answer) for answer in answers] == [(2, 0, 2)] * len(asked)
    assert len(reads) == len(set(reads)) == 2  # 32 messages, and one
    for client in (reader, writer):
        await client.close()


@pytest.mark.parametrize(
    ("expression", "kind"), [("B", "TAG"), ("letter = 'B'", "SQL92")], ids=["TAG", "SQL92"]
)
async def test_a_held_pull_sleeps_through_messages_that_it_does_not_want(
    app: AppBroker, client: Client, expression: str, kind: str
) -> None:
    await tagged(client, "A")
    ext = pull_ext("Orders", offset=1, subscription=expression, expressionType=kind) | WAIT
    waiting = asyncio.create_task(client.request(11, ext))
    writer = await Client.connect(app)
    for tag in "AAAB":
        assert not waiting.done()
        text = properties.encode({"UNIQ_KEY": "u", "TAGS": tag, "letter": tag})
        await writer.request(310, send_ext("Orders", i=text), tag.encode())
        await dispatched(app)
    answer = await waiting
    assert bodies(answer) == [b"B"] and int(answer.ext["nextBeginOffset"]) == 5
    await writer.close()


@pytest.mark.parametrize("milliseconds", [50, 300, 1100])
async def test_a_held_pull_is_answered_when_its_time_is_over(
    client: Client, milliseconds: int
) -> None:
    await fill(client, 1)
    ext = pull_ext("Orders", offset=1) | WAIT | {"suspendTimeoutMillis": str(milliseconds)}
    started = time.monotonic()
    answer = await client.request(11, ext)
    late = time.monotonic() - started - milliseconds / 1000
    assert (answer.code, offsets(answer)) == (ResponseCode.PULL_NOT_FOUND, (1, 0, 1))
    assert late >= 0, "before its time"


async def test_without_the_bit_or_the_time_a_pull_is_not_held(client: Client) -> None:
    await fill(client, 1)
    for more in ({"sysFlag": "4"}, {"suspendTimeoutMillis": "0"}, {"suspendTimeoutMillis": "-9"}):
        ext = pull_ext("Orders", offset=1) | WAIT | more
        answer = await client.request(11, ext)
        assert answer.code == ResponseCode.PULL_NOT_FOUND


async def test_with_long_polling_off_a_pull_waits_the_short_time(tmp_path: Path) -> None:
    async with running_broker(
        tmp_path, long_polling_enable=False, short_polling_time_mills=200
    ) as app:
        client = await Client.connect(app)
        await fill(client, 1)
        started = time.monotonic()
        await client.request(11, pull_ext("Orders", offset=1) | WAIT)
        assert time.monotonic() - started >= 0.2
        await client.close()


async def test_the_holds_of_a_client_that_goes_are_dropped(app: AppBroker) -> None:
    writer = await Client.connect(app)
    await fill(writer, 1)
    reader = await Client.connect(app)
    for _ in range(10):
        reader.writer.write(encode_frame(reader.command(11, pull_ext("Orders", offset=1) | WAIT)))
    await until(lambda: len(app.broker.long_polling) == 10)
    await reader.close()
    await until(lambda: not len(app.broker.long_polling))
    assert (await writer.request(310, send_ext("Orders"))).code == 0
    await writer.close()


async def test_a_pull_that_waits_at_a_topic_is_told_when_it_is_deleted(app: AppBroker) -> None:
    reader, operator = await Client.connect(app), await Client.connect(app)
    await fill(operator, 1)
    waiting = asyncio.create_task(reader.request(11, pull_ext("Orders", offset=1) | WAIT_LONG))
    await until(lambda: len(app.broker.long_polling) == 1)
    assert (await operator.request(215, {"topic": "Orders"})).code == 0
    assert (await waiting).code == ResponseCode.TOPIC_NOT_EXIST
    await reader.close()
    await operator.close()


async def test_the_number_of_holds_is_bounded(app: AppBroker, client: Client) -> None:
    await fill(client, 1)
    app.broker.long_polling.holds_max = 3
    commands = [client.command(11, pull_ext("Orders", offset=1) | WAIT) for _ in range(5)]
    futures = [asyncio.create_task(client.ask(command)) for command in commands]
    await until(lambda: sum(future.done() for future in futures) == 2)
    assert len(app.broker.long_polling) == 3
    await fill(client, 1)  # which those that are held get
    codes = [answer.code for answer in await asyncio.gather(*futures)]
    assert sorted(codes) == [ResponseCode.SUCCESS] * 3 + [ResponseCode.PULL_NOT_FOUND] * 2


async def test_held_pulls_are_answered_at_the_stop(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as app:
        client = await Client.connect(app)
        await fill(client, 1)
        waiting = asyncio.create_task(client.request(11, pull_ext("Orders", offset=1) | WAIT))
        await until(lambda: len(app.broker.long_polling) == 1)
    assert (await waiting).code == ResponseCode.PULL_NOT_FOUND
    await client.close()


async def test_no_memory_is_kept_of_holds_that_are_over(app: AppBroker, client: Client) -> None:
    await fill(client, 1)
    writer = await Client.connect(app)
    for offset in range(1, 100):
        ext = pull_ext("Orders", offset=offset) | WAIT
        waiting = asyncio.create_task(client.request(11, ext))
        await until(lambda: len(app.broker.long_polling))
        await writer.request(310, send_ext("Orders"))
        assert (await waiting).code == 0
    polling: long_polling.LongPolling = app.broker.long_polling
    assert not polling._by_queue and not polling._by_owner
    assert not any(polling._by_tick.values())
    await writer.close()


# --- cold reads


async def test_what_is_not_in_memory_is_read_by_a_thread(
    app: AppBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(client, 30)
    await asyncio.sleep(0.05)  # what was found in memory is believed for 20 ms
    cold_reads: list[object] = []
    real = app.broker.store.read_cold
    monkeypatch.setattr(PullReads, "recent_bytes", 0)
    monkeypatch.setattr(page_cache, "is_cached", lambda *_: False)

    def counted_read(result: Any) -> Any:
        cold_reads.append(result)
        return real(result)

    monkeypatch.setattr(app.broker.store, "read_cold", counted_read)
    answers = await client.ask_all(
        [client.command(11, pull_ext("Orders", offset=n)) for n in range(20)]
    )
    assert [bodies(answer) for answer in answers] == [
        [b"%d" % n for n in range(start, 30)] for start in range(20)
    ]
    assert len(cold_reads) == 20
    monkeypatch.setattr(app.broker.store, "read_cold", _broken_read)
    answer = await client.request(11, pull_ext("Orders"))
    assert answer.code == ResponseCode.SYSTEM_ERROR and "planted" in (answer.remark or "")
    held = {file.holders for file in app.broker.store.commit_log.files.files}
    assert held == {0}


async def test_an_sql_filter_touches_no_record_that_is_not_in_memory(
    app: AppBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tagged(client, "abcab" * 10)
    sql: dict[str, Any] = {"expressionType": "SQL92", "subscription": "letter <> 'c'"}
    sought = [b"a", b"b", b"a", b"b"] * 10
    expected = await client.request(11, pull_ext("Orders", **sql) | {"maxMsgNums": "64"})
    assert bodies(expected) == sought
    monkeypatch.setattr(PullReads, "recent_bytes", 0)
    monkeypatch.setattr(page_cache, "is_cached", lambda *_: False)
    tested_in_log = []
    real = app.broker.store.read_queue

    def watched(*args: Any, matches_record: Any = None, **rest: Any) -> ReadResult:
        tested_in_log.append(matches_record)
        return real(*args, matches_record=matches_record, **rest)

    monkeypatch.setattr(app.broker.store, "read_queue", watched)
    answer = await client.request(11, pull_ext("Orders", **sql) | {"maxMsgNums": "64"})
    assert (answer.body, answer.ext) == (expected.body, expected.ext)
    some: list[bytes] = []
    offset = 0
    while offset < 50:
        answer = await client.request(11, pull_ext("Orders", 0, offset, maxMsgNums="7", **sql))
        some += bodies(answer)
        offset = offsets(answer)[0]
    assert some == sought
    none = await client.request(11, pull_ext("Orders", **sql | {"subscription": "letter = 'z'"}))
    assert none.code == ResponseCode.PULL_RETRY_IMMEDIATELY and offsets(none) == (50, 0, 50)
    assert set(tested_in_log) == {None}
    assert {file.holders for file in app.broker.store.commit_log.files.files} == {0}


def _broken_read(_result: object) -> list[bytes]:
    raise OSError(5, "planted")


async def test_a_pull_that_breaks_fails_alone(
    app: AppBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(client, 1)
    with monkeypatch.context() as patch:

        def broken(*_: object, **__: object) -> None:
            raise RuntimeError("planted")

        patch.setattr(app.broker.store, "read_plain", broken)
        patch.setattr(app.broker.store, "read_queue", broken)
        for subscription in ("*", "TagA"):
            ext = pull_ext("Orders", subscription=subscription)
            answer = await client.request(11, ext)
            assert answer.code == ResponseCode.SYSTEM_ERROR and "planted" in (answer.remark or "")
    assert (await client.request(11, pull_ext("Orders"))).code == 0


async def test_pulls_are_counted_by_topic_and_group(app: AppBroker, client: Client) -> None:
    await fill(client, 10)
    before = counted(app, "GROUP_GET_NUMS", "Orders@cg")
    await client.request(11, pull_ext("Orders"))
    assert counted(app, "GROUP_GET_NUMS", "Orders@cg") == before + 10
    assert app.broker.offsets.query_pull("cg", "Orders", 0) == 10
