"""Limits per address and per user; beyond them requests are rejected with a reason."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from peers.in_process import running_broker
from waiting import until

from access.guarded import Asker, guarded_broker, make_topics, pull_fields, send_fields
from aerobee.broker.base.clock import Clock
from aerobee.broker.net.general_feed import carries_messages, is_message_request
from aerobee.broker.net.quotas import Most, Quota, Quotas
from aerobee.protocol.wire.codes import ResponseCode
from aerobee.protocol.wire.command import JSON, MSGPACK, ROCKETMQ

BUSY = ResponseCode.SYSTEM_BUSY


async def test_a_connection_too_many_gets_the_reason_and_is_closed(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, max_connections_per_address=1) as app,
        Asker.connected(app.broker_port) as first,
    ):
        assert (await first.ask("", 28)).code == 0
        async with Asker.connected(app.broker_port) as second:
            answer = await second.ask("", 28)
            assert answer.code == BUSY
            assert "127.0.0.1 has 1 connections" in (answer.remark or "")
            assert "maxConnectionsPerAddress" in (answer.remark or "")
            await asyncio.wait_for(second._reading, 10)  # the broker closes it
        assert (await first.ask("", 28)).code == 0


async def test_a_user_s_connection_too_many_gets_the_reason_and_is_closed(tmp_path: Path) -> None:
    async with (
        guarded_broker(tmp_path, max_connections_per_user=1) as app,
        AsyncExitStack() as all_,
    ):
        first, second, third = [
            await all_.enter_async_context(Asker.connected(app.broker_port)) for _ in range(3)
        ]
        assert (await first.ask("root", 310, send_fields("t"), b"x")).code == 0
        assert (await first.ask("root", 310, send_fields("t"), b"x")).code == 0
        assert (await second.ask("root", 28)).code == 0  # only now its user is known
        answer = await second.ask("root", 310, send_fields("t"), b"x")
        assert (answer.code, "User:root has 2 connections" in (answer.remark or "")) == (BUSY, True)
        await asyncio.wait_for(second._reading, 10)
        for _ in range(2):  # another user has its own limit
            assert (await third.ask("pub", 310, send_fields("t"), b"x")).code == 0


@pytest.mark.parametrize("codec", [JSON, ROCKETMQ, MSGPACK])
async def test_pulls_that_wait_are_in_flight_and_more_of_them_are_refused(
    tmp_path: Path, codec: int
) -> None:
    async with guarded_broker(tmp_path, max_requests_per_user=2) as app:
        await make_topics(app, "t")
        waiting = pull_fields("t", "g", queueOffset=1, sysFlag=6, suspendTimeoutMillis=60000)
        async with Asker.connected(app.broker_port) as one, Asker.connected(app.broker_port) as two:
            assert (await one.ask("sub", 30, {"topic": "t", "queueId": 0})).code == 0
            assert (await two.ask("sub", 30, {"topic": "t", "queueId": 0})).code == 0
            held = [one.start("sub", 11, waiting, codec=codec) for _ in range(2)]
            await until(lambda: len(app.broker.long_polling) == 2)
            refused = await two.ask("sub", 11, waiting, codec=codec)
            assert refused.code == BUSY
            assert "maxRequestsPerUser" in (refused.remark or "")
            # Requests without messages still pass; so do other users'.
            assert (await two.ask("sub", 30, {"topic": "t", "queueId": 0})).code == 0
            async with Asker.connected(app.broker_port) as other:
                assert (await other.ask("root", 310, send_fields("t"), b"wakes them")).code == 0
            assert [(await each).code for each in held] == [0, 0]
            assert (await two.ask("sub", 11, waiting, codec=codec)).code == 0


@pytest.mark.parametrize("setting", ["address", "user"])
async def test_bytes_over_a_second_s_worth_are_refused_until_they_are_paid_for(
    tmp_path: Path, setting: str
) -> None:
    limit = {f"max_bytes_per_second_per_{setting}": 20_000}
    async with guarded_broker(tmp_path, **limit) as app:
        await make_topics(app, "t")
        async with Asker.connected(app.broker_port) as asker:
            sent = [await asker.ask("pub", 310, send_fields("t"), bytes(10_000)) for _ in range(8)]
            stored = [answer for answer in sent if answer.code == 0]
            over = [answer for answer in sent if answer.code]
            assert stored, "the first ones fit"
            assert {answer.code for answer in over} == {BUSY}
            assert "is over 20000 bytes a second" in (over[0].remark or "")
            assert "try again in" in (over[0].remark or "")

            async with asyncio.timeout(20):
                while (await asker.ask("pub", 310, send_fields("t"), b"x")).code:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        counted = app.broker.stats.broker_put.nums
        assert counted == 2 + len(stored)  # with the topic's first and the retry, no refused ones


class ShownConnection:
    """The part of a connection that a quota reads."""

    def __init__(self) -> None:
        self.peer, self.user, self.name = ("10.0.0.1", 1), "", "10.0.0.1:1"
        self.on_close: list[Any] = []
        self.active_at = 0.0
        self.outbox = SimpleNamespace(written=0)


class HandClock(Clock):
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize("setting", ["address", "user"])
async def test_requests_that_come_in_one_piece_are_counted_one_by_one(
    tmp_path: Path, setting: str
) -> None:
    async with guarded_broker(tmp_path, **{f"max_requests_per_{setting}": 3}) as app:
        await make_topics(app, "t")
        waiting = pull_fields("t", "g", queueOffset=1, sysFlag=6, suspendTimeoutMillis=60000)
        async with Asker.connected(app.broker_port) as asker:
            asked = [asker.start("sub", 11, waiting) for _ in range(10)]  # written at once
            answers = [await each for each in asked[3:]]
            assert {answer.code for answer in answers} == {BUSY}
            assert f"maxRequestsPer{setting.title()}" in (answers[0].remark or "")
            assert len(app.broker.long_polling) == 3
            async with Asker.connected(app.broker_port) as other:
                sent = asyncio.ensure_future(other.ask("root", 310, send_fields("t"), b"wakes"))
                if setting == "address":  # whose limit is reached
                    assert (await sent).code == BUSY
                else:
                    assert [(await each).code for each in asked[:3]] == [0, 0, 0]


PULL_FRAME = (JSON, b'{"code":11,"extFields":{},"opaque":1}', b"")
HEARTBEAT = (JSON, b'{"code":34,"extFields":{},"opaque":1}', b"")


def test_answers_are_paid_for_whatever_is_asked_in_between() -> None:
    clock = HandClock()
    quotas = Quotas(Most(bytes_per_second=1_000_000), Most(), clock, lambda _: 0)
    connection: Any = ShownConnection()
    quota = Quota(connection, quotas._addresses, quotas._users)
    answered = 0
    for _ in range(3000):  # a minute
        clock.now += 0.02
        _, admitted = quota.gate([PULL_FRAME])
        if admitted:
            connection.outbox.written += 256 << 10
            answered += 256 << 10
        quota.gate([HEARTBEAT])  # never refused, and clears no debt
    assert answered <= 62 * 1_000_000


@pytest.mark.parametrize(
    "header",
    [
        b'{"extFields":{"code":"1"},"code":310,"opaque":1}',
        b'{"code":999,"code":310,"opaque":1}',
        b'{"\\u0063ode":310,"opaque":1}',
        b'{"code":3.1e2,"opaque":1}',
    ],
)
def test_a_code_that_is_hidden_from_a_quick_look_is_counted(header: bytes) -> None:
    assert is_message_request((JSON, header, b""))


def test_a_code_of_thousands_of_digits_is_no_error_of_ours() -> None:
    assert not carries_messages((JSON, b'{"code":' + b"9" * 5000 + b"}", b""))
