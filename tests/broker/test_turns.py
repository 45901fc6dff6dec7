"""Many clients at once: each turn of the loop does a little, and others are served in between."""

import asyncio
import json
import socket
import struct
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from loop_turns import watched_turns
from peers.in_process import Client, pull_ext, running_broker, send_ext
from waiting import until

from aerobee.broker.app import AppBroker
from aerobee.broker.store import message_store, page_cache
from aerobee.broker.turns import Turns
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.command import ONEWAY_FLAG, Command
from aerobee.protocol.frame import encode_frame

CROWD = 300
CALLS_MAX = 30_000  # of a turn; 9,000 is usual, all of the crowd in one turn: 100,000
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closed without a goodbye


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[AppBroker]:
    async with running_broker(tmp_path) as app:
        yield app


@pytest.fixture
async def client(app: AppBroker) -> AsyncIterator[Client]:
    client = await Client.connect(app)
    yield client
    await client.close()


async def test_work_that_can_wait_is_done_in_order_a_slice_in_each_turn() -> None:
    turns = Turns(slice_s=0.0)
    done: list[str] = []
    assert not turns.is_over()
    for name in "abc":
        turns.now_or_later(lambda name=name: done.append(name))  # type: ignore[misc]
    assert done == [] and len(turns) == 3, "the slice of this turn is used up"
    seen = []
    while len(turns):
        await asyncio.sleep(0)
        seen.append("".join(done))
    assert seen[-1] == "abc" and {"a", "ab"} <= set(seen)


