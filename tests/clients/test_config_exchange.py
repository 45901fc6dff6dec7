"""Topics, groups and offsets made here are Apache's when it takes over the folder, and back."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from peers.aerobee_broker import AerobeeBroker
from peers.apache import VERSIONS, ApacheBroker
from peers.wire import Wire

pytestmark = pytest.mark.apache

GROUP = {
    "groupName": "XG",
    "consumeEnable": True,
    "consumeFromMinEnable": True,
    "consumeBroadcastEnable": True,
    "retryQueueNums": 1,
    "retryMaxTimes": 7,
    "brokerId": 0,
    "whichBrokerWhenConsumeSlowly": 1,
    "notifyConsumerIdsChangedEnable": False,
}


def make(wire: Wire, topic: str) -> None:
    """A topic, a group and an offset, by the requests that mqadmin and consumers send."""
    fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": "3", "perm": "6"}
    more = {"writeQueueNums": "2", "topicFilterType": "SINGLE_TAG", "order": "false"}
    assert wire.request(17, {**fields, **more, "topicSysFlag": "0"}).code == 0
    assert wire.request(200, {}, json.dumps(GROUP).encode()).code == 0
    commit = {"consumerGroup": "XG", "topic": topic, "queueId": "1", "commitOffset": "41"}
    assert wire.request(15, commit).code == 0


def check(wire: Wire, topic: str) -> None:
    found = topics(wire)[topic]
    assert (found["readQueueNums"], found["writeQueueNums"], found["perm"]) == (3, 2, 6)
    groups = json.loads(wire.request(201, {}).body)["subscriptionGroupTable"]
    assert {key: groups["XG"][key] for key in GROUP} == GROUP
    asked = {"consumerGroup": "XG", "topic": topic, "queueId": "1"}
    assert wire.request(14, asked).ext["offset"] == "41"


def topics(wire: Wire) -> dict[str, Any]:
    table: dict[str, Any] = json.loads(wire.request(21, {}).body)["topicConfigTable"]
    return table


@pytest.mark.parametrize("version", VERSIONS)
def test_the_config_folder_goes_to_apache_and_back(tmp_path: Path, version: str) -> None:
    ours = AerobeeBroker(tmp_path, brokerName="broker-a")
    with ours:
        with Wire(ours.broker) as wire:
            make(wire, "Here")
        ours.stop()
    with ApacheBroker(version, tmp_path) as theirs:
        with Wire(theirs.broker) as wire:
            check(wire, "Here")
            make(wire, "There")
            known_there = topics(wire)
        theirs.stop()
    before = (tmp_path / "store" / "config" / "topics.json").read_text()
    with ours:
        with Wire(ours.broker) as wire:
            check(wire, "Here")
            check(wire, "There")
            assert known_there.keys() <= topics(wire).keys()
            version_now = json.loads(wire.request(21, {}).body)["dataVersion"]["counter"]
        ours.stop()
    counter = re.search(r'"counter":(\d+)', before)
    assert counter is not None
    assert version_now >= int(counter.group(1))
