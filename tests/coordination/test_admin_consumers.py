"""Consumers online, their progress, and what only they can answer."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from loop_turns import watched_turns
from peers.name_server import CALLS_MAX

from aerobee.broker.auth.model import GET
from aerobee.broker.auth.needs import Asked, body_names, topics_if_named
from aerobee.broker.handlers.admin import consumers, relays
from aerobee.broker.services.topics.config import TopicConfig
from aerobee.protocol.files.ids import encode_host, offset_message_id
from aerobee.protocol.files.record import decode_record
from aerobee.protocol.json import fastjson
from aerobee.protocol.json.fastjson import MessageQueue
from aerobee.protocol.wire.command import Command
from coordination.serving import Peer, Serving, heartbeat_body, wants


def body_of(answer: Command) -> Any:
    assert answer.code == 0, answer.remark
    return fastjson.loads(answer.body)


def queue(queue_id: int) -> MessageQueue:
    return MessageQueue("T", "broker-a", queue_id)


@pytest.fixture(autouse=True)
async def topic(serving: Serving) -> None:
    """Topic T: two messages in queue 0, one of them consumed by g."""
    serving.broker.topics.put(TopicConfig("T", 2, 2))
    serving.broker.groups.get("g")
    for body in (b"one", b"two"):
        await serving.store("T", 0, body)
    serving.broker.offsets.commit("g", "T", 0, 1)


async def test_the_connections_of_a_group_show_members_and_subscriptions(peer: Peer) -> None:
    await peer.ask(34, body=heartbeat_body("c1", "g", wants("T", "a||b", 5)))
    shown = body_of(await peer.ask(203, {"consumerGroup": "g"}))
    (member,) = shown["connectionSet"]
    assert (member["clientId"], member["language"], member["version"]) == ("c1", "JAVA", 409)
    assert member["clientAddr"].startswith("127.0.0.1:")
    assert (shown["consumeType"], shown["messageModel"], shown["consumeFromWhere"]) == (
        "CONSUME_PASSIVELY",
        "CLUSTERING",
        "CONSUME_FROM_LAST_OFFSET",
    )
    assert shown["subscriptionTable"]["T"] == {
        "classFilterMode": False,
        "codeSet": [97, 98],
        "expressionType": "TAG",
        "subString": "a||b",
        "subVersion": 5,
        "tagsSet": ["a", "b"],
        "topic": "T",
    }
    assert (await peer.ask(203, {"consumerGroup": "nobody"})).code == 206


async def test_progress_has_broker_consumer_and_pull_offsets(serving: Serving, peer: Peer) -> None:
    serving.broker.offsets.commit_pull("g", "T", 0, 2)
    serving.broker.stats.add_get("T", "g", 6, 600)
    await serving.clock.advance(3)
    stats = body_of(await peer.ask(208, {"consumerGroup": "g"}))
    assert set(stats["offsetTable"]) == {queue(0), queue(1)}
    row = stats["offsetTable"][queue(0)]
    assert (row["brokerOffset"], row["consumerOffset"], row["pullOffset"]) == (2, 1, 2)
    assert row["lastTimestamp"] > 0
    assert 1.0 < stats["consumeTps"] < 2.1


async def test_progress_leaves_out_what_a_group_online_subscribes_no_more(peer: Peer) -> None:
    await peer.ask(34, body=heartbeat_body("c1", "g", wants("Other")))
    assert body_of(await peer.ask(208, {"consumerGroup": "g"}))["offsetTable"] == {}
    asked = await peer.ask(208, {"consumerGroup": "g", "topicList": "T;nope"})
    assert len(body_of(asked)["offsetTable"]) == 2


async def test_a_topic_that_is_listed_again_and_again_is_reported_once(
    serving: Serving, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame holds millions of names: looked at one by one they would stop the broker."""
    looked_at: list[str] = []
    progress = consumers._progress

    def counted(broker: Any, group: str, topic: str, queue_nums: int) -> Any:
        looked_at.append(topic)
        return progress(broker, group, topic, queue_nums)

    monkeypatch.setattr(consumers, "_progress", counted)
    serving.broker.stats.add_get("T", "g", 6, 600)
    await serving.clock.advance(3)
    asked = await peer.ask(208, {"consumerGroup": "g", "topicList": "T;" * 1000})
    assert looked_at == ["T"]
    assert 1.0 < body_of(asked)["consumeTps"] < 2.1


