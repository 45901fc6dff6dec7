"""Clients register, share queues, disagree, time out and leave."""

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from waiting import until

from aerobee.protocol.wire.command import Command
from coordination.serving import Peer, Serving, heartbeat_body, wants

HEART_BEAT, UNREGISTER, LIST, NOTICE = 34, 35, 38, 40


def ids(answer: Command) -> list[str]:
    found: list[str] = json.loads(bytes(answer.body))["consumerIdList"]
    return found


async def test_a_consumer_finds_itself_in_the_list_right_after_its_heartbeat(peer: Peer) -> None:
    answer = await peer.ask(HEART_BEAT, body=heartbeat_body("c1", "g", wants("T")))
    assert answer.code == 0
    assert answer.ext["IS_SUPPORT_HEART_BEAT_V2"] == "true"
    assert answer.ext["IS_SUB_CHANGE"] == "true"
    assert answer.ext["flushDiskType"] == "ASYNC_FLUSH"  # what the SDK's receipts go by
    assert ids(await peer.ask(LIST, {"consumerGroup": "g"})) == ["c1"]
    (notice,) = await peer.notices(1)
    assert (notice.code, notice.ext, notice.is_oneway) == (NOTICE, {"consumerGroup": "g"}, True)


async def test_half_a_character_in_a_client_id_keeps_no_member_from_the_list(peer: Peer) -> None:
    body = json.dumps(heartbeat_body("c1\ud800", "g", wants("T")))  # the half as an escape
    await peer.ask(HEART_BEAT, body=body.encode())
    answer = await peer.ask(LIST, {"consumerGroup": "g"})
    assert (answer.code, ids(answer)) == (0, ["c1\ufffd"])


async def test_a_reply_goes_by_the_newest_connection_of_the_producer_that_waits(
    serving: Serving,
) -> None:
    """The older one may be dead for minutes before we notice."""
    clients = serving.broker.clients
    body = {"clientID": "p1", "producerDataSet": [{"groupName": "pg"}, {"groupName": "other"}]}
    async with serving.connect() as first, AsyncExitStack() as later:
        await first.ask(HEART_BEAT, body=body)
        old = clients.producer_by_client_id("p1")
        second = await later.enter_async_context(serving.connect())
        await second.ask(HEART_BEAT, body=body)
        new = clients.producer_by_client_id("p1")
        assert old is not None and new is not None and new is not old
        await first.ask(HEART_BEAT, body=body)  # a late one changes nothing
        assert clients.producer_by_client_id("p1") is new
        await second.ask(UNREGISTER, {"clientID": "p1", "producerGroup": "pg"})
        assert clients.producer_by_client_id("p1") is new  # still in the other group
        await later.aclose()
        await until(lambda: clients.producer_by_client_id("p1") is old)
    await until(lambda: clients.producer_by_client_id("p1") is None)


async def test_the_list_of_a_group_with_nobody_is_an_error_that_names_it(peer: Peer) -> None:
    answer = await peer.ask(LIST, {"consumerGroup": "nobody"})
    assert answer.code == 1
    assert "nobody" in str(answer.remark)


async def test_the_retry_topic_is_there_with_the_first_heartbeat(
    serving: Serving, peer: Peer
) -> None:
    changed: list[str] = []
    serving.broker.topics.on_change.append(changed.append)
    await peer.ask(HEART_BEAT, body=heartbeat_body("c1", "g", wants("T")))
    retry = serving.broker.topics.get("%RETRY%g")
    assert retry is not None
    assert (retry.read_queue_nums, retry.write_queue_nums, retry.perm) == (1, 1, 6)
    assert changed == ["%RETRY%g"]


async def test_every_member_is_notified_when_one_joins_and_when_one_leaves(
    serving: Serving,
) -> None:
    async with serving.connect() as first, serving.connect() as second:
        await first.ask(HEART_BEAT, body=heartbeat_body("c1", "g", wants("T")))
        await first.notices(1)
        await second.ask(HEART_BEAT, body=heartbeat_body("c2", "g", wants("T")))
        assert [notice.code for notice in await first.notices(1)] == [NOTICE]
        assert [notice.code for notice in await second.notices(1)] == [NOTICE]
        assert ids(await second.ask(LIST, {"consumerGroup": "g"})) == ["c1", "c2"]
        await second.ask(UNREGISTER, {"clientID": "c2", "consumerGroup": "g"})
        assert [notice.code for notice in await first.notices(1)] == [NOTICE]
        assert ids(await first.ask(LIST, {"consumerGroup": "g"})) == ["c1"]


