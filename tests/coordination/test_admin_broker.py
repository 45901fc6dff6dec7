"""The broker's settings, figures, cleaning and queues; sharing queues; what is not supported."""

import json
from typing import Any

import pytest

from aerobee.broker.base.clock import VirtualClock
from aerobee.broker.base.histogram import Histogram
from aerobee.broker.handlers.assignment import average, average_by_circle
from aerobee.broker.services.stats import Stats
from aerobee.broker.services.topics.config import TopicConfig
from aerobee.protocol.files.java_hash import tags_code
from aerobee.protocol.wire.codes import ResponseCode
from coordination.serving import Peer, Serving, heartbeat_body, wants

# What `mqadmin clusterList` reads without asking whether it is there.
NEEDED = {
    *("msgPutTotalYesterdayMorning", "msgPutTotalTodayMorning", "msgPutTotalTodayNow"),
    *("msgGetTotalYesterdayMorning", "msgGetTotalTodayMorning", "msgGetTotalTodayNow"),
    *("putTps", "getTransferredTps", "getTransferedTps", "sendThreadPoolQueueSize"),
    *("pullThreadPoolQueueSize", "sendThreadPoolQueueHeadWaitTimeMills"),
    *("pullThreadPoolQueueHeadWaitTimeMills", "pageCacheLockTimeMills"),
    *("earliestMessageTimeStamp", "commitLogDiskRatio", "brokerVersionDesc", "brokerActive"),
    *("timerReadBehind", "timerOffsetBehind", "timerCongestNum", "timerEnqueueTps"),
    "timerDequeueTps",
}


async def info(peer: Peer) -> dict[str, str]:
    table: dict[str, str] = json.loads(bytes((await peer.ask(28)).body))["table"]
    return table


async def test_the_figures_are_true_and_all_texts(serving: Serving, peer: Peer) -> None:
    stored = await serving.store("T", 0, b"x" * 100)
    serving.broker.stats.add_put("T", 30, 3000)
    serving.broker.stats.add_get("T", "g", 20, 2000)
    await serving.clock.advance(12)
    table = await info(peer)
    assert set(table) >= NEEDED
    assert all(isinstance(value, str) for value in table.values())
    assert table["msgPutTotalTodayNow"] == "30"
    assert table["msgGetTotalTodayNow"] == "20"
    assert table["commitLogMaxOffset"] == str(stored.end_offset)
    assert table["earliestMessageTimeStamp"] == str(stored.store_timestamp)
    assert table["putMessageTimesTotal"] == "1"
    assert table["dispatchBehindBytes"] == "0"
    assert table["scheduleMessageOffset_18"] == "0,0"
    assert table["runtime"].startswith("[ 0 days, 0 hours, 0 minutes, 1")
    ten, minute, _ = (float(word) for word in table["putTps"].split(" "))
    assert 1.0 < ten <= 3.0
    assert 1.0 < minute <= 3.0
    assert 0.0 < float(table["commitLogDiskRatio"]) <= 1.0


async def test_a_master_without_replicas_says_so(serving: Serving, peer: Peer) -> None:
    stored = await serving.store("T", 0, b"x")
    answer = await peer.ask(907)
    assert answer.code == 0
    status = json.loads(bytes(answer.body))
    assert (status["master"], status["masterCommitLogMaxOffset"]) == (True, stored.end_offset)
    assert (status["haConnectionInfo"], status["inSyncSlaveNums"]) == ([], 0)


async def test_how_long_sends_took_is_reported_by_shares(serving: Serving, peer: Peer) -> None:
    sends = serving.broker.latencies[310] = Histogram()
    assert (await info(peer))["putLatency99"] == "0.00"
    sends.add_many(0.0005, 98)
    sends.add_many(0.005, 2)
    table = await info(peer)
    assert 4.0 <= float(table["putLatency99"]) <= 8.2
    assert table["putMessageDistributeTime"].startswith("[<=1ms]:98 [<=2ms]:0 [<=4ms]:0 [<=8ms]:2 ")
    assert table["putMessageDistributeTime"].endswith(" [<=1s]:0 [>1s]:0")


