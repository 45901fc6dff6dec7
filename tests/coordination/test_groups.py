"""Consumer groups: boot groups, creation by use, operators' changes; subscriptionGroup.json."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.base.clock import Clock
from aerobee.broker.services.groups.config import GroupConfig
from aerobee.broker.services.groups.table import Groups
from aerobee.broker.services.topics.config import TopicConfig
from aerobee.broker.settings import load_settings
from coordination.serving import Peer, Serving

Folder = Callable[[str], str]


def open_groups(path: str, **settings: Any) -> Groups:
    groups = Groups(path, load_settings(None, settings, {}), Clock())
    groups.load()
    return groups


def test_a_group_is_made_on_its_first_use_and_found_after_a_restart(folder: Folder) -> None:
    groups = open_groups(folder("subscriptionGroup.json"))
    assert groups.find("g") is None
    made = groups.get("g")
    assert made == GroupConfig("g")
    assert open_groups(folder("subscriptionGroup.json")).find("g") == made


def test_the_file_has_rocketmqs_shape(folder: Folder) -> None:
    open_groups(folder("subscriptionGroup.json"))
    content = json.loads(Path(folder("subscriptionGroup.json")).read_text())
    assert set(content) == {"crc32", "dataVersion", "forbiddenTable", "subscriptionGroupTable"}
    assert content["subscriptionGroupTable"]["TOOLS_CONSUMER"] == {
        "attributes": {},
        "brokerId": 0,
        "consumeBroadcastEnable": True,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "consumeMessageOrderly": False,
        "consumeTimeoutMinute": 15,
        "groupName": "TOOLS_CONSUMER",
        "groupRetryPolicy": {"type": "CUSTOMIZED"},
        "groupSysFlag": 0,
        "notifyConsumerIdsChangedEnable": True,
        "retryMaxTimes": 16,
        "retryQueueNums": 1,
        "whichBrokerWhenConsumeSlowly": 1,
    }


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("g", {"autoCreateSubscriptionGroup": "false"}),
        ("g", {"maxGroups": 8}),
        ("a/b", {}),
        ("x" * 121, {}),
        ("", {}),
    ],
)
def test_a_group_that_may_not_be_made_is_not(
    folder: Folder, name: str, settings: dict[str, Any]
) -> None:
    groups = open_groups(folder("subscriptionGroup.json"), **settings)
    assert groups.get(name) is None
    assert groups.find(name) is None


def test_what_another_version_wrote_is_kept(folder: Folder) -> None:
    path = Path(folder("subscriptionGroup.json"))
    path.parent.mkdir()
    path.write_text(
        '{"dataVersion":{"counter":5,"timestamp":9},"forbiddenTable":{"g":{"T":4,"U":8}},'
        '"subscriptionGroupTable":{"g":{"groupName":"g","retryMaxTimes":3,"novelty":1,'
        '"groupRetryPolicy":{"type":"EXPONENTIAL"}}},"later":2}'
    )
    groups = open_groups(str(path))
    assert groups.is_forbidden("g", "T")
    assert not groups.is_forbidden("g", "U")
    group = groups.find("g")
    assert group is not None
    assert group.retry_max_times == 3
    groups.get("another")
    content = json.loads(path.read_text())
    assert content["forbiddenTable"] == {"g": {"T": 4, "U": 8}}
    assert content["later"] == 2
    assert content["subscriptionGroupTable"]["g"]["novelty"] == 1
    assert content["subscriptionGroupTable"]["g"]["groupRetryPolicy"] == {"type": "EXPONENTIAL"}


async def test_an_operator_makes_reads_and_deletes_a_group(serving: Serving, peer: Peer) -> None:
    body = GroupConfig("g", retry_max_times=3, consume_enable=False).to_json()
    assert (await peer.ask(200, body=body)).code == 0
    answer = await peer.ask(352, {"group": "g"})
    assert json.loads(bytes(answer.body)) == body
    table = json.loads(bytes((await peer.ask(201)).body))["subscriptionGroupTable"]
    assert table["g"] == body
    serving.broker.offsets.commit("g", "T", 0, 5)
    assert (await peer.ask(207, {"groupName": "g", "removeOffset": "true"})).code == 0
    answer = await peer.ask(352, {"group": "g"})  # the defaults of its next use
    assert json.loads(bytes(answer.body)) == GroupConfig("g").to_json()
    assert serving.broker.groups.find("g") is None
    assert (await peer.ask(352, {"group": "a/b"})).code == 26
    assert serving.broker.offsets.query("g", "T", 0) == -1


async def test_deleting_a_group_keeps_its_offsets_unless_told(serving: Serving, peer: Peer) -> None:
    serving.broker.groups.get("g")
    serving.broker.offsets.commit("g", "T", 0, 5)
    assert (await peer.ask(207, {"groupName": "g"})).code == 0
    assert serving.broker.offsets.query("g", "T", 0) == 5


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[1]",
        {"groupName": "a/b"},
        {"groupName": "h", "retryMaxTimes": 10**30},
        {"groupName": "h", "brokerId": -(2**31) - 1},
        {"groupName": "x" * 121},
        {},
    ],
)
async def test_a_group_that_cannot_be_is_refused(serving: Serving, peer: Peer, body: Any) -> None:
    before = dict(serving.broker.groups.all())
    answer = await peer.ask(200, body=body)
    assert answer.code == 29
    assert answer.remark
    assert dict(serving.broker.groups.all()) == before


@pytest.mark.parametrize(
    "changes",
    [{"retryQueueNums": -1}, {"retryQueueNums": 100000}, {"retryMaxTimes": -7}],
)
async def test_odd_numbers_of_retries_are_taken_as_by_rocketmq(
    serving: Serving, peer: Peer, changes: dict[str, int]
) -> None:
    assert (await peer.ask(200, body={"groupName": "g"} | changes)).code == 0
    assert json.loads(bytes((await peer.ask(352, {"group": "g"})).body)).items() >= changes.items()
    beat = {"clientID": "c", "consumerDataSet": [{"groupName": "g"}]}
    assert (await peer.ask(34, body=beat)).code == 0
    retries = serving.broker.topics.get("%RETRY%g")
    assert retries is not None
    assert 1 <= retries.queue_nums <= serving.broker.settings.max_queue_nums


async def test_a_list_of_groups_is_made_whole_or_not(serving: Serving, peer: Peer) -> None:
    entries = [{"groupName": "g1"}, {"groupName": "g/2"}]
    assert (await peer.ask(225, body={"groupConfigList": entries})).code == 29
    assert serving.broker.groups.find("g1") is None
    assert (await peer.ask(225, body={"groupConfigList": entries[:1]})).code == 0
    assert serving.broker.groups.find("g1") == GroupConfig("g1")


async def test_an_operator_forbids_a_group_a_topic(serving: Serving, peer: Peer) -> None:
    serving.broker.groups.get("g")
    serving.broker.topics.put(TopicConfig("T"))
    ext = {"group": "g", "topic": "T"}
    answer = await peer.ask(353, ext | {"readable": "false"})
    assert json.loads(bytes(answer.body)) == {"group": "g", "readable": False, "topic": "T"}
    assert serving.broker.groups.is_forbidden("g", "T")
    await peer.ask(353, ext | {"readable": "true"})
    answer = await peer.ask(353, ext)
    assert json.loads(bytes(answer.body))["readable"] is True