async def test_work_that_fails_does_not_stop_what_waits_behind_it() -> None:
    turns = Turns(slice_s=0.0)
    done: list[int] = []
    turns.later(lambda: 1 // 0)
    turns.later(lambda: done.append(1))
    await until(lambda: done)


def heartbeat(client_id: str) -> bytes:
    subscription = {"topic": "Orders", "subString": "*", "subVersion": 1, "expressionType": "TAG"}
    consumer = {
        "groupName": "crowd",
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [subscription],
    }
    body = {"clientID": client_id, "producerDataSet": [], "consumerDataSet": [consumer]}
    return encode_frame(Command(RequestCode.HEART_BEAT, {}, json.dumps(body).encode()))


async def something_waits(app: AppBroker) -> None:
    """At the turn of the loop in which work was put off."""
    deadline = time.monotonic() + 10
    while not len(app.broker.turns):
        assert time.monotonic() < deadline, "nothing was put off"
        await asyncio.sleep(0)


def connect_all(port: int) -> list[socket.socket]:
    return [socket.create_connection(("127.0.0.1", port)) for _ in range(CROWD)]


def send_all(socks: list[socket.socket], frames: list[bytes]) -> None:
    for sock, frame in zip(socks, frames, strict=True):
        sock.sendall(frame)


async def test_members_that_join_ask_and_leave_at_once_do_not_keep_the_loop(
    app: AppBroker, client: Client
) -> None:
    await client.request(310, send_ext("Orders"))
    socks = await asyncio.to_thread(connect_all, app.broker_port)
    frames = [heartbeat(f"client-{number}") for number in range(CROWD)]
    members = app.broker.clients.consumers_of
    lists = [encode_frame(Command(38, {"consumerGroup": "crowd"}))] * CROWD
    answered = app.broker.latencies[RequestCode.GET_CONSUMER_LIST_BY_GROUP]
    with watched_turns() as turns:
        await asyncio.to_thread(send_all, socks, frames)
        await until(lambda: len(members("crowd")) == CROWD)
        await asyncio.sleep(0.2)  # the notices leave
        await asyncio.to_thread(send_all, socks, lists)
        await until(lambda: sum(answered.counts) == CROWD)
        await asyncio.to_thread(lambda: [sock.close() for sock in socks])
        await until(lambda: not members("crowd"))
    assert turns.longest < CALLS_MAX


@pytest.mark.parametrize("how", ["goodbye", "reset"])
async def test_what_a_client_said_before_it_went_counts_though_it_had_to_wait(
    app: AppBroker, client: Client, how: str
) -> None:
    """A consumer that stops tells how far it has come, does not wait for an answer, and closes."""
    await client.request(310, send_ext("Orders"))
    app.broker.turns.slice_s = 0.0
    ext = {"consumerGroup": "cg", "topic": "Orders", "queueId": "0"}
    offsets = [
        encode_frame(Command(15, ext | {"commitOffset": str(number)}, flag=ONEWAY_FLAG))
        for number in range(1, 31)
    ]
    sock = socket.create_connection(("127.0.0.1", app.broker_port))
    await until(lambda: len(app._server.connections) == 2)  # type: ignore[union-attr]
    sock.sendall(b"".join(offsets))
    if how == "reset":
        await something_waits(app)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    sock.close()
    await until(lambda: app.broker.offsets.query("cg", "Orders", 0) == 30)
    await until(lambda: len(app._server.connections) == 1)  # type: ignore[union-attr]


async def test_large_answers_to_many_pulls_are_made_a_few_at_a_time(
    app: AppBroker, client: Client
) -> None:
    for _ in range(4):
        await client.request(310, send_ext("Orders"), bytes(100_000))
    app.broker.turns.slice_s = 0.0
    pulls = [client.command(11, pull_ext("Orders")) for _ in range(20)]
    answers = asyncio.create_task(client.ask_all(pulls))
    await something_waits(app)
    (served,) = (each for each in app._server.connections)  # type: ignore[union-attr]
    assert served.written < 20 * 200_000, "all were answered in one turn"
    assert {answer.code for answer in await answers} == {ResponseCode.SUCCESS}


async def test_entries_that_are_not_in_memory_are_read_by_a_thread(
    app: AppBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(50):
        await client.request(310, send_ext("Orders"))
    await until(lambda: app.broker.store.max_offset("Orders", 0) >= 20)
    monkeypatch.setattr(message_store, "RECENT_ENTRIES", 10)
    monkeypatch.setattr(page_cache, "is_cached", lambda *_: False)
    read: list[str] = []
    real = page_cache.Residence.bring_in
    let_go = threading.Event()

    def slow_disk(self: page_cache.Residence, file: Any, *where: int) -> None:
        assert let_go.wait(30)
        read.append(file.path)
        real(self, file, *where)

    monkeypatch.setattr(page_cache.Residence, "bring_in", slow_disk)
    pulling = asyncio.create_task(client.request(11, pull_ext("Orders")))
    other = await Client.connect(app)
    assert (await other.request(310, send_ext("Orders"))).code == ResponseCode.SUCCESS
    recent = await other.request(11, pull_ext("Orders", offset=45))
    assert recent.code == ResponseCode.SUCCESS and not read
    assert not pulling.done(), pulling.result()
    let_go.set()
    answer = await pulling
    assert answer.code == ResponseCode.SUCCESS and answer.ext["nextBeginOffset"] == "32"
    assert len(read) == 1 and "consumequeue" in read[0]
    await other.close()


async def test_a_disk_that_fails_under_a_queues_entries_is_told(
    app: AppBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(20):
        await client.request(310, send_ext("Orders"))
    await until(lambda: app.broker.store.max_offset("Orders", 0) >= 20)
    monkeypatch.setattr(message_store, "RECENT_ENTRIES", 10)
    monkeypatch.setattr(page_cache, "is_cached", lambda *_: False)

    def broken(*_: object) -> None:
        raise OSError(5, "planted")

    monkeypatch.setattr(page_cache.Residence, "bring_in", broken)
    answer = await client.request(11, pull_ext("Orders"))
    assert answer.code == ResponseCode.SYSTEM_ERROR and "planted" in str(answer.remark)
    assert (await client.request(11, pull_ext("Orders", offset=15))).code == ResponseCode.SUCCESS