def test_a_right_to_a_topic_that_is_listed_again_and_again_is_judged_once() -> None:
    command = Command(208, {"topicList": "T;" * 1000 + "other"})
    asked = Asked(command, "", lambda _: None, lambda _offset, _queue_offset: None)
    asks = list(topics_if_named("topicList", GET)(asked))
    assert [str(ask.resource) for ask in asks] == ["Topic:T", "Topic:other"]
    queues = [{"topic": "T", "queueId": number} for number in range(1000)]
    command = Command(41, {}, fastjson.dumps({"mqSet": queues}))
    asked = Asked(command, "", lambda _: None, lambda _offset, _queue_offset: None)
    asks = list(body_names("topic", list_key="mqSet", actions=(GET,))(asked))
    assert [str(ask.resource) for ask in asks] == ["Topic:T"]


async def test_the_progress_of_all_groups_is_reported(serving: Serving, peer: Peer) -> None:
    stats = body_of(await peer.ask(317, {"isOrder": "false"}))
    assert stats["totalDiff"] == 1
    assert stats["brokerAddr"].startswith("127.0.0.1:")
    of_group = [entry["g"] for entry in stats["consumeStatsList"] if "g" in entry]
    assert of_group[0][0]["offsetTable"][queue(0)]["consumerOffset"] == 1
    assert body_of(await peer.ask(317, {"isOrder": "true"}))["totalDiff"] == 0


async def test_the_progress_of_many_groups_does_not_keep_the_loop(
    serving: Serving, peer: Peer
) -> None:
    for number in range(200):
        serving.broker.groups.get(f"g{number}")
        serving.broker.offsets.commit(f"g{number}", "T", 0, 1)
    with watched_turns() as turns:
        answer = await peer.ask(317, {"isOrder": "false"})
    stats = body_of(answer)
    assert turns.longest < CALLS_MAX
    assert stats["totalDiff"] == 201
    assert sum(bool(rows) for entry in stats["consumeStatsList"] for rows in entry.values()) == 201


