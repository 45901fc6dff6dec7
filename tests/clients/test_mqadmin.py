"""Apache's own mqadmin of both versions against the broker. It always exits 0: its text counts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from peers.java_client import JavaClient
from peers.tools import wait_for
from peers.under_test import Broker
from peers.wire import Wire

pytestmark = pytest.mark.apache

CLUSTER = "DefaultCluster"


@dataclass
class Admin:
    """mqadmin of one version, pointed at one broker."""

    java: JavaClient
    broker: Broker
    broker_name: str

    def run(self, command: str, *args: str) -> str:
        """The text of a command, without what its logging says of itself."""
        text = self.java.admin(command, "-n", self.broker.namesrv, *args)
        noise = re.compile(r"RocketMQLog|\|-(INFO|WARN)")
        return "\n".join(line for line in text.splitlines() if not noise.search(line))

    def table(self, command: str, *args: str) -> list[list[str]]:
        """The words of each row under a head that begins with #; none without such a head."""
        lines = self.run(command, *args).splitlines()
        heads = [number for number, line in enumerate(lines) if line.startswith("#")]
        start = heads[0] if heads else len(lines)
        return [line.split() for line in lines[start + 1 :] if line.strip()]


@pytest.fixture(scope="module")
def admin(java: JavaClient, broker: Broker) -> Admin:
    with Wire(broker.namesrv) as wire:
        route = wire.request(105, {"topic": "TBW102", "acceptStandardJsonOnly": "true"})
    found = re.search(rb'"brokerName":"([^"]+)"', route.body)
    assert found is not None
    return Admin(java, broker, found.group(1).decode())


@pytest.fixture(scope="module")
def topic(admin: Admin) -> Iterator[str]:
    """A topic with two queues, made and removed by mqadmin."""
    topic = f"Admin_{admin.java.version.replace('.', '_')}"
    made = admin.run("updateTopic", "-b", admin.broker.broker, "-t", topic, "-r", "2", "-w", "2")
    assert f"create topic to {admin.broker.broker} success" in made
    yield topic
    gone = admin.run("deleteTopic", "-c", CLUSTER, "-t", topic)
    assert f"delete topic [{topic}] from cluster [{CLUSTER}] success" in gone
    assert topic not in admin.run("topicList").split()


def test_a_topic_is_listed_routed_changed_and_has_a_status(admin: Admin, topic: str) -> None:
    assert topic in admin.run("topicList").split()
    assert '"writeQueueNums":2' in admin.run("topicRoute", "-t", topic)
    status = admin.table("topicStatus", "-t", topic)
    assert [row[:3] for row in status[:2]] == [
        [admin.broker_name, "0", "0"],
        [admin.broker_name, "1", "0"],
    ]
    assert CLUSTER in admin.run("topicClusterList", "-t", topic)
    perm = ("updateTopicPerm", "-b", admin.broker.broker, "-t", topic, "-p")
    assert "update topic perm from 6 to 4" in admin.run(*perm, "4")
    assert '"perm":4' in admin.run("topicRoute", "-t", topic)
    assert "update topic perm from 4 to 6" in admin.run(*perm, "6")


def test_the_broker_shows_itself_and_its_settings(admin: Admin) -> None:
    (row,) = [row for row in admin.table("clusterList") if row[1] == admin.broker_name]
    assert row[0] == CLUSTER
    assert row[3] == admin.broker.broker
    (totals,) = [row for row in admin.table("clusterList", "-m") if row[1] == admin.broker_name]
    assert all(word.isdigit() for word in totals[2:])
    status = admin.run("brokerStatus", "-b", admin.broker.broker)
    for key in ("putTps", "commitLogMaxOffset", "msgPutTotalTodayNow", "runtime"):
        assert re.search(rf"^{key}\s*: \S", status, re.MULTILINE)
    if admin.java.version.startswith("5"):  # 4.x has no such command
        assert re.search(r"#SlaveNum\s+0", admin.run("haStatus", "-b", admin.broker.broker))
    config = admin.run("getBrokerConfig", "-b", admin.broker.broker)
    assert re.search(rf"brokerName\s+=\s+{re.escape(admin.broker_name)}", config)


