"""What one client may take: groups, subscriptions, waiting pulls, filters. No limit is silent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from peers.in_process import Client, pull_ext, running_broker, send_ext
from peers.pulling import WAIT, WAIT_LONG, fill
from services.services_world import HandClock
from structlog.testing import capture_logs
from waiting import until

from aerobee.broker.base.refused import Refused
from aerobee.broker.services.clients.consumer_group import ConsumerGroup
from aerobee.broker.services.clients.subscription import build_subscription
from aerobee.broker.services.filters.sql_filters import FILTER_BYTES, Filters
from aerobee.broker.sql92 import parser
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command


async def beat(client: Client, groups: Iterable[str], **more: Any) -> Command:
    producers = [{"groupName": group} for group in groups]
    body = json.dumps({"clientID": "c", "producerDataSet": producers} | more).encode()
    return await client.request(RequestCode.HEART_BEAT, {}, body)


# --- producer groups


async def test_a_client_with_a_few_thousand_producer_groups_is_served(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as app:
        client = await Client.connect(app)
        for first in range(0, 9000, 3000):
            answer = await beat(client, (f"g{n}" for n in range(first, first + 3000)))
            assert answer.code == 0, answer.remark
        assert len(app.broker.clients.producer_groups()) == 9000
        await client.close()


async def test_producer_groups_beyond_the_limit_of_a_connection_are_refused_with_the_reason(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path, max_producer_groups_per_connection=5) as app:
        client, other = await Client.connect(app), await Client.connect(app)
        clients = app.broker.clients
        assert (await beat(client, (f"g{n}" for n in range(5)))).code == 0
        with capture_logs() as logs:
            answer = await beat(client, ["g0", "g7", "g8"])
        assert answer.code == ResponseCode.SYSTEM_ERROR
        for text in ("2 producer groups", "g7", "maxProducerGroupsPerConnection"):
            assert text in (answer.remark or "")
        warnings = [line for line in logs if line["log_level"] == "warning"]
        assert [line["event"] for line in warnings] == ["producers are not registered"]
        assert set(clients.producer_groups()) == {f"g{n}" for n in range(5)}
        assert (await beat(client, ["g0"])).code == 0, "what is registered stays so"
        assert (await beat(other, ["g7"])).code == 0, "the limit is of each connection"
        await client.request(
            RequestCode.UNREGISTER_CLIENT, {"clientID": "c", "producerGroup": "g0"}
        )
        assert (await beat(client, ["g8"])).code == 0, "one that left makes room"
        await client.close()
        await until(lambda: set(clients.producer_groups()) == {"g7"})
        await other.close()


# --- subscriptions


def consumers(groups: int, each: int, first: int = 0) -> list[dict[str, Any]]:
    topics = [{"topic": f"t{number}"} for number in range(each)]
    names = range(first, first + groups)
    return [{"groupName": f"g{n}", "subscriptionDataSet": topics} for n in names]


async def test_a_client_with_a_few_hundred_groups_is_registered_while_others_are_served(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path) as app:
        client, other = await Client.connect(app), await Client.connect(app)
        clients = app.broker.clients
        large = asyncio.create_task(beat(client, ["p"], consumerDataSet=consumers(300, 10)))
        await until(lambda: clients.consumer_group("g0") is not None)
        assert (await beat(other, ["other"])).code == 0
        assert not large.done() and clients.consumer_group("g299") is None
        assert (await large).code == 0
        assert len(clients.consumer_groups()) == 300 and clients.producers_of("p")
        assert set(clients._subscribed._counts.values()) == {3000}
        await client.close()
        await until(lambda: not clients.consumer_groups())
        assert not clients._subscribed._counts
        await other.close()


async def test_subscriptions_beyond_the_limit_of_a_connection_are_refused_with_the_reason(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path, max_subscriptions_per_connection=10) as app:
        client, other = await Client.connect(app), await Client.connect(app)
        answer = await beat(client, (), consumerDataSet=consumers(2, 6))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "12 subscriptions, and maxSubscriptionsPerConnection is 10" in (answer.remark or "")
        assert (await beat(client, (), consumerDataSet=consumers(1, 6))).code == 0
        answer = await beat(client, (), consumerDataSet=consumers(1, 6, first=1))
        assert "group g1 is not registered with 6 subscriptions" in (answer.remark or "")
        assert (await beat(client, (), consumerDataSet=consumers(1, 10))).code == 0, "in its place"
        assert (await beat(client, (), consumerDataSet=consumers(1, 4))).code == 0
        answer = await beat(client, (), consumerDataSet=consumers(1, 6, first=1))
        assert answer.code == 0, answer.remark
        assert (await beat(other, (), consumerDataSet=consumers(1, 10))).code == 0
        left = {"clientID": "c", "consumerGroup": "g0"}
        await client.request(RequestCode.UNREGISTER_CLIENT, left)
        assert (await beat(client, (), consumerDataSet=consumers(1, 4, first=2))).code == 0
        await client.close()
        await other.close()
        await until(lambda: not app.broker.clients._subscribed._counts)


# --- pulls that wait


async def test_one_connection_cannot_take_all_waiting_pulls(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"max_held_pulls": 6, "max_held_pulls_per_connection": 4}
    async with running_broker(tmp_path, **limits) as app:
        greedy, other = await Client.connect(app), await Client.connect(app)
        await fill(other, 1)
        holds = app.broker.long_polling

        def pull(client: Client, **more: str) -> asyncio.Task[Command]:
            command = client.command(11, pull_ext("Orders", offset=1) | WAIT | more)
            return asyncio.create_task(client.ask(command))

        with capture_logs() as logs:
            asked = [pull(greedy) for _ in range(9)]
            await until(lambda: sum(each.done() for each in asked) == 5)
            waiting = [pull(other), pull(other)]
            await until(lambda: len(holds) == 6)
            refused = await pull(other)
        assert refused.code == ResponseCode.PULL_NOT_FOUND
        warnings = [line for line in logs if line["log_level"] == "warning"]
        assert [line["limit"] for line in warnings] == [
            "maxHeldPullsPerConnection=4",
            "maxHeldPulls=6",
        ]
        await other.request(310, send_ext("Orders"), b"new")
        assert [(await each).code for each in waiting] == [0, 0]
        codes = sorted([(await each).code for each in asked])
        assert codes == [0] * 4 + [ResponseCode.PULL_NOT_FOUND] * 5
        again = pull(greedy, queueOffset="2", **WAIT_LONG)
        await until(lambda: len(holds) == 1)
        again.cancel()
        await greedy.close()
        await until(lambda: len(holds) == 0)
        assert not holds._by_owner
        await other.close()


# --- SQL92 filters


def group_with(name: str, **expressions: str) -> ConsumerGroup:
    group = ConsumerGroup(name)
    for topic, expression in expressions.items():
        group.subscriptions[topic] = build_subscription(topic, expression, "SQL92", 7)
    return group


async def test_a_heartbeat_with_thousands_of_filters_compiles_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That would take the loop for seconds."""
    parsed: list[str] = []
    parse = parser.parse

    def noting(text: str) -> Any:
        parsed.append(text)
        return parse(text)

    monkeypatch.setattr(parser, "parse", noting)
    subscriptions = [
        {"topic": f"T{n}", "subString": f"a > {n}", "expressionType": "SQL92", "subVersion": 7}
        for n in range(4000)
    ]
    consumer = {"groupName": "g", "subscriptionDataSet": subscriptions}
    async with running_broker(tmp_path) as app:
        client = await Client.connect(app)
        assert (await beat(client, (), consumerDataSet=[consumer])).code == 0
        assert parsed == []
        filters = app.broker.filters
        assert filters.for_pull("T3999", "g", 7)({"a": "4000"}) is True
        assert filters.for_pull("T3999", "g", 7)({"a": "3999"}) is False
        assert parsed == ["a > 3999"]
        await client.close()


