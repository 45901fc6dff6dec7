"""Many clients at once: each turn of the loop is short, so that others are served in between."""

import asyncio
import json
import socket
import struct
import threading
import time
from typing import Any

import pytest
from loop_turns import watched_turns
from peers.in_process import Client, pull_ext, send_ext
from waiting import until

from aerobee.broker.base.turns import Turns
from aerobee.broker.daemon.app import AppBroker
from aerobee.broker.handlers.pull import pull
from aerobee.broker.net import connection
from aerobee.broker.store.files import page_cache
from aerobee.broker.store.files.residence import Residence
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import ONEWAY_FLAG, Command
from aerobee.protocol.wire.frame import encode_frame

CROWD = 300
CALLS_MAX = 30_000  # of a turn; 9,000 is usual, all of the crowd in one turn: 100,000
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closed by a reset


async def test_work_that_can_wait_is_done_in_order_a_slice_in_each_turn() -> None:
    turns = Turns(slice_s=0.0)
    done: list[str] = []
    assert not turns.is_over()
    for name in "abc":
        turns.run_or_defer(lambda name=name: done.append(name))  # type: ignore[misc]
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
    """Returns in the turn of the loop in which work was deferred."""
    deadline = time.monotonic() + 10
    while not len(app.broker.turns):
        assert time.monotonic() < deadline, "nothing was deferred"
        await asyncio.sleep(0)


def connect_all(port: int) -> list[socket.socket]:
    return [socket.create_connection(("127.0.0.1", port)) for _ in range(CROWD)]


def send_all(socks: list[socket.socket], frames: list[bytes]) -> None:
    for sock, frame in zip(socks, frames, strict=True):
        sock.sendall(frame)


def close_all(socks: list[socket.socket]) -> None:
    for sock in socks:
        sock.close()


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
        await until(lambda: not len(app.broker.turns))  # the notices have left
        await asyncio.to_thread(send_all, socks, lists)
        await until(lambda: sum(answered.counts) == CROWD)
        await asyncio.to_thread(close_all, socks)
        await until(lambda: not members("crowd"))
    assert turns.longest < CALLS_MAX


@pytest.mark.parametrize("how", ["goodbye", "reset"])
async def test_what_a_client_said_before_it_went_counts_though_it_had_to_wait(
    app: AppBroker, client: Client, how: str
) -> None:
    """A stopping consumer commits its offset as a oneway and closes the connection."""
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
    assert served.outbox.written < 20 * 200_000, "all were answered in one turn"
    assert {answer.code for answer in await answers} == {ResponseCode.SUCCESS}


async def test_reads_full_of_requests_from_many_clients_do_not_keep_the_loop(
    app: AppBroker, client: Client
) -> None:
    await client.request(310, send_ext("Orders"), bytes(100_000))
    pulls = [client.command(11, pull_ext("Orders")) for _ in range(200)]
    frames = b"".join(encode_frame(pull) for pull in pulls)
    socks = await asyncio.to_thread(connect_all, app.broker_port)
    await until(lambda: len(app._server.connections) == CROWD + 1)  # type: ignore[union-attr]
    with watched_turns() as turns:
        for sock in socks:  # while the loop is blocked: all are readable at its next poll
            sock.sendall(frames)
        answered = app.broker.latencies[RequestCode.PULL_MESSAGE]
        await until(lambda: sum(answered.counts) >= CROWD)
    assert turns.longest < CALLS_MAX
    for sock in socks:
        sock.close()