def test_a_live_setting_is_changed_and_another_refused(admin: Admin) -> None:
    where = ("-b", admin.broker.broker)
    done = admin.run("updateBrokerConfig", *where, "-k", "shortPollingTimeMills", "-v", "900")
    assert "update broker config success" in done
    assert re.search(r"shortPollingTimeMills\s+=\s+900", admin.run("getBrokerConfig", *where))
    refused = admin.run("updateBrokerConfig", *where, "-k", "brokerConfigPath", "-v", "/x")
    assert "CODE: 16" in refused


def test_a_group_is_made_shown_and_deleted(admin: Admin, name: str) -> None:
    group = f"G_{name}"[:100]
    where = ("-b", admin.broker.broker, "-g", group)
    assert "success" in admin.run("updateSubGroup", *where, "-r", "7")
    assert re.search(r"retryMaxTimes\s+=\s+7", admin.run("getConsumerConfig", "-g", group))
    assert f"delete subscription group [{group}]" in admin.run("deleteSubGroup", *where)
    assert "retryMaxTimes" not in admin.run("getConsumerConfig", "-g", group)


def test_a_message_is_sent_and_found_in_every_way(admin: Admin, topic: str) -> None:
    (row,) = admin.table("sendMessage", "-t", topic, "-p", "hello", "-k", "key1", "-c", "red")
    assert row[2] == "SEND_OK"
    queue, unique_id = row[1], row[3]
    found = admin.run("queryMsgByUniqueKey", "-t", topic, "-i", unique_id)
    assert re.search(r"Tags:\s+\[red\]", found)
    by_key = admin.table("queryMsgByKey", "-t", topic, "-k", "key1")
    assert [line[0] for line in by_key] == [unique_id]
    place = ("-t", topic, "-b", admin.broker_name, "-i", queue, "-o", "0")  # its queue's first
    offset_id = re.search(r"OffsetID:\s+(\w+)", admin.run("queryMsgByOffset", *place))
    assert offset_id is not None
    by_id = ("-t", topic) if admin.java.version.startswith("5") else ()
    found = admin.run("queryMsgById", *by_id, "-i", offset_id.group(1))
    assert re.search(r"Keys:\s+\[key1\]", found)
    assert unique_id in admin.run("printMsg", "-t", topic)
    where = ("-t", topic, "-a", admin.broker_name, "-i", queue, "-p", "true")
    assert unique_id in admin.run("printMsgByQueue", *where)
    assert "Consume ok" in admin.run("consumeMessage", "-t", topic)
    entries = ("-t", topic, "-q", queue, "-i", "0", "-c", "5", "-b", admin.broker.broker)
    assert "tagsCode=112785" in admin.run("queryCq", *entries)
    nothing = admin.run("queryMsgByKey", "-t", topic, "-k", "nosuchkey")
    assert "CODE: 208" in nothing


def ends(admin: Admin, topic: str) -> int:
    """How many messages the topic has had."""
    return sum(int(row[3]) for row in admin.table("topicStatus", "-t", topic)[:2])


