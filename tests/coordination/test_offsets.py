"""Consumers' progress: kept, queried, reset, cloned; consumerOffset.json."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from aerobee.broker.base.clock import Clock
from aerobee.broker.services.offsets import Offsets
from aerobee.broker.services.topics.config import TopicConfig
from aerobee.protocol.json import fastjson
from aerobee.protocol.json.fastjson import MessageQueue
from coordination.serving import Peer, Serving, heartbeat_body, wants

Folder = Callable[[str], str]
QUERY, UPDATE, RESET, CLONE = 14, 15, 222, 314


def open_offsets(path: str) -> Offsets:
    offsets = Offsets(path, Clock())
    offsets.load()
    return offsets


def queue(topic: str, queue_id: int) -> MessageQueue:
    return MessageQueue(topic, "broker-a", queue_id)


def test_offsets_are_there_again_after_a_restart(folder: Folder) -> None:
    offsets = open_offsets(folder("consumerOffset.json"))
    offsets.commit("g", "T", 0, 7)
    offsets.commit("g", "T", 3, 9)
    offsets.file.save()
    again = open_offsets(folder("consumerOffset.json"))
    assert again.queues_of("g", "T") == {0: 7, 3: 9}
    text = re.sub(r"\s", "", Path(folder("consumerOffset.json")).read_text())
    assert '"offsetTable":{"T@g":{0:7,3:9}}' in text


def test_offsets_that_are_taken_back_are_on_disk_at_once(folder: Folder) -> None:
    """A second power failure, seconds later: new messages have the offsets of those that the
    first one lost, and must be consumed."""
    offsets = open_offsets(folder("consumerOffset.json"))
    offsets.commit("g", "T", 0, 7)
    offsets.commit("g", "T", 3, 9)
    offsets.file.save()
    open_offsets(folder("consumerOffset.json")).reset_past_end(lambda _topic, _queue_id: 8)
    again = open_offsets(folder("consumerOffset.json"))
    again.reset_past_end(lambda _topic, _queue_id: 100)
    assert again.queues_of("g", "T") == {0: 7, 3: 8}


def test_offsets_of_either_spelling_are_read_and_strange_ones_left(folder: Folder) -> None:
    path = Path(folder("consumerOffset.json"))
    path.parent.mkdir()
    path.write_text(
        '{"offsetTable":{"T@g":{0:5,"1":6,2:-1,"x":3},"%RETRY%g@g":{0:1}},'
        '"groupTopicMap":{"g":["T"]},"lmqOffsetTable":{"q":1}}'
    )
    offsets = open_offsets(str(path))
    assert offsets.queues_of("g", "T") == {0: 5, 1: 6}
    assert offsets.topics_of("g") == ["%RETRY%g", "T"]
    offsets.file.save()
    assert fastjson.loads(path.read_bytes())["lmqOffsetTable"] == {"q": 1}


def test_a_commit_lower_than_before_is_kept_and_a_negative_one_is_not(folder: Folder) -> None:
    offsets = open_offsets(folder("consumerOffset.json"))
    assert offsets.commit("g", "T", 0, 10)
    assert offsets.commit("g", "T", 0, 4)
    assert offsets.query("g", "T", 0) == 4
    assert not offsets.commit("g", "T", 0, -1)
    assert not offsets.commit("g", "T", -1, 3)
    assert offsets.queues_of("g", "T") == {0: 4}
    assert offsets.query("nobody", "T", 0) == -1


def test_a_reset_holds_until_a_pull_has_heard_of_it(folder: Folder) -> None:
    offsets = open_offsets(folder("consumerOffset.json"))
    offsets.commit("g", "T", 0, 10)
    offsets.reset("g", "T", 0, 3)
    assert not offsets.commit("g", "T", 0, 11)
    assert offsets.query("g", "T", 0) == 3
    assert offsets.take_reset("g", "T", 0, 11) == 3
    assert offsets.take_reset("g", "T", 0, 3) is None
    assert offsets.commit("g", "T", 0, 4)
    offsets.reset("g", "T", 0, 9)
    assert offsets.take_reset("g", "T", 0, 9) is None  # it is there already
    assert offsets.commit("g", "T", 0, 10)


def test_what_a_group_has_fetched_goes_with_its_topic_and_with_the_group(folder: Folder) -> None:
    offsets = open_offsets(folder("consumerOffset.json"))
    offsets.commit_pull("g", "T", 0, 90)  # a consumer that commits elsewhere, or not at all
    offsets.commit_pull("g", "U", 0, 80)
    offsets.delete_topic("T")
    assert (offsets.query_pull("g", "T", 0), offsets.query_pull("g", "U", 0)) == (-1, 80)
    offsets.delete_group("g")
    assert offsets.query_pull("g", "U", 0) == -1


async def test_offsets_are_saved_within_five_seconds(serving: Serving) -> None:
    path = serving.root / "config" / "consumerOffset.json"
    serving.broker.offsets.commit("g", "T", 0, 7)
    await serving.clock.advance(1)
    assert not path.exists()
    await serving.clock.advance(5)
    await until(path.exists)
    assert open_offsets(str(path)).query("g", "T", 0) == 7


async def test_a_new_group_starts_a_young_queue_at_zero(serving: Serving, peer: Peer) -> None:
    serving.broker.topics.put(TopicConfig("T", 2, 2))
    await serving.store("T", 0, b"one")
    ext = {"consumerGroup": "g", "topic": "T", "queueId": 0}
    answer = await peer.ask(QUERY, ext)
    assert (answer.code, answer.ext) == (0, {"offset": "0"})
    assert (await peer.ask(QUERY, ext | {"queueId": 1})).ext == {"offset": "0"}
    assert (await peer.ask(QUERY, ext | {"setZeroIfNotFound": "false"})).code == 22
    assert (await peer.ask(QUERY, ext | {"topic": "nope"})).code == 22
    assert (await peer.ask(QUERY, ext | {"queueId": -1})).code == 22
    assert (await peer.ask(QUERY, {"consumerGroup": "g", "topic": "T"})).code == 29


async def test_a_commit_is_answered_and_kept(serving: Serving, peer: Peer) -> None:
    serving.broker.topics.put(TopicConfig("T", 2, 2))
    ext = {"consumerGroup": "g", "topic": "T", "queueId": 1, "commitOffset": 12}
    assert (await peer.ask(UPDATE, ext)).code == 0
    assert (await peer.ask(QUERY, ext)).ext == {"offset": "12"}
    assert (await peer.ask(UPDATE, ext | {"commitOffset": -1})).code == 0
    assert serving.broker.offsets.query("g", "T", 1) == 12
    peer.tell(UPDATE, ext | {"commitOffset": 13})
    assert (await peer.ask(QUERY, ext)).ext == {"offset": "13"}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "nope"}, 17),
        ({"consumerGroup": "a/b"}, 26),
        ({"consumerGroup": "x" * 200}, 26),
        ({"queueId": -1}, 0),
        ({"queueId": 1000000}, 0),
        ({"queueId": "one"}, 29),
        ({"commitOffset": 2**63}, 29),
    ],
)
async def test_a_commit_that_makes_no_sense_leaves_nothing(
    serving: Serving, peer: Peer, changes: dict[str, Any], code: int
) -> None:
    serving.broker.topics.put(TopicConfig("T", 2, 2))
    ext = {"consumerGroup": "g", "topic": "T", "queueId": 1, "commitOffset": 12}
    answer = await peer.ask(UPDATE, ext | changes)
    assert answer.code == code
    assert len(str(answer.remark)) > 20
    assert list(serving.broker.offsets.pairs()) == []


async def test_a_commit_without_the_right_to_make_groups_is_refused(tmp_path: Path) -> None:
    async with (
        Serving(tmp_path, autoCreateSubscriptionGroup="false") as serving,
        serving.connect() as peer,
    ):
        serving.broker.topics.put(TopicConfig("T", 2, 2))
        ext = {"consumerGroup": "g", "topic": "T", "queueId": 1, "commitOffset": 12}
        assert (await peer.ask(UPDATE, ext)).code == 26


async def prepared(serving: Serving) -> list[int]:
    """Topic T with three messages a second apart in queue 0; their store times."""
    serving.broker.topics.put(TopicConfig("T", 2, 2))
    serving.broker.groups.get("g")
    times = []
    for body in (b"one", b"two", b"three"):
        times.append((await serving.store("T", 0, body)).store_timestamp)
        await serving.clock.advance(1)
    return times


async def test_a_group_is_reset_to_a_time_to_the_start_and_to_the_end(
    serving: Serving, peer: Peer
) -> None:
    times = await prepared(serving)
    ext = {"group": "g", "topic": "T", "isForce": "true"}
    for moment, offset in ((times[1], 1), (0, 0), (-1, 3), (times[2] + 1, 3)):
        answer = await peer.ask(RESET, ext | {"timestamp": moment})
        assert answer.code == 0
        table = fastjson.loads(answer.body)["offsetTable"]
        assert table == {queue("T", 0): offset, queue("T", 1): 0}
        assert serving.broker.offsets.query("g", "T", 0) == offset


async def test_one_queue_is_reset_to_an_offset_within_its_bounds(
    serving: Serving, peer: Peer
) -> None:
    await prepared(serving)
    ext = {"group": "g", "topic": "T", "timestamp": -1, "isForce": "true", "queueId": 0}
    answer = await peer.ask(RESET, ext | {"offset": 2})
    assert fastjson.loads(answer.body)["offsetTable"] == {queue("T", 0): 2}
    for offset, code in ((4, 1), (-7, 1)):
        answer = await peer.ask(RESET, ext | {"offset": offset})
        assert answer.code == code
        assert "range [0-3]" in str(answer.remark)
    answer = await peer.ask(RESET, ext | {"queueId": 9})
    assert (answer.code, fastjson.loads(answer.body)["offsetTable"]) == (0, {})
    assert (await peer.ask(RESET, ext | {"queueId": 9, "offset": 5})).code == 1
    assert (await peer.ask(RESET, ext | {"topic": "nope"})).code == 17
    assert (await peer.ask(RESET, ext | {"group": "nope"})).code == 26


@pytest.mark.parametrize(
    ("language", "version", "pushed"),
    [("JAVA", 409, True), ("CPP", 63, True), ("JAVA", 513, False)],
)
async def test_older_clients_get_a_reset_at_once(
    serving: Serving, language: str, version: int, pushed: bool
) -> None:
    await prepared(serving)
    async with serving.connect() as consumer, serving.connect() as admin:
        consumer.language, consumer.version = language, version
        await consumer.ask(34, body=heartbeat_body("c1", "g", wants("T")))
        await consumer.notices(1)
        ext = {"group": "g", "topic": "T", "timestamp": 0, "isForce": "true"}
        await admin.ask(RESET, ext)
        if not pushed:
            await consumer.ask(38, {"consumerGroup": "g"})
            assert consumer.asked.empty()
            return
        (push,) = await consumer.notices(1)
        assert (push.code, push.is_oneway) == (220, True)
        assert push.ext["topic"] == "T"
        table = fastjson.loads(push.body)["offsetTable"]
        if language == "CPP":
            first = {"brokerName": "broker-a", "offset": 0, "queueId": 0, "topic": "T"}
            assert table == [first, first | {"queueId": 1}]
        else:
            assert table == {queue("T", 0): 0, queue("T", 1): 0}


async def test_without_resets_by_the_server_only_clients_online_are_moved(tmp_path: Path) -> None:
    async with (
        Serving(tmp_path, useServerSideResetOffset="false") as serving,
        serving.connect() as consumer,
        serving.connect() as admin,
    ):
        await prepared(serving)
        ext = {"group": "g", "topic": "T", "timestamp": -1, "isForce": "false"}
        assert (await admin.ask(RESET, ext)).code == 1
        serving.broker.offsets.commit("g", "T", 0, 1)
        serving.broker.offsets.commit("g", "T", 1, 0)
        assert (await admin.ask(RESET, ext)).code == 206
        await consumer.ask(34, body=heartbeat_body("c1", "g", wants("T")))
        await consumer.notices(1)
        answer = await admin.ask(RESET, ext)
        assert fastjson.loads(answer.body)["offsetTable"][queue("T", 0)] == 1  # moves back only
        answer = await admin.ask(RESET, ext | {"isForce": "true"})
        assert fastjson.loads(answer.body)["offsetTable"][queue("T", 0)] == 3
        assert [push.code for push in await consumer.notices(2)] == [220, 220]


async def test_a_groups_progress_is_cloned(serving: Serving, peer: Peer) -> None:
    await prepared(serving)
    serving.broker.offsets.commit("g", "T", 0, 2)
    assert (await peer.ask(CLONE, {"srcGroup": "g", "destGroup": "h", "offline": "true"})).code == 0
    assert serving.broker.offsets.queues_of("h", "T") == {0: 2}
    assert (await peer.ask(CLONE, {"srcGroup": "g", "destGroup": "a/b"})).code == 29


def test_cloned_progress_counts_more_than_a_reset_that_the_group_has_not_heard_of(
    folder: Folder,
) -> None:
    offsets = open_offsets(folder("consumerOffset.json"))
    offsets.commit("g", "T", 0, 7)
    offsets.reset("copy", "T", 0, 3)
    offsets.clone("g", "copy", "T")
    assert offsets.query("copy", "T", 0) == 7
    assert offsets.take_reset("copy", "T", 0, 7) is None


async def test_corrections_are_the_least_offsets_of_all_groups(
    serving: Serving, peer: Peer
) -> None:
    await prepared(serving)
    for group, offset in (("a", 5), ("b", 3), ("c", 1)):
        serving.broker.offsets.commit(group, "T", 0, offset)
    ext = {"compareGroup": "a", "topic": "T", "filterGroups": "c"}
    answer = await peer.ask(308, ext)
    assert fastjson.loads(answer.body)["correctionOffsets"] == {0: 3}
    answer = await peer.ask(308, ext | {"compareGroup": "c"})
    assert fastjson.loads(answer.body)["correctionOffsets"] == {0: 2**63 - 1}


async def test_replicas_read_both_tables(serving: Serving, peer: Peer) -> None:
    serving.broker.offsets.commit("g", "T", 0, 2)
    answer = await peer.ask(43)
    assert fastjson.loads(answer.body)["offsetTable"] == {"T@g": {0: 2}}
    assert "offsetTable" in json.loads(bytes((await peer.ask(45)).body))
