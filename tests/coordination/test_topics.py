"""Topics: what every broker has, what sends create, what operators change; topics.json."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from loop_turns import watched_turns
from peers.name_server import CALLS_MAX
from waiting import until

from aerobee.broker.base.clock import Clock
from aerobee.broker.base.refused import Refused
from aerobee.broker.services.config_files.json_file import load_json
from aerobee.broker.services.topics.config import TopicConfig
from aerobee.broker.services.topics.table import Topics
from aerobee.broker.settings import load_settings
from coordination.serving import Peer, Serving

Folder = Callable[[str], str]


def open_topics(path: str, **settings: Any) -> Topics:
    fixed = {"brokerName": "broker-a", "brokerClusterName": "C"}
    topics = Topics(path, load_settings(None, fixed | settings, {}), Clock())
    topics.load()
    return topics


def saved(path: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Path(path).read_text())
    return content


def test_a_new_broker_has_rocketmqs_boot_topics_on_disk(folder: Folder) -> None:
    open_topics(folder("topics.json"))
    table = saved(folder("topics.json"))["topicConfigTable"]
    queues = {name: (row["writeQueueNums"], row["perm"]) for name, row in table.items()}
    assert queues == {
        "TBW102": (8, 7),
        "SELF_TEST_TOPIC": (1, 6),
        "BenchmarkTest": (1024, 6),
        "C": (16, 7),
        "broker-a": (1, 7),
        "OFFSET_MOVED_EVENT": (1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 6),
        "C_REPLY_TOPIC": (1, 6),
        "rmq_sys_REVIVE_LOG_C": (8, 6),
        "rmq_sys_SYNC_BROKER_MEMBER_broker-a": (1, 1),
        "RMQ_SYS_TRANS_HALF_TOPIC": (1, 6),
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 6),
        "rmq_sys_wheel_timer": (1, 6),
    }


def test_a_send_creates_its_topic_with_the_lesser_number_of_queues(folder: Folder) -> None:
    topics = open_topics(folder("topics.json"))
    config = topics.create_on_send("orders", "TBW102", 4)
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (4, 4, 6)
    assert topics.create_on_send("wide", "TBW102", 99).write_queue_nums == 8
    assert topics.create_on_send("odd", "TBW102", -5).write_queue_nums == 1
    assert open_topics(folder("topics.json")).get("orders") == config


@pytest.mark.parametrize(
    ("default_topic", "settings", "reason"),
    [
        ("TBW102", {"autoCreateTopicEnable": "false"}, "autoCreateTopicEnable"),
        ("NoSuchTemplate", {}, "NoSuchTemplate"),
        ("SELF_TEST_TOPIC", {}, "not a template"),
        ("TBW102", {"maxTopics": 5}, "maxTopics=5"),
    ],
)
def test_a_topic_that_may_not_be_created_is_refused_with_the_reason(
    folder: Folder, default_topic: str, settings: dict[str, Any], reason: str
) -> None:
    topics = open_topics(folder("topics.json"), **settings)
    with pytest.raises(Refused, match=reason) as refused:
        topics.create_on_send("orders", default_topic, 4)
    assert refused.value.code == 17
    assert topics.get("orders") is None


def test_the_template_is_none_while_creation_is_off_even_from_an_old_file(folder: Folder) -> None:
    open_topics(folder("topics.json"))
    topics = open_topics(folder("topics.json"), autoCreateTopicEnable="false")
    template = topics.get("TBW102")
    assert template is not None
    assert template.perm == 6


def test_creation_that_was_off_can_be_on_again_after_a_restart(folder: Folder) -> None:
    open_topics(folder("topics.json"))
    open_topics(folder("topics.json"), autoCreateTopicEnable="false")
    topics = open_topics(folder("topics.json"))
    assert topics.create_on_send("orders", "TBW102", 4).perm == 6
    assert saved(folder("topics.json"))["topicConfigTable"]["TBW102"]["perm"] == 7


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "a\0", "x" * 128, "ä", "a.b", "a\n"])
def test_a_name_that_could_leave_its_folder_creates_nothing(folder: Folder, name: str) -> None:
    topics = open_topics(folder("topics.json"))
    with pytest.raises(Refused) as refused:
        topics.create_on_send(name, "TBW102", 4)
    assert refused.value.code == 29
    assert topics.get(name) is None


def test_every_change_gives_the_table_another_version_and_notifies_listeners(
    folder: Folder,
) -> None:
    topics = open_topics(folder("topics.json"))
    told: list[str] = []
    topics.on_change.append(told.append)
    versions = [topics.data_version.to_json()]
    topics.put(TopicConfig("T", 4, 4))
    versions.append(topics.data_version.to_json())
    topics.put(TopicConfig("T", 4, 4, perm=4))
    versions.append(topics.data_version.to_json())
    topics.put(TopicConfig("T", 4, 4, perm=4))  # nothing new
    topics.delete("T")
    versions.append(topics.data_version.to_json())
    assert told == ["T", "T", "T"]
    assert len({version["counter"] for version in versions}) == 4
    assert len({version["timestamp"] for version in versions}) == 4


def test_what_another_version_wrote_is_kept(folder: Folder) -> None:
    path = Path(folder("topics.json"))
    path.parent.mkdir()
    path.write_text(
        '{"dataVersion":{counter:41,"stateVersion":2,"timestamp":7},"futureKey":{"a":1},'
        '"topicConfigTable":{"old":{"topicName":"old","perm":2,"readQueueNums":3,'
        '"writeQueueNums":2,"order":true,"novelty":[1,2],"attributes":{"message.type":"FIFO"},},'
        '"../evil":{"topicName":"../evil"}}}'
    )
    topics = open_topics(str(path))
    old = topics.get("old")
    assert old is not None
    assert (old.read_queue_nums, old.write_queue_nums, old.perm, old.order) == (3, 2, 2, True)
    assert topics.get("../evil") is None
    assert topics.data_version.counter == 42
    content = saved(str(path))
    assert content["futureKey"] == {"a": 1}
    assert content["topicConfigTable"]["old"]["novelty"] == [1, 2]
    assert content["topicConfigTable"]["old"]["attributes"] == {"message.type": "FIFO"}
    assert "../evil" in content["topicConfigTable"]


async def create(peer: Peer, **fields: Any) -> Any:
    ext = {"defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
    more = {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false", "topic": "T"}
    return await peer.ask(17, ext | more | fields)


async def test_an_operator_creates_changes_reads_and_deletes_a_topic(
    serving: Serving, peer: Peer
) -> None:
    assert (await create(peer, attributes="+message.type=FIFO")).code == 0
    answer = await peer.ask(351, {"topic": "T"})
    assert json.loads(bytes(answer.body)) == {
        "attributes": {"message.type": "FIFO"},
        "order": False,
        "perm": 6,
        "readQueueNums": 4,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "T",
        "topicSysFlag": 0,
        "writeQueueNums": 4,
    }
    assert (await create(peer, readQueueNums=8, perm=4, attributes="-message.type")).code == 0
    changed = serving.broker.topics.get("T")
    assert changed is not None
    assert (changed.read_queue_nums, changed.perm, changed.attributes) == (8, 4, {})
    await serving.store("T", 1, b"hello")
    serving.broker.offsets.commit("g", "T", 1, 1)
    assert (await peer.ask(215, {"topic": "T"})).code == 0
    assert (await peer.ask(351, {"topic": "T"})).code == 17
    assert serving.broker.store.max_offset("T", 1) == 0
    assert serving.broker.offsets.query("g", "T", 1) == -1


@pytest.mark.parametrize(
    "fields",
    [
        {"topic": "../x"},
        {"topic": "TBW102"},
        {"topic": "rmq_sys_wheel_timer"},
        {"readQueueNums": -1},
        {"writeQueueNums": 1000000},
        {"perm": "six"},
        {"perm": 2**31},
        {"topicFilterType": "NO_TAG"},
        {"attributes": "+queue.type=BatchCQ"},
        {"attributes": "+no.such=1"},
        {"attributes": "message.type=FIFO"},
        {"attributes": "-message.type"},
    ],
)
async def test_a_topic_that_cannot_be_is_refused_with_a_sentence(
    serving: Serving, peer: Peer, fields: dict[str, Any]
) -> None:
    before = dict(serving.broker.topics.all())
    answer = await create(peer, **fields)
    assert answer.code == 29
    assert len(str(answer.remark)) > 20
    assert dict(serving.broker.topics.all()) == before


@pytest.mark.parametrize(
    "fields", [{"readQueueNums": 0, "writeQueueNums": 0}, {"perm": 99}, {"perm": -1}, {"perm": 0}]
)
async def test_odd_numbers_of_a_topic_are_taken_as_by_rocketmq(
    serving: Serving, peer: Peer, fields: dict[str, int]
) -> None:
    assert (await create(peer, **fields)).code == 0
    answer = await peer.ask(351, {"topic": "T"})
    assert json.loads(bytes(answer.body)).items() >= fields.items()


async def test_of_a_list_of_topics_all_are_made_or_none(serving: Serving, peer: Peer) -> None:
    good = TopicConfig("A", 2, 2).to_json()
    bad = TopicConfig("b/c", 2, 2).to_json()
    assert (await peer.ask(18, body={"topicConfigList": [good, bad]})).code == 29
    assert serving.broker.topics.get("A") is None
    assert (await peer.ask(18, body={"topicConfigList": [good]})).code == 0
    assert serving.broker.topics.get("A") == TopicConfig("A", 2, 2)


@pytest.mark.parametrize(
    ("code", "listed", "name"),
    [(18, "topicConfigList", "topicName"), (225, "groupConfigList", "groupName")],
)
async def test_a_long_list_of_topics_or_groups_does_not_keep_the_loop(
    serving: Serving, peer: Peer, code: int, listed: str, name: str
) -> None:
    """Each name is one thing to do, however often it comes; and all are done in slices."""
    repeated = [{name: "again", "x": number} for number in range(1000)]
    many = [{name: f"T{number}"} for number in range(1000)]
    with watched_turns() as turns:
        assert (await peer.ask(code, body={listed: repeated + many})).code == 0
    assert turns.longest < CALLS_MAX
    kept = serving.broker.topics.all() if code == 18 else serving.broker.groups.all()
    assert "T999" in kept and kept["again"].unknown == {"x": 999}


async def test_all_topics_come_whole_or_in_pages(serving: Serving, peer: Peer) -> None:
    whole = await peer.ask(21)
    table = json.loads(bytes(whole.body))["topicConfigTable"]
    assert whole.ext["totalTopicNum"] == str(len(table))
    seen: list[str] = []
    version = ""
    while len(seen) < len(table):
        ext = {"topicSeq": len(seen), "maxTopicNum": 4, "dataVersion": version}
        page = json.loads(bytes((await peer.ask(21, ext)).body))
        version = json.dumps(page["dataVersion"])
        seen += page["topicConfigTable"]
    assert seen == sorted(table)
    serving.broker.topics.put(TopicConfig("AAA"))
    ext = {"topicSeq": 8, "maxTopicNum": 4, "dataVersion": version}
    again = json.loads(bytes((await peer.ask(21, ext)).body))
    assert "AAA" in again["topicConfigTable"]  # changed meanwhile: restarts from the beginning


async def test_a_topics_status_has_first_end_and_newest_of_each_queue(
    serving: Serving, peer: Peer
) -> None:
    serving.broker.topics.put(TopicConfig("T", 1, 2))
    await serving.store("T", 1, b"one")
    stored = await serving.store("T", 1, b"two")
    answer = await peer.ask(202, {"topic": "T"})
    text = bytes(answer.body).decode()
    first = '{"lastUpdateTimestamp":0,"maxOffset":0,"minOffset":0}'
    second = f'{{"lastUpdateTimestamp":{stored.store_timestamp},"maxOffset":2,"minOffset":0}}'
    assert '{"brokerName":"broker-a","queueId":0,"topic":"T"}:' + first in text
    assert '{"brokerName":"broker-a","queueId":1,"topic":"T"}:' + second in text
    assert (await peer.ask(202, {"topic": "nope"})).code == 17


async def test_system_topics_are_listed(peer: Peer) -> None:
    names = json.loads(bytes((await peer.ask(305)).body))["topicList"]
    assert {"TBW102", "broker-a", "DefaultCluster", "SCHEDULE_TOPIC_XXXX"} <= set(names)


async def test_many_topics_made_at_once_are_all_on_disk_soon(serving: Serving) -> None:
    for number in range(300):
        serving.broker.topics.create_on_send(f"T{number}", "TBW102", 1)
    await serving.clock.advance(1)
    path = serving.root / "config" / "topics.json"
    await until(lambda: "T299" in (load_json(str(path)) or {}).get("topicConfigTable", {}))
    again = Topics(str(path), serving.broker.settings, serving.clock)
    again.load()
    assert {f"T{number}" for number in range(300)} <= set(again.all())