@pytest.mark.parametrize("how", ["goodbye", "reset"])
async def test_a_large_read_that_had_to_wait_counts_though_its_client_went(
    app: AppBroker, client: Client, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    await client.request(310, send_ext("Orders"))
    monkeypatch.setattr(connection, "READ_LARGE", 1)
    monkeypatch.setattr(connection, "READS_S", -1.0)
    ext = {"consumerGroup": "cg", "topic": "Orders", "queueId": "0"}
    offsets = [
        encode_frame(Command(15, ext | {"commitOffset": str(number)}, flag=ONEWAY_FLAG))
        for number in range(1, 31)
    ]
    sock = socket.create_connection(("127.0.0.1", app.broker_port))
    await until(lambda: len(app._server.connections) == 2)  # type: ignore[union-attr]
    app.broker.turns.is_over()  # a slice has begun
    sock.sendall(b"".join(offsets))
    await something_waits(app)
    if how == "reset":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    sock.close()
    await until(lambda: app.broker.offsets.query("cg", "Orders", 0) == 30)
    await until(lambda: len(app._server.connections) == 1)  # type: ignore[union-attr]


async def test_thousands_that_are_silent_for_too_long_are_closed_a_few_at_a_time(
    app: AppBroker, client: Client
) -> None:
    server = app._server
    assert server is not None
    spoken = set(server.connections)
    socks = []
    for _ in range(5):
        socks += await asyncio.to_thread(connect_all, app.broker_port)
    await until(lambda: len(server.connections) == len(socks) + 1)
    with watched_turns() as turns:
        for each in server.connections - spoken:
            each.active_at -= 1000
        await until(lambda: len(server.connections) == 1)
    assert turns.longest < 8_000  # 2,000 is usual
    assert (await client.request(310, send_ext("Orders"))).code == ResponseCode.SUCCESS
    for sock in socks:
        sock.close()


async def test_entries_that_are_not_in_memory_are_read_by_a_thread(
    app: AppBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(50):
        await client.request(310, send_ext("Orders"))
    await until(lambda: app.broker.store.max_offset("Orders", 0) >= 20)
    monkeypatch.setattr(pull, "RECENT_ENTRIES", 10)
    monkeypatch.setattr(page_cache, "is_cached", lambda *_: False)
    monkeypatch.setattr(page_cache, "are_resident", lambda _: False)
    read: list[str] = []
    real = Residence.bring_in
    let_go = threading.Event()

    def slow_disk(self: Residence, file: Any, *where: int) -> None:
        assert let_go.wait(30)
        read.append(file.path)
        real(self, file, *where)

    monkeypatch.setattr(Residence, "bring_in", slow_disk)
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


async def test_a_disk_that_fails_under_a_queues_entries_is_reported(
    app: AppBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(20):
        await client.request(310, send_ext("Orders"))
    await until(lambda: app.broker.store.max_offset("Orders", 0) >= 20)
    monkeypatch.setattr(pull, "RECENT_ENTRIES", 10)
    monkeypatch.setattr(page_cache, "is_cached", lambda *_: False)
    monkeypatch.setattr(page_cache, "are_resident", lambda _: False)

    def broken(*_: object) -> None:
        raise OSError(5, "planted")

    monkeypatch.setattr(Residence, "bring_in", broken)
    answer = await client.request(11, pull_ext("Orders"))
    assert answer.code == ResponseCode.SYSTEM_ERROR and "planted" in str(answer.remark)
    assert (await client.request(11, pull_ext("Orders", offset=15))).code == ResponseCode.SUCCESS


async def test_a_pull_of_many_that_has_to_wait_is_read_once(
    app: AppBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.broker.settings, "max_transfer_count_on_message_in_memory", 200)
    for _ in range(100):
        await client.request(310, send_ext("Orders"), bytes(1024))
    await until(lambda: app.broker.store.max_offset("Orders", 0) == 100)
    read: list[int] = []
    real = app.broker.store.read_plain

    def noted(queue: Any, *where: int) -> Any:
        read.append(where[0])
        return real(queue, *where)

    monkeypatch.setattr(app.broker.store, "read_plain", noted)
    monkeypatch.setattr(Turns, "is_over", lambda *_: True)
    answer = await client.request(11, pull_ext("Orders", maxMsgNums="100"))
    assert answer.ext["nextBeginOffset"] == "100" and read == [0]