def test_a_group_at_work_is_shown_from_all_sides(admin: Admin, topic: str) -> None:
    java, group = admin.java, f"G{topic}"
    namesrv = admin.broker.namesrv
    before = ends(admin, topic)
    java.producer(namesrv, f"p{topic}", group=f"P{topic}")
    sent = java.send(f"p{topic}", topic, 4)
    java.consumer(namesrv, f"c{topic}", group, topic)
    java.wait_messages(f"c{topic}", before + 4)

    def committed() -> bool:
        rows = admin.table("consumerProgress", "-g", group)
        mine = [row for row in rows if row[0] == topic]
        return sum(int(row[4]) for row in mine) == before + 4

    wait_for(committed, timeout=40, what="the consumer's commit")
    assert any(row[0] == group and row[1] == "1" for row in admin.table("consumerProgress"))
    connections = admin.table("consumerConnection", "-g", group)
    assert ["ConsumeType:", "CONSUME_PASSIVELY"] in connections
    client_id = connections[0][0]
    where = ("-t", topic) if java.version.startswith("5") else ()
    direct = ("-i", sent[0]["offsetId"], "-g", group, "-d", client_id)
    assert "CR_SUCCESS" in admin.run("queryMsgById", *where, *direct)
    status = admin.run("consumerStatus", "-g", group)
    assert "Rebalance OK" in status
    assert "Same subscription in the same group" in status
    producers = admin.run("producerConnection", "-g", f"P{topic}", "-t", topic)
    assert re.search(r"^0001 ", producers, re.MULTILINE)
    assert f"P{topic}" in admin.run("producer", "-b", admin.broker.broker)
    stats = admin.table("brokerConsumeStats", "-b", admin.broker.broker)
    assert sum(int(row[5]) for row in stats if row[:2] == [topic, group]) == before + 4
    (row,) = [row for row in admin.table("statsAll", "-t", topic) if row[0] == topic]
    assert row[1:3] == [group, "0"]
    assert row[5:7] == [str(before + 4)] * 2
    clone = ("-s", group, "-d", f"{group}2", "-t", topic, "-o", "true")
    assert "clone group offset success" in admin.run("cloneGroupOffset", *clone)
    moved = admin.table("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")
    assert sorted(row[1:] for row in moved) == [["0", "0"], ["1", "0"]]
    java.wait_messages(f"c{topic}", 2 * (before + 4), timeout=60)
    java.stop(f"c{topic}", f"p{topic}")
    skipped = admin.table("resetOffsetByTime", "-g", group, "-t", topic, "-s", "-1")
    assert sum(int(row[2]) for row in skipped) == before + 4
    unknown = admin.run("resetOffsetByTime", "-g", "nosuchgroup", "-t", topic, "-s", "0")
    assert "CODE: 26" in unknown


def test_cleaning_succeeds_and_removes_nothing_in_use(admin: Admin, topic: str) -> None:
    before = admin.table("topicStatus", "-t", topic)
    for command in ("cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"):
        assert "success" in admin.run(command, "-b", admin.broker.broker)
    assert admin.table("topicStatus", "-t", topic) == before
    assert any(int(row[3]) > 0 for row in before[:2]), "the topic had no message to lose"


def test_write_permission_is_revoked_and_restored(admin: Admin, topic: str) -> None:
    try:
        assert "OK" in admin.run("wipeWritePerm", "-b", admin.broker_name)
        assert '"perm":4' in admin.run("topicRoute", "-t", topic)
    finally:
        assert "OK" in admin.run("addWritePerm", "-b", admin.broker_name)
    assert '"perm":6' in admin.run("topicRoute", "-t", topic)


def test_key_values_and_order_configurations_are_kept_by_the_name_service(
    admin: Admin, topic: str
) -> None:
    item = ("-s", "SPACE", "-k", topic)
    assert "success" in admin.run("updateKvConfig", *item, "-v", "value")
    assert "success" in admin.run("deleteKvConfig", *item)
    order = ("-t", topic)
    assert "success" in admin.run(
        "updateOrderConf", *order, "-m", "put", "-v", f"{admin.broker_name}:2"
    )
    assert f"{admin.broker_name}:2" in admin.run("updateOrderConf", *order, "-m", "get")
    assert "success" in admin.run("updateOrderConf", *order, "-m", "delete")


def test_everything_can_be_exported(admin: Admin, topic: str) -> None:
    for command in ("exportMetadata", "exportConfigs", "exportMetrics"):
        text = admin.run(command, "-c", CLUSTER, "-f", "exported")
        assert "success" in text, text
