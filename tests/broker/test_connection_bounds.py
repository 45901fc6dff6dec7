"""What one client may take of the broker: connections, memory, turns."""

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Any

import pytest
from peers.echo import Echo, ended
from peers.in_process import Client, held_sync, pull_ext, running_broker, send_ext
from waiting import until

from aerobee.broker.daemon.app import AppBroker
from aerobee.broker.handlers.pull.reading import PullReads
from aerobee.broker.net import server as net_server
from aerobee.broker.net.feed import Limits
from aerobee.broker.store.files import page_cache
from aerobee.protocol.wire.codecs import decode_command
from aerobee.protocol.wire.codes import ResponseCode
from aerobee.protocol.wire.command import JSON, MSGPACK, ROCKETMQ, Command
from aerobee.protocol.wire.frame import FrameDecoder, encode_frame

# --- bounds


async def test_connections_beyond_the_most_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net_server, "REFUSING_S", 0.1)  # the wait for a first request, never sent
    async with Echo(connections_max=3) as server:
        clients = [await server.connect() for _ in range(3)]
        for client in clients:
            await client.request(1, {})
        fourth = await server.connect()
        await ended(fourth)
        await clients.pop().close()
        await until(lambda: len(server.server.connections) == 2)
        fifth = await server.connect()
        assert (await fifth.request(1, {"say": "in"})).ext == {"echo": "in"}
        for client in (*clients, fourth, fifth):
            await client.close()


async def test_a_client_that_does_not_read_is_not_read_from(app: AppBroker) -> None:
    writer = await Client.connect(app)
    await writer.request(310, send_ext("Large"), bytes(100_000))
    await writer.ask_all([writer.command(310, send_ext("Large"), bytes(100_000))] * 1)
    await writer.ask_all(
        [writer.command(310, send_ext("Large"), bytes(100_000)) for _ in range(18)]
    )
    await until(lambda: app.broker.store.max_offset("Large", 0) == 20)
    stalled = socket.create_connection(("127.0.0.1", app.broker_port))
    stalled.setblocking(False)
    request = encode_frame(Command(11, pull_ext("Large")))
    before = _anonymous_bytes()
    asked = 0
    with contextlib.suppress(BlockingIOError):
        for _ in range(3000):  # 6 GB of answers
            stalled.send(request)
            asked += 1
            await asyncio.sleep(0)
    for _ in range(50):
        assert (await writer.request(310, send_ext("Large"), b"x")).code == 0
    assert _anonymous_bytes() - before < 64 << 20
    assert app._server is not None
    [connection] = [each for each in app._server.connections if each.name.endswith(_port(stalled))]
    assert connection._read_paused
    await _drain(stalled, asked)
    stalled.close()
    await writer.close()


@pytest.mark.parametrize("codec", [JSON, ROCKETMQ, MSGPACK])
async def test_answers_are_made_no_faster_than_the_client_takes_them(
    app: AppBroker, codec: int
) -> None:
    writer = await Client.connect(app)
    for _ in range(6):
        await writer.request(310, send_ext("Large"), bytes(10_000))
    await until(lambda: app.broker.store.max_offset("Large", 0) == 6)
    stalled = socket.socket()
    stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stalled.connect(("127.0.0.1", app.broker_port))
    pull = encode_frame(Command(11, pull_ext("Large"), codec=codec))
    stalled.sendall(pull * 400)  # 24 MB of answers
    await until(lambda: app._server is not None and len(app._server.connections) == 2)
    assert app._server is not None
    [connection] = [each for each in app._server.connections if each.name.endswith(_port(stalled))]
    await until(lambda: connection._read_paused)
    await writer.request(310, send_ext("Large"), b"x")  # a turn or two more
    assert connection._transport is not None
    assert connection._transport.get_write_buffer_size() < 6 << 20
    stalled.close()
    await writer.close()