async def test_a_connection_that_breaks_takes_its_member_out(serving: Serving) -> None:
    async with serving.connect() as first:
        await first.ask(HEART_BEAT, body=heartbeat_body("c1", "g", wants("T")))
        await first.notices(1)
        async with serving.connect() as second:
            await second.ask(HEART_BEAT, body=heartbeat_body("c2", "g", wants("T")))
            await first.notices(1)
        await first.notices(1)
        assert ids(await first.ask(LIST, {"consumerGroup": "g"})) == ["c1"]


async def test_a_second_heartbeat_that_says_the_same_disturbs_nobody(peer: Peer) -> None:
    for _ in range(3):
        await peer.ask(HEART_BEAT, body=heartbeat_body("c1", "g", wants("T")))
    await peer.notices(1)
    assert peer.asked.empty()


async def test_a_broadcast_group_is_never_told_to_share_queues(peer: Peer) -> None:
    body = heartbeat_body("c1", "g", wants("T"), messageModel="BROADCASTING")
    await peer.ask(HEART_BEAT, body=body)
    await peer.ask(LIST, {"consumerGroup": "g"})
    assert peer.asked.empty()


async def test_a_client_without_heartbeats_is_forgotten_and_its_group_notified(
    serving: Serving,
) -> None:
    async with serving.connect() as silent, serving.connect() as lively:
        await silent.ask(HEART_BEAT, body=heartbeat_body("c1", "g", wants("T")))
        await serving.clock.advance(100)
        await lively.ask(HEART_BEAT, body=heartbeat_body("c2", "g", wants("T")))
        await lively.notices(1)
        await serving.clock.advance(40)
        await lively.notices(1)
        assert ids(await lively.ask(LIST, {"consumerGroup": "g"})) == ["c2"]


async def test_a_client_that_is_heard_while_silent_ones_are_removed_stays(serving: Serving) -> None:
    clients = serving.broker.clients
    async with serving.connect() as silent, serving.connect() as heard, serving.connect() as gone:
        for number, peer in enumerate((silent, heard, gone)):
            await peer.ask(HEART_BEAT, body=heartbeat_body(f"c{number}", "g", wants("T")))
        connections = [member.connection for member in clients.consumers_of("g")]
        serving.broker.settings.channel_expired_timeout = 0
        pieces = clients._expiring()
        next(pieces)
        await gone.close()
        await until(lambda: connections[2].is_closed and len(clients.consumers_of("g")) == 1)
        serving.broker.settings.channel_expired_timeout = 60_000
        await heard.ask(HEART_BEAT, body=heartbeat_body("c1", "g", wants("T")))
        assert list(pieces)
        assert clients.client_ids("g") == ["c1"]
        await until(lambda: clients._registered.keys() == {connections[1]})
        assert ids(await heard.ask(LIST, {"consumerGroup": "g"})) == ["c1"]


async def test_a_consumer_that_fell_silent_leaves_its_lively_producer_connected(
    serving: Serving, peer: Peer
) -> None:
    producer = {"clientID": "c1", "producerDataSet": [{"groupName": "pg"}]}
    await peer.ask(HEART_BEAT, body=heartbeat_body("c1", "g", wants("T")))
    for _ in range(5):
        await peer.ask(HEART_BEAT, body=producer)
        await serving.clock.advance(30)
    assert (await peer.ask(LIST, {"consumerGroup": "g"})).code == 1
    assert (await peer.ask(204, {"producerGroup": "pg"})).code == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"consumeType": 1, "messageModel": 1, "consumeFromWhere": 0},
        {"subscriptionDataSet": None},
        {
            "subscriptionDataSet": [
                {"topic": "T", "subString": "*", "tagsSet": None, "codeSet": None},
                {"topic": "U", "subString": "a||b", "subVersion": "1700000000000000001"},
            ]
        },
        {"messageModel": "NEVER_HEARD_OF", "unitMode": "false", "unknown": [1, {}]},
    ],
    ids=["numbers as C++ sends", "null as Go sends", "lists absent, version as text", "odd values"],
)
async def test_heartbeats_of_every_client_are_understood(
    peer: Peer, changes: dict[str, Any]
) -> None:
    answer = await peer.ask(HEART_BEAT, body=heartbeat_body("c1", "g", **changes))
    assert answer.code == 0
    assert ids(await peer.ask(LIST, {"consumerGroup": "g"})) == ["c1"]