async def test_groups_with_conflicts_are_named_in_the_figures(serving: Serving) -> None:
    async with serving.connect() as first, serving.connect() as second:
        await first.ask(34, body=heartbeat_body("c1", "g", wants("T", "red")))
        assert "subscriptionConflicts" not in await info(first)
        await second.ask(34, body=heartbeat_body("c2", "g", wants("T", "blue")))
        assert (await info(first))["subscriptionConflicts"] == "g"


async def test_settings_are_shown_with_their_version(peer: Peer) -> None:
    answer = await peer.ask(26)
    lines = bytes(answer.body).decode().splitlines()
    assert "brokerName=broker-a" in lines
    assert lines == sorted(lines)
    assert set(json.loads(answer.ext["version"])) == {"counter", "stateVersion", "timestamp"}


async def test_a_live_setting_is_changed_and_others_are_refused(
    serving: Serving, peer: Peer
) -> None:
    assert (await peer.ask(25, body=b"maxTopics=77\nbrokerPermission=4\n")).code == 0
    assert serving.broker.settings.max_topics == 77
    assert serving.broker.settings.broker_permission == 4
    for text, code in (
        (b"listenPort=1", ResponseCode.NO_PERMISSION),
        (b"maxTopics=5\nlistenPort=9", ResponseCode.NO_PERMISSION),
        (b"noSuchKey=1", ResponseCode.INVALID_PARAMETER),
        (b"maxTopics=many", ResponseCode.INVALID_PARAMETER),
    ):
        answer = await peer.ask(25, body=text)
        assert answer.code == code
        assert answer.remark
    for text in (b"", b"# nothing\n"):
        assert (await peer.ask(25, body=text)).code == 0
    assert (await peer.ask(25, body=b"\xff\xfe=1")).code == 1
    assert serving.broker.settings.max_topics == 77