async def test_the_progress_of_many_groups_is_found_in_one_walk(
    serving: Serving, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand groups, each with a walk of its own, would block the broker for 20 s."""
    walks = 0

    class Table(dict[str, dict[int, int]]):
        def __iter__(self) -> Iterator[str]:
            nonlocal walks
            walks += 1
            return super().__iter__()

    offsets = serving.broker.offsets
    for number in range(30):
        serving.broker.groups.get(f"g{number}")
        offsets.commit(f"g{number}", "T", 0, 2)
    monkeypatch.setattr(offsets, "_table", Table(offsets._table))
    stats = body_of(await peer.ask(317, {"isOrder": "false"}))
    assert sum(bool(found) for entry in stats["consumeStatsList"] for found in entry.values()) == 31
    assert walks <= 1


async def test_who_reads_a_topic_and_what_a_group_reads(peer: Peer) -> None:
    await peer.ask(34, body=heartbeat_body("c1", "online", wants("T", "a")))
    assert body_of(await peer.ask(300, {"topic": "T"})) == {"groupList": ["g", "online"]}
    assert body_of(await peer.ask(343, {"group": "g"}))["topicList"] == ["T"]
    found = body_of(await peer.ask(345, {"group": "online", "topic": "T"}))
    assert found["subscriptionData"]["subString"] == "a"
    assert "subscriptionData" not in body_of(await peer.ask(345, {"group": "g", "topic": "T"}))


async def test_the_time_span_of_each_queue_is_reported(serving: Serving, peer: Peer) -> None:
    await serving.clock.advance(30)
    spans = body_of(await peer.ask(303, {"topic": "T", "group": "g"}))["consumeTimeSpanSet"]
    first = next(span for span in spans if span["messageQueue"]["queueId"] == 0)
    assert 0 < first["minTimeStamp"] <= first["consumeTimeStamp"] <= first["maxTimeStamp"]
    assert 29_000 < first["delayTime"] < 60_000
    assert len(first["minTimeStampStr"]) == len("2026-01-01 00:00:00:000")
    empty = next(span for span in spans if span["messageQueue"]["queueId"] == 1)
    assert (empty["minTimeStamp"], empty["maxTimeStamp"], empty["delayTime"]) == (-1, -1, 0)
    assert (await peer.ask(303, {"topic": "nope", "group": "g"})).code == 17


async def test_a_consumers_own_words_are_passed_on_unread(serving: Serving) -> None:
    async with serving.connect() as consumer, serving.connect() as admin:
        await consumer.ask(34, body=heartbeat_body("c1", "g", wants("T")))
        await consumer.notices(1)
        ext = {"consumerGroup": "g", "clientId": "c1", "jstackEnable": "false"}
        waiting = admin.start(307, ext)
        (asked,) = await consumer.notices(1)
        assert (asked.code, asked.ext) == (307, ext)
        consumer.answer(asked, 0, b'{"mqTable":{{"queueId":0}:{}}}')
        answer = await waiting
        assert (answer.code, bytes(answer.body)) == (0, b'{"mqTable":{{"queueId":0}:{}}}')


async def test_a_consumer_that_does_not_answer_is_given_up(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "RELAY_TIMEOUT_S", 0.05)
    async with serving.connect() as consumer, serving.connect() as admin:
        await consumer.ask(34, body=heartbeat_body("c1", "g", wants("T")))
        answer = await admin.ask(307, {"consumerGroup": "g", "clientId": "c1"})
        assert answer.code == 207
        assert "c1" in str(answer.remark)


async def test_a_consumer_that_goes_instead_of_answering_is_an_error(serving: Serving) -> None:
    async with serving.connect() as admin:
        async with serving.connect() as consumer:
            await consumer.ask(34, body=heartbeat_body("c1", "g", wants("T")))
            await consumer.notices(1)
            waiting = admin.start(307, {"consumerGroup": "g", "clientId": "c1"})
            await consumer.notices(1)
        assert (await waiting).code == 1


@pytest.mark.parametrize("version", [409, 50])
async def test_nobody_or_too_old_a_client_is_an_error_at_once(peer: Peer, version: int) -> None:
    peer.version = version
    if version == 50:
        await peer.ask(34, body=heartbeat_body("c1", "g", wants("T")))
    answer = await peer.ask(307, {"consumerGroup": "g", "clientId": "c1"})
    assert answer.code == 1
    assert ("too low" if version == 50 else "not online") in str(answer.remark)


async def test_a_message_is_consumed_directly_by_one_member(serving: Serving) -> None:
    stored = await serving.store("T", 1, b"again")
    message_id = offset_message_id(encode_host("127.0.0.1", serving.port), stored.physical_offset)
    async with serving.connect() as consumer, serving.connect() as admin:
        await consumer.ask(34, body=heartbeat_body("c1", "g", wants("T")))
        await consumer.notices(1)
        ext = {"consumerGroup": "g", "clientId": "c1", "msgId": message_id, "topic": "T"}
        waiting = admin.start(309, ext)
        (asked,) = await consumer.notices(1)
        assert asked.ext["brokerName"] == "broker-a"
        assert decode_record(asked.body).body == b"again"
        consumer.answer(asked, 0, {"consumeResult": "CR_SUCCESS"})
        assert json.loads(bytes((await waiting).body)) == {"consumeResult": "CR_SUCCESS"}
        assert (await admin.ask(309, ext | {"msgId": "nonsense"})).code == 29
        beyond = offset_message_id(encode_host("127.0.0.1", 1), 2**40)
        assert (await admin.ask(309, ext | {"msgId": beyond})).code == 1


async def test_the_offsets_in_consumers_memories_are_collected(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "STATUS_TIMEOUT_S", 0.5)
    ext = {"topic": "T", "group": "g"}
    async with serving.connect() as talks, serving.connect() as silent, serving.connect() as admin:
        assert (await admin.ask(223, ext)).code == 1
        await talks.ask(34, body=heartbeat_body("c1", "g", wants("T")))
        await silent.ask(34, body=heartbeat_body("c2", "g", wants("T")))
        waiting = admin.start(223, ext)
        *_, asked = await talks.notices(3)
        assert (asked.code, asked.ext) == (221, ext)
        talks.answer(asked, 0, {"messageQueueTable": {queue(0): 5}})
        assert body_of(await waiting)["consumerTable"] == {"c1": {queue(0): 5}}