async def test_null_sets_of_producers_and_consumers_are_no_error(peer: Peer) -> None:
    body = {"clientID": "c1", "producerDataSet": None, "consumerDataSet": None}
    assert (await peer.ask(HEART_BEAT, body=body)).code == 0


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[]", b"{", b'{"clientID":null}', b"\xff\xfe"),
        b'{"clientID":"c","consumerDataSet":5}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":true}]}',
        b'{"clientID":"' + b"c" * 1025 + b'"}',
    ],
)
async def test_a_heartbeat_that_is_none_gets_an_error_and_a_sentence(
    peer: Peer, body: bytes
) -> None:
    answer = await peer.ask(HEART_BEAT, body=body)
    assert answer.code in (1, 29)
    assert answer.remark and "TypeError" not in answer.remark


async def test_a_short_heartbeat_keeps_the_subscriptions_that_are_known(
    serving: Serving, peer: Peer
) -> None:
    full = heartbeat_body("c1", "g", wants("T", "a")) | {"heartbeatFingerprint": 7}
    short = heartbeat_body("c1", "g") | {"heartbeatFingerprint": 7, "withoutSub": True}
    answer = await peer.ask(HEART_BEAT, body=full)
    assert answer.ext["IS_SUB_CHANGE"] == "false"
    answer = await peer.ask(HEART_BEAT, body=short)
    assert answer.ext["IS_SUB_CHANGE"] == "false"
    kept = serving.broker.clients.subscription("g", "T")
    assert kept is not None
    assert kept.expression == "a"


async def test_a_short_heartbeat_of_a_stranger_asks_for_all_next_time(peer: Peer) -> None:
    short = heartbeat_body("c1", "g") | {"heartbeatFingerprint": 7, "withoutSub": True}
    answer = await peer.ask(HEART_BEAT, body=short)
    assert answer.ext["IS_SUB_CHANGE"] == "true"


async def test_members_that_subscribe_differently_are_named_in_a_warning_once(
    serving: Serving,
) -> None:
    async with serving.connect() as first, serving.connect() as second:
        with capture_logs() as logs:
            await first.ask(HEART_BEAT, body=heartbeat_body("c1", "g", wants("T", "red")))
            for _ in range(3):
                await second.ask(HEART_BEAT, body=heartbeat_body("c2", "g", wants("T", "blue", 2)))
        warnings = [entry for entry in logs if entry["log_level"] == "warning"]
        assert len(warnings) == 1
        assert warnings[0]["group"] == "g"
        text = " ".join(warnings[0]["subscriptions"])
        assert "'red'" in text
        assert "'blue'" in text
        answer = await first.ask(203, {"consumerGroup": "g"})
        conflicts = json.loads(bytes(answer.body))["conflicts"]["T"]
        assert {entry["clientId"]: entry["subString"] for entry in conflicts} == {
            "c1": "red",
            "c2": "blue",
        }
        await second.ask(HEART_BEAT, body=heartbeat_body("c2", "g", wants("T", "red", 3)))
        assert "conflicts" not in json.loads(
            bytes((await first.ask(203, {"consumerGroup": "g"})).body)
        )


async def test_the_same_tags_in_another_order_are_no_conflict(serving: Serving) -> None:
    async with serving.connect() as first, serving.connect() as second:
        await first.ask(HEART_BEAT, body=heartbeat_body("c1", "g", wants("T", "a || b")))
        await second.ask(HEART_BEAT, body=heartbeat_body("c2", "g", wants("T", "b||a")))
        group = serving.broker.clients.consumer_group("g")
        assert group is not None
        assert group.conflicts == {}


async def test_the_newest_subscription_of_the_live_members_holds(serving: Serving) -> None:
    async with serving.connect() as first:
        await first.ask(HEART_BEAT, body=heartbeat_body("c1", "g", wants("T", "old", 5)))
        async with serving.connect() as second:
            await second.ask(HEART_BEAT, body=heartbeat_body("c2", "g", wants("T", "new", 9)))
            assert expression(serving) == "new"
        await first.notices(2)
        await until(lambda: serving.broker.clients.client_ids("g") == ["c1"])
        # the clock of the member that is left was behind: its subscription counts again
        assert expression(serving) == "old"


def expression(serving: Serving) -> str:
    found = serving.broker.clients.subscription("g", "T")
    assert found is not None
    return found.expression