async def test_counters_have_windows_of_a_minute_an_hour_and_a_day(
    serving: Serving, peer: Peer
) -> None:
    serving.broker.stats.add_put("T", 10, 1000)
    await serving.clock.advance(30)
    serving.broker.stats.add_put("T", 20, 500)
    answer = await peer.ask(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"})
    windows = json.loads(bytes(answer.body))
    assert {name: window["sum"] for name, window in windows.items()} == {
        "statsMinute": 30,
        "statsHour": 30,
        "statsDay": 30,
    }
    assert windows["statsMinute"]["avgpt"] == 15.0
    assert 0.9 < windows["statsMinute"]["tps"] < 1.1
    sizes = await peer.ask(315, {"statsName": "TOPIC_PUT_SIZE", "statsKey": "T"})
    assert json.loads(bytes(sizes.body))["statsDay"]["sum"] == 1500
    for name, key in (("TOPIC_PUT_NUMS", "nope"), ("NO_SUCH", "T")):
        assert (await peer.ask(315, {"statsName": name, "statsKey": key})).code == 1


async def test_old_counts_leave_the_minute_and_then_the_hour() -> None:
    clock = VirtualClock()
    stats = Stats(clock)
    stats.add_put("T", 600, 0)
    for _ in range(6):
        await clock.advance(10)
        stats.note()
    await clock.advance(10)
    stats.note()
    counter, _ = stats.find("TOPIC_PUT_NUMS", "T") or (None, False)
    assert counter is not None
    assert counter.windows(clock.now_ms())["statsMinute"]["sum"] == 0
    assert counter.windows(clock.now_ms())["statsHour"]["sum"] == 600
    for _ in range(361):
        await clock.advance(10)
        stats.note()
    assert counter.windows(clock.now_ms())["statsHour"]["sum"] == 0
    assert counter.windows(clock.now_ms())["statsDay"]["sum"] == 600


async def test_a_queues_entries_are_shown_raw(serving: Serving, peer: Peer) -> None:
    serving.broker.topics.put(TopicConfig("T", 1, 1))
    await serving.store("T", 0, b"one")
    stored = await serving.store("T", 0, b"two", properties="TAGS\x01red\x02")
    ext = {"topic": "T", "queueId": 0, "index": 1, "count": 10, "consumerGroup": "g"}
    shown = json.loads(bytes((await peer.ask(321, ext)).body))
    assert (shown["minQueueIndex"], shown["maxQueueIndex"]) == (0, 2)
    assert shown["queueData"] == [
        {
            "physicOffset": stored.physical_offset,
            "physicSize": stored.size,
            "tagsCode": tags_code("red"),
        }
    ]
    assert "not online" in shown["filterData"]
    odd: tuple[tuple[dict[str, Any], int], ...] = (
        ({"count": 10**9}, 1),
        *(({"index": -1}, 0), ({"count": -1}, 0), ({"queueId": -1}, 0), ({"topic": "nope"}, 0)),
    )
    for changes, entries in odd:
        answer = await peer.ask(321, ext | changes)
        assert answer.code == 0, changes
        assert len(json.loads(bytes(answer.body))["queueData"]) == entries
    assert set(serving.broker.store.queues()) == {"T"}


async def test_queues_without_a_topic_are_cleaned_and_others_kept(
    serving: Serving, peer: Peer
) -> None:
    serving.broker.topics.put(TopicConfig("kept", 1, 1))
    await serving.store("kept", 0, b"x")
    await serving.store("unused", 0, b"x")
    assert (await peer.ask(316)).code == 0
    assert set(serving.broker.store.queues()) == {"kept"}
    assert (await peer.ask(306)).code == 0
    assert (await peer.ask(329)).code == 0
    assert serving.broker.store.max_offset("kept", 0) == 1


@pytest.mark.parametrize("code", [200050, 200051, 200052, 200053, 200054, 200055, 200151])
async def test_pop_is_refused_with_a_reason(peer: Peer, code: int) -> None:
    answer = await peer.ask(code, {"consumerGroup": "g", "topic": "T"})
    assert answer.code == 3
    assert "POP" in str(answer.remark)


def test_shares_are_those_of_the_java_clients() -> None:
    assert [average(client, 3, 8) for client in range(3)] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert [average(client, 3, 2) for client in range(3)] == [[0], [1], []]
    assert [average_by_circle(client, 3, 8) for client in range(3)] == [
        [0, 3, 6],
        [1, 4, 7],
        [2, 5],
    ]


async def test_the_broker_shares_queues_when_it_is_asked_to(serving: Serving) -> None:
    serving.broker.topics.put(TopicConfig("T", 4, 4))
    body = {"topic": "T", "consumerGroup": "g", "clientId": "c2", "strategyName": "AVG"}

    async def numbers(peer: Peer, **changes: str) -> list[int]:
        answer = await peer.ask(400, body=body | {"messageModel": "CLUSTERING"} | changes)
        assignments = json.loads(bytes(answer.body))["messageQueueAssignments"]
        assert all(entry["mode"] == "PULL" for entry in assignments)
        return [entry["messageQueue"]["queueId"] for entry in assignments]

    async with serving.connect() as first, serving.connect() as second:
        await first.ask(34, body=heartbeat_body("c1", "g", wants("T")))
        await second.ask(34, body=heartbeat_body("c2", "g", wants("T")))
        assert await numbers(first) == [2, 3]
        assert await numbers(first, clientId="c1") == [0, 1]
        assert await numbers(first, clientId="stranger") == []
        assert await numbers(first, messageModel="BROADCASTING") == [0, 1, 2, 3]
        assert await numbers(first, strategyName="MAGIC") == []
        assert await numbers(first, topic="nope") == []
        assert (await first.ask(400, body=b"")).code == 29
        mode = {"topic": "T", "consumerGroup": "g", "mode": "PULL", "popShareQueueNum": 0}
        assert (await first.ask(401, body=mode)).code == 0
        assert (await first.ask(401, body=mode | {"consumerGroup": "later"})).code == 0
        assert serving.broker.groups.find("later") is None
        assert (await first.ask(401, body=mode | {"topic": "nope"})).code == 17
        assert (await first.ask(401, body=mode | {"mode": "POP"})).code == 3
        assert json.loads(bytes((await first.ask(402)).body)) == {"messageRequestModeMap": {}}
