"""Sends over real sockets into a real store: answers, checks, what is stored, durability."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from peers.in_process import Client, counted, pull_ext, running_broker, send_ext
from structlog.testing import capture_logs

from aerobee.broker.daemon.app import AppBroker
from aerobee.protocol.files import properties
from aerobee.protocol.files.batch import encode_batch
from aerobee.protocol.files.ids import parse_offset_message_id
from aerobee.protocol.files.record import StoredMessage, decode_record, decode_records
from aerobee.protocol.wire.codes import ResponseCode
from aerobee.protocol.wire.command import JSON, MSGPACK, ROCKETMQ, Command
from aerobee.protocol.wire.frame import encode_frame

CODECS = {"JSON": JSON, "ROCKETMQ": ROCKETMQ, "MSGPACK": MSGPACK}


@pytest.fixture(params=list(CODECS.values()), ids=list(CODECS))
def codec(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def stored(app: AppBroker, message_id: str) -> StoredMessage:
    _, offset = parse_offset_message_id(message_id)
    view = app.broker.store.record_at(offset)
    assert view is not None
    return decode_record(view, check=True)


async def test_a_send_is_stored_as_it_was_sent(app: AppBroker, client: Client) -> None:
    ext = send_ext("Orders", 2, f="1", h="7", j="3")
    for number in range(3):  # the first creates the topic, the others take the hot path
        body = b"body-%d" % number
        answer = await client.request(310, ext, body)
        assert answer.code == 0, answer.remark
        assert (answer.ext["queueId"], answer.ext["queueOffset"]) == ("2", str(number))
        assert answer.ext["MSG_REGION"] == "DefaultRegion" and answer.ext["TRACE_ON"] == "true"
        message = stored(app, answer.ext["msgId"])
        assert (message.topic, message.queue_id, message.body) == ("Orders", 2, body)
        assert (message.sys_flag, message.flag, message.reconsume_times) == (1, 7, 3)
        assert message.born_timestamp == 1700000000000
        assert message.queue_offset == number
        pairs = message.property_map()
        assert pairs["UNIQ_KEY"] == "7F000001000018B4AAC2000000000001"
        assert pairs["MSG_REGION"] == "DefaultRegion"
        assert pairs["CLUSTER"] == "DefaultCluster"
        assert pairs["TRACE_ON"] == "true"


async def test_the_message_id_names_the_address_by_which_the_client_reached_us(
    app: AppBroker, json_client: Client
) -> None:
    answer = await json_client.request(310, send_ext("Orders"))
    host, _ = parse_offset_message_id(answer.ext["msgId"])
    assert host == bytes([127, 0, 0, 1]) + app.broker_port.to_bytes(4, "big")


async def test_sends_of_one_read_are_answered_each_with_its_own_opaque(client: Client) -> None:
    await client.request(310, send_ext("Orders"))
    commands = [client.command(310, send_ext("Orders", n % 4), b"%d" % n) for n in range(200)]
    answers = await client.ask_all(commands)
    assert [answer.code for answer in answers] == [0] * 200
    assert len({answer.ext["msgId"] for answer in answers}) == 200
    for queue_id in range(4):
        offsets = [int(a.ext["queueOffset"]) for a in answers if a.ext["queueId"] == str(queue_id)]
        assert offsets == list(range(offsets[0], offsets[0] + 50))


async def test_a_bad_send_among_good_ones_fails_alone(client: Client) -> None:
    await client.request(310, send_ext("Orders"))
    commands = [
        client.command(310, send_ext("Orders"), b"good"),
        client.command(310, send_ext("Orders", 99), b"no such queue"),
        client.command(310, send_ext("Orders"), bytes(5 << 20)),
        client.command(310, send_ext("../etc"), b"bad name"),
        client.command(310, send_ext("Orders", e="x"), b"no number"),
        client.command(310, send_ext("Orders", g="9" * 30), b"no time"),
        client.command(999, {}),
        client.command(310, send_ext("Orders"), b"good"),
    ]
    codes = [answer.code for answer in await client.ask_all(commands)]
    assert codes == [0, 29, 13, 29, 29, 29, 3, 0]


async def test_long_names_mean_the_same(app: AppBroker, json_client: Client) -> None:
    ext = {
        "producerGroup": "pg",
        "topic": "Orders",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "1",
        "sysFlag": "0",
        "bornTimestamp": "5",
        "flag": "9",
        "properties": "KEYS\x01k",
    }
    for _ in range(2):
        answer = await json_client.request(10, ext, b"x")
        message = stored(app, answer.ext["msgId"])
        assert (message.queue_id, message.flag, message.born_timestamp) == (1, 9, 5)
        assert message.property_map()["KEYS"] == "k"


async def test_a_message_without_a_unique_key_gets_one(app: AppBroker, client: Client) -> None:
    keys = set()
    for text in ("", "", "KEYS\x01k", "KEYS\x01k\x02", "NOT_UNIQ_KEY\x01n\x02KEYS\x01k"):
        answer = await client.request(310, send_ext("Orders", i=text), b"x")
        pairs = stored(app, answer.ext["msgId"]).property_map()
        keys.add(pairs["UNIQ_KEY"])
        assert pairs.get("KEYS") == ("k" if text else None)
    assert len(keys) == 5


async def test_what_the_broker_adds_replaces_what_a_client_claims(
    app: AppBroker, json_client: Client
) -> None:
    text = properties.encode(
        {"MSG_REGION": "mars", "CLUSTER": "x", "TRACE_ON": "false", "POP_CK": "1 2", "own": "kept"}
    )
    answer = await json_client.request(310, send_ext("Orders", i=text), b"x")
    message = stored(app, answer.ext["msgId"])
    pairs = message.property_map()
    assert (pairs["MSG_REGION"], pairs["CLUSTER"]) == ("DefaultRegion", "DefaultCluster")
    assert pairs["own"] == "kept" and "POP_CK" not in pairs
    assert message.properties.count("MSG_REGION") == 1


async def test_a_negative_queue_id_lets_the_broker_choose(client: Client) -> None:
    chosen = {(await client.request(310, send_ext("Orders", -1))).ext["queueId"] for _ in range(60)}
    assert chosen == {"0", "1", "2", "3"}


async def test_a_oneway_send_is_stored_and_never_answered(app: AppBroker, client: Client) -> None:
    await client.request(310, send_ext("Orders"))
    before = app.broker.store.max_physical_offset
    oneway = client.command(310, send_ext("Orders"), b"x", flag=2)
    refused = client.command(310, send_ext("../x"), b"x", flag=2)
    unknown = client.command(9999, {}, flag=2)
    silent = [client.expect(each) for each in (oneway, refused, unknown)]
    answers = client.ask_all([oneway, refused, unknown, client.command(310, send_ext("Orders"))])
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(answers, 0.5)
    assert not any(future.done() and not future.cancelled() for future in silent)
    assert app.broker.store.max_physical_offset > before
    assert app.broker.store.max_offset("Orders", 0) == 3


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        ("../../etc/passwd", ResponseCode.INVALID_PARAMETER),
        ("a/b", ResponseCode.INVALID_PARAMETER),
        (".", ResponseCode.INVALID_PARAMETER),
        ("", ResponseCode.INVALID_PARAMETER),
        ("nul\0", ResponseCode.INVALID_PARAMETER),
        ("ümlaut", ResponseCode.INVALID_PARAMETER),
        ("t" * 128, ResponseCode.INVALID_PARAMETER),
        ("%RETRY%", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ("SCHEDULE_TOPIC_XXXX", ResponseCode.NO_PERMISSION),
        ("RMQ_SYS_TRANS_HALF_TOPIC", ResponseCode.NO_PERMISSION),
        ("RMQ_SYS_TRANS_OP_HALF_TOPIC", ResponseCode.NO_PERMISSION),
        ("TRANS_CHECK_MAX_TIME_TOPIC", ResponseCode.NO_PERMISSION),
        ("SELF_TEST_TOPIC", ResponseCode.NO_PERMISSION),
        ("OFFSET_MOVED_EVENT", ResponseCode.NO_PERMISSION),
        ("rmq_sys_wheel_timer", ResponseCode.NO_PERMISSION),
    ],
)
async def test_topics_that_may_not_be_sent_to_are_refused(
    app: AppBroker, json_client: Client, topic: str, code: int
) -> None:
    before = app.broker.store.max_physical_offset
    answer = await json_client.request(310, send_ext(topic), b"x")
    assert answer.code == code and answer.remark
    assert app.broker.store.max_physical_offset == before
    if code == ResponseCode.INVALID_PARAMETER:
        assert topic not in app.broker.topics.all(), "nothing of it is left"


async def test_a_oneway_send_that_is_refused_is_said_in_the_log_but_not_a_thousand_times(
    client: Client,
) -> None:
    await client.request(310, send_ext("Orders"))
    refused = [client.command(310, send_ext("a/b"), b"x", flag=2) for _ in range(1000)]
    with capture_logs() as logs:
        client.writer.write(b"".join(map(encode_frame, refused)))
        await client.request(310, send_ext("Orders"))
    said = [log for log in logs if log["event"] == "request refused"]
    assert 1 <= len(said) < 20
    assert said[0]["code"] == 310 and "a/b" in said[0]["reason"]


async def test_a_message_too_large_is_said_in_the_log(client: Client) -> None:
    await client.request(310, send_ext("Orders"))
    with capture_logs() as logs:
        client.writer.write(
            encode_frame(client.command(310, send_ext("Orders"), b"x" * (5 << 20), flag=2))
        )
        await client.request(310, send_ext("Orders"))
    (said,) = [log for log in logs if log["event"] == "request refused"]
    assert "maxMessageSize" in said["reason"]


async def test_settings_that_change_while_running_have_their_effect(
    app: AppBroker, json_client: Client
) -> None:
    async def send() -> Command:
        return await json_client.request(310, send_ext("Orders"), b"x")

    assert (await send()).ext["TRACE_ON"] == "true"
    settings = app.settings
    topic = app.broker.topics.get("Orders")
    assert topic is not None
    ordered = replace(topic, order=True)
    app.broker.topics.put(ordered)
    assert (await send()).code == 0
    settings.trace_on = False
    settings.broker_permission = 4
    for listener in settings.listeners:
        listener({"traceOn", "brokerPermission"})
    assert (await send()).code == ResponseCode.NO_PERMISSION  # of an ordered topic alone
    app.broker.topics.put(replace(ordered, order=False))
    for _ in range(2):
        answer = await send()
        assert answer.code == 0 and answer.ext["TRACE_ON"] == "false"
        assert stored(app, answer.ext["msgId"]).property_map()["TRACE_ON"] == "false"


async def test_before_its_time_the_broker_takes_no_messages(tmp_path: Path) -> None:
    async with running_broker(tmp_path, start_accept_send_request_time_stamp=2**42) as app:
        client = await Client.connect(app)
        answer = await client.request(310, send_ext("Orders"))
        assert answer.code == ResponseCode.SYSTEM_ERROR and "2109" in (answer.remark or "")
        await client.close()


async def test_a_body_or_properties_that_are_too_large_are_refused(json_client: Client) -> None:
    await json_client.request(310, send_ext("Orders"))
    large = await json_client.request(310, send_ext("Orders"), bytes(4 * 1024 * 1024 + 1))
    assert large.code == ResponseCode.MESSAGE_ILLEGAL
    many = await json_client.request(310, send_ext("Orders", i="a\x01" + "v" * 33_000))
    assert many.code == ResponseCode.MESSAGE_ILLEGAL


# --- batches


async def test_a_batch_becomes_single_messages_with_following_offsets(
    app: AppBroker, client: Client
) -> None:
    parts = [(n, b"part-%d" % n, properties.encode({"KEYS": f"k{n}"})) for n in range(10)]
    for code in (320, 310):
        answer = await client.request(code, send_ext("Orders", m="true"), encode_batch(parts))
        assert answer.code == 0, answer.remark
        ids = answer.ext["msgId"].split(",")
        messages = [stored(app, message_id) for message_id in ids]
        assert [(m.flag, m.body, m.property_map()["KEYS"]) for m in messages] == [
            (n, b"part-%d" % n, f"k{n}") for n in range(10)
        ]
        first = int(answer.ext["queueOffset"])
        assert [m.queue_offset for m in messages] == list(range(first, first + 10))


@pytest.mark.parametrize(
    ("topic", "body", "more"),
    [
        ("%RETRY%cg", encode_batch([(0, b"x", "")]), {}),
        ("Orders", encode_batch([(0, b"x", "")]), {"f": "4"}),
        ("Orders", encode_batch([(0, b"x", "")]), {"i": "DELAY\x013\x02"}),
        ("Orders", encode_batch([(0, b"x", "DELAY\x013\x02")]), {}),
        ("Orders", encode_batch([(0, b"x", "TIMER_DELAY_SEC\x013\x02")]), {}),
        ("Orders", b"", {}),
        ("Orders", b"\x00\x00\x00\x10garbage-garbage!", {}),
        ("Orders", encode_batch([(0, b"x" * 100, "")])[:-20], {}),
        ("Orders", encode_batch([(0, bytes(1 << 20), "")] * 5), {}),
    ],
)
async def test_batches_that_cannot_be_are_refused_whole(
    app: AppBroker, json_client: Client, topic: str, body: bytes, more: dict[str, str]
) -> None:
    await json_client.request(310, send_ext("Orders"))
    before = app.broker.store.max_physical_offset
    answer = await json_client.request(320, send_ext(topic, m="true") | more, body)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL and answer.remark
    assert app.broker.store.max_physical_offset == before


# --- messages that go elsewhere


async def test_a_delayed_message_goes_to_the_schedule_topic(app: AppBroker, client: Client) -> None:
    text = properties.encode({"UNIQ_KEY": "u", "DELAY": "3"})
    for _ in range(2):
        answer = await client.request(310, send_ext("Orders", 1, i=text), b"later")
        assert answer.code == 0 and answer.ext["queueId"] == "1"
        message = stored(app, answer.ext["msgId"])
        assert (message.topic, message.queue_id) == ("SCHEDULE_TOPIC_XXXX", 2)
        assert message.property_map()["REAL_TOPIC"] == "Orders"


async def test_a_half_message_goes_to_the_half_topic(app: AppBroker, client: Client) -> None:
    text = properties.encode({"UNIQ_KEY": "u1", "TRAN_MSG": "true", "PGROUP": "pg"})
    answer = await client.request(310, send_ext("Orders", 1, i=text, f="4"), b"half")
    assert answer.code == 0 and answer.ext["transactionId"] == "u1"
    message = stored(app, answer.ext["msgId"])
    assert message.topic == "RMQ_SYS_TRANS_HALF_TOPIC"
    assert app.broker.store.max_offset("Orders", 1) == 0


async def test_the_last_retry_that_a_consumer_sends_becomes_a_dead_letter(
    app: AppBroker, json_client: Client
) -> None:
    for times, topic in ((2, "%RETRY%cg"), (3, "%DLQ%cg")):
        ext = send_ext("%RETRY%cg", j=str(times), l="2", i="UNIQ_KEY\x01u\x02")
        answer = await json_client.request(310, ext, b"failed", version=401)
        assert answer.code == 0, answer.remark
        assert stored(app, answer.ext["msgId"]).topic == topic


async def test_sends_are_counted_by_topic(app: AppBroker, client: Client) -> None:
    for topic in ("A", "B"):
        await client.request(310, send_ext(topic))
    await client.ask_all([client.command(310, send_ext("A")) for _ in range(10)])
    await client.ask_all([client.command(310, send_ext("AB"[n % 2])) for n in range(10)])
    counts = {topic: counted(app, "TOPIC_PUT_NUMS", topic) for topic in ("A", "B")}
    assert counts == {"A": 16, "B": 6}
    assert app.broker.stats.broker_put.nums == 22


async def test_sent_messages_can_be_pulled(client: Client) -> None:
    bodies = [b"%d" % n for n in range(50)]
    for body in bodies[:1]:
        await client.request(310, send_ext("Orders"), body)
    await client.ask_all([client.command(310, send_ext("Orders"), body) for body in bodies[1:]])
    answer = await client.request(11, pull_ext("Orders", maxMsgNums="100"))
    while answer.code != 0:
        answer = await client.request(11, pull_ext("Orders", maxMsgNums="100"))
    assert [message.body for message in decode_records(answer.body)] == bodies