async def test_no_more_is_read_from_the_disk_than_the_client_takes(
    app: AppBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = await Client.connect(app)
    for _ in range(10):
        await writer.request(310, send_ext("Large"), bytes(100_000))
    await until(lambda: app.broker.store.max_offset("Large", 0) == 10)
    monkeypatch.setattr(PullReads, "recent_bytes", 0)
    monkeypatch.setattr(page_cache, "is_cached", lambda *_: False)
    monkeypatch.setattr(page_cache, "are_resident", lambda _: False)
    fetched: list[object] = []
    real = app.broker.store.read_cold

    def counted_read(result: Any) -> Any:
        fetched.append(result)
        return real(result)

    monkeypatch.setattr(app.broker.store, "read_cold", counted_read)
    with socket.create_connection(("127.0.0.1", app.broker_port)) as stalled:
        stalled.sendall(encode_frame(Command(11, pull_ext("Large"))) * 100)  # 100 MB of answers
        await until(lambda: len(fetched) > 3)
        before = -1
        while before < len(fetched):  # until fetching stops
            before = len(fetched)
            await asyncio.sleep(0.1)
        assert before < 30  # a few in the sockets' buffers
        stalled.setblocking(False)
        await _drain(stalled, 100)
    assert len(fetched) == 100
    await writer.close()


async def test_a_message_for_many_waiting_pulls_of_a_client_that_does_not_read_is_not_kept_for_each(
    app: AppBroker,
) -> None:
    writer = await Client.connect(app)
    await writer.request(310, send_ext("Large"), b"x")
    wait = pull_ext("Large", offset=1) | {"sysFlag": "6", "suspendTimeoutMillis": "60000"}
    with socket.create_connection(("127.0.0.1", app.broker_port)) as stalled:
        stalled.sendall(encode_frame(Command(11, wait)) * 1000)
        await until(lambda: app.broker.long_polling.count("Large", 0) == 1000)
        assert app._server is not None
        port = _port(stalled)
        [connection] = [each for each in app._server.connections if each.name.endswith(port)]
        await writer.request(310, send_ext("Large"), bytes(60_000))
        await until(lambda: app.broker.long_polling.count("Large", 0) == 0)
        assert connection._transport is not None
        assert connection._transport.get_write_buffer_size() < 6 << 20
        stalled.setblocking(False)
        decoder = FrameDecoder()
        codes: list[int] = []
        while len(codes) < 1000:
            data = await asyncio.get_running_loop().sock_recv(stalled, 1 << 20)
            codes += [decode_command(*frame).code for frame in decoder.feed(data)]
    assert set(codes) == {ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND}
    await writer.close()


async def test_a_greedy_reader_leaves_others_their_turns(app: AppBroker) -> None:
    client = await Client.connect(app)
    for _ in range(10):
        await client.request(310, send_ext("Large"), bytes(200_000))
    await until(lambda: app.broker.store.max_offset("Large", 0) == 10)
    progress = []

    def greedy() -> None:
        with socket.create_connection(("127.0.0.1", app.broker_port)) as sock:
            sock.sendall(encode_frame(Command(11, pull_ext("Large"))) * 200)  # 400 MB of answers
            received = 0
            while received < 400_000_000:
                received += len(sock.recv(1 << 20))
                progress.append(received)

    reading = asyncio.create_task(asyncio.to_thread(greedy))
    between = 0
    while not reading.done():
        before = len(progress)
        assert (await client.request(310, send_ext("Large", 1), b"x")).code == 0
        between += before > 0 and not reading.done()
    await reading
    assert between > 3
    await client.close()


async def _drain(sock: socket.socket, count: int) -> None:
    """Read until that many answers have come; all of them must."""
    loop = asyncio.get_running_loop()
    decoder = FrameDecoder(64 << 20)
    received = 0
    while received < min(count, 200):
        data = await asyncio.wait_for(loop.sock_recv(sock, 1 << 20), 10)
        assert data
        for _, _, body in decoder.feed(data):
            received += 1
            assert len(body) >= 1_000_000


def _port(sock: socket.socket) -> str:
    return f":{sock.getsockname()[1]}"


def _anonymous_bytes() -> int:
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no Anonymous line")


@pytest.mark.usefixtures("group_commit_in_python")
async def test_too_many_sends_that_wait_for_the_disk_stop_the_reading(tmp_path: Path) -> None:
    async with running_broker(tmp_path, flush_disk_type="SYNC_FLUSH") as app:
        client = await Client.connect(app)
        await client.request(310, send_ext("Orders"))
        assert app._server is not None
        [connection] = app._server.connections
        app._server.limits = Limits(waiting_max=10)
        commands = [client.command(310, send_ext("Orders"), b"x") for _ in range(30)]
        answers = [client.expect(command) for command in commands]
        with held_sync(app):
            for command in commands:
                client.writer.write(encode_frame(command))
                await asyncio.sleep(0.005)
            await until(lambda: connection._read_paused)
            assert 10 <= connection.waiting < 30
        assert {answer.code for answer in await asyncio.gather(*answers)} == {0}
        assert connection.waiting == 0 and not connection._read_paused
        await client.close()