def test_a_filter_that_cannot_be_read_is_refused_with_the_reason_and_logged_once(
    tmp_path: Path,
) -> None:
    filters = Filters(str(tmp_path / "f.json"), HandClock())
    filters.group_changed("g", group_with("g", T="a >"))
    with capture_logs() as logs:
        for _ in range(3):
            with pytest.raises(Refused, match="cannot be used: the SQL92 expression is wrong"):
                filters.for_pull("T", "g", 7)
    assert [line["event"] for line in logs] == ["a group's SQL92 filter cannot be used"]
    filters.group_changed("g", group_with("g", T="a > 1"))
    assert filters.for_pull("T", "g", 7)({"a": "2"}) is True


def test_filters_are_kept_up_to_a_limit_and_the_longest_dead_make_room(tmp_path: Path) -> None:
    clock = HandClock()
    size = FILTER_BYTES + len("a > 1")
    path = str(tmp_path / "f.json")
    filters = Filters(path, clock, bytes_max=lambda: 3 * size)
    for name in "abc":
        filters.group_changed(name, group_with(name, T="a > 1"))
    for name in "ba":
        clock.at_ms += 10
        filters.group_changed(name, None)
    filters.group_changed("b", group_with("b", T="a > 1"))  # it is back
    clock.at_ms += 10
    filters.group_changed("b", None)
    filters.group_changed("d", group_with("d", U="a > 2"))
    kept = {(t, g) for t in "TU" for g in "abcd" if filters.get(t, g) is not None}
    assert kept == {("T", "b"), ("T", "c"), ("U", "d")}
    with capture_logs() as logs:
        filters.group_changed("e", group_with("e", T="a > 3"))  # in the place of b
        filters.group_changed("f", group_with("f", T="a > 4", V="a > 5"))
    assert [line["event"] for line in logs] == ["a group's SQL92 filter is not kept"]
    assert "maxFilterBytes" in logs[0]["reason"]
    assert filters.get("T", "e") is not None and filters.get("T", "b") is None
    with pytest.raises(Refused):
        filters.for_pull("T", "f", 7)
    filters.file.stop()
    again = Filters(path, clock, bytes_max=lambda: 3 * size)
    again.load()
    assert {(t, g) for t in "TUV" for g in "abcdef" if again.get(t, g)} == {
        ("T", "c"),
        ("U", "d"),
        ("T", "e"),
    }
    again.group_changed("f", group_with("f", T="a > 4"))  # no member of the others has come yet
    assert again.get("T", "f") is not None