async def test_one_client_by_two_connections_is_listed_once(serving: Serving) -> None:
    async with serving.connect() as first, serving.connect() as second:
        for peer in (first, second):
            await peer.ask(HEART_BEAT, body=heartbeat_body("c1", "g", wants("T")))
        assert ids(await first.ask(LIST, {"consumerGroup": "g"})) == ["c1"]


async def test_a_producer_is_listed_until_it_unregisters(peer: Peer) -> None:
    body = {"clientID": "p1", "producerDataSet": [{"groupName": "pg"}]}
    await peer.ask(HEART_BEAT, body=body)
    answer = await peer.ask(204, {"producerGroup": "pg"})
    (entry,) = json.loads(bytes(answer.body))["connectionSet"]
    assert (entry["clientId"], entry["language"], entry["version"]) == ("p1", "JAVA", 409)
    everyone = json.loads(bytes((await peer.ask(328)).body))["data"]
    assert [producer["clientId"] for producer in everyone["pg"]] == ["p1"]
    await peer.ask(UNREGISTER, {"clientID": "p1", "producerGroup": "pg"})
    assert (await peer.ask(204, {"producerGroup": "pg"})).code == 1


async def test_a_group_with_a_bad_name_is_not_registered(serving: Serving, peer: Peer) -> None:
    body = heartbeat_body("c1", "../g", wants("T"))
    assert (await peer.ask(HEART_BEAT, body=body)).code == 0
    assert serving.broker.clients.consumer_group("../g") is None
    assert serving.broker.topics.get("%RETRY%../g") is None


async def test_a_subscription_to_a_bad_name_is_left_out(serving: Serving, peer: Peer) -> None:
    entries = [
        {"topic": topic, "subString": "a = 1", "expressionType": "SQL92", "subVersion": 1}
        for topic in ("../T", "T" * 128, "T")
    ]
    body = heartbeat_body("c1", "g", *entries)
    with capture_logs() as logs:
        assert (await peer.ask(HEART_BEAT, body=body)).code == 0
        assert (await peer.ask(HEART_BEAT, body=body)).code == 0
    group = serving.broker.clients.consumer_group("g")
    assert group is not None and list(group.subscriptions) == ["T"]
    said = [log for log in logs if log["log_level"] == "warning"]
    assert said and all("../T" in log["reason"] or "TTT" in log["reason"] for log in said)


async def test_a_heartbeat_with_too_many_groups_is_refused_whole(
    serving: Serving, peer: Peer
) -> None:
    body = {
        "clientID": "c1",
        "producerDataSet": [{"groupName": f"p{number}"} for number in range(5000)],
    }
    answer = await peer.ask(HEART_BEAT, body=body)
    assert answer.code == 1
    assert "5000" in str(answer.remark)
    assert serving.broker.clients.producer_groups() == {}


async def test_a_large_group_that_starts_together_is_notified_once_for_many_changes(
    serving: Serving,
) -> None:
    async with AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(serving.connect()) for _ in range(40)]
        for number, peer in enumerate(peers):
            await peer.ask(HEART_BEAT, body=heartbeat_body(f"c{number}", "g", wants("T")))
        await until(lambda: all(not peer.asked.empty() for peer in peers))
        await asyncio.sleep(0.2)
        assert sum(peer.asked.qsize() for peer in peers) < 40 * 40 / 2
        assert len(ids(await peers[0].ask(LIST, {"consumerGroup": "g"}))) == 40


async def test_members_known_at_the_stop_are_named_until_they_leave_or_are_late(
    tmp_path: Path,
) -> None:
    members = {"c1": "JAVA", "c2": "JAVA", "c3": "GO", "sdk": "PYTHON"}
    path = tmp_path / "store" / "config" / "consumerMembers.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"groups": {"g": members}}))
    async with Serving(tmp_path) as serving, serving.connect() as one, serving.connect() as two:

        async def named() -> list[str]:
            return ids(await one.ask(LIST, {"consumerGroup": "g"}))

        await one.ask(HEART_BEAT, body=heartbeat_body("c1", "g", wants("T")))
        assert await named() == ["c1", "c2", "c3", "sdk"]
        await serving.clock.advance(4)  # an SDK would have reconnected long ago
        assert await named() == ["c1", "c2", "c3"]
        await two.ask(UNREGISTER, {"clientID": "c2", "consumerGroup": "g"})
        assert await named() == ["c1", "c3"]
        await serving.clock.advance(25)
        assert await named() == ["c1", "c3"]  # heartbeats are 30 s apart
        await serving.clock.advance(7)
        assert await named() == ["c1"]
        assert {notice.code for notice in await one.notices(4)} == {NOTICE}
