"""Connections: slices, deadlines, backpressure, hostile and slow peers, requests of ours, stops."""

import asyncio
import contextlib
import itertools
import os
import socket
import struct
import time
from collections.abc import Iterator
from functools import partial
from operator import length_hint
from pathlib import Path
from typing import Any

import pytest
from peers.in_process import Client, has_stored, held_sync, pull_ext, running_broker, send_ext
from structlog.testing import capture_logs
from waiting import until

from aerobee.broker.base.turns import Turns
from aerobee.broker.daemon.app import AppBroker
from aerobee.broker.fast.hot_path import HotPath
from aerobee.broker.handlers.pull.reading import PullReads
from aerobee.broker.net import server as net_server
from aerobee.broker.net.connection import Connection
from aerobee.broker.net.feed import Limits
from aerobee.broker.net.general_feed import GeneralFeed
from aerobee.broker.net.questions import ConnectionClosed
from aerobee.broker.net.requests import Dispatcher, Request
from aerobee.broker.net.server import Server, bind, bind_pair
from aerobee.broker.store.files import page_cache
from aerobee.protocol.files.record import decode_records
from aerobee.protocol.wire.codecs import decode_command
from aerobee.protocol.wire.codes import ResponseCode
from aerobee.protocol.wire.command import JSON, MSGPACK, ROCKETMQ, Command
from aerobee.protocol.wire.frame import FrameDecoder, RawFrame, encode_frame


def echo(request: Request) -> Command:
    return request.command.answer(0, {"echo": request.command.ext.get("say", "")})


class Echo:
    """A server whose only request, 1, says back what it is told; 2 breaks."""

    def __init__(self, limits: Limits | None = None, connections_max: int = 0) -> None:
        self.seen: list[Connection] = []

        def broken(_request: Request) -> Command:
            raise RuntimeError("planted")

        dispatcher = Dispatcher({1: echo, 2: broken})
        self.server = Server(
            lambda connection: GeneralFeed(connection, dispatcher, 16 << 20),
            limits,
            connections_max=connections_max,
        )
        self.server.on_open.append(self.seen.append)
        self.port = 0

    async def __aenter__(self) -> "Echo":
        sock = bind("127.0.0.1", 0)
        self.port = sock.getsockname()[1]
        await self.server.listen(sock)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop(1.0)

    async def connect(self) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        return Client(reader, writer, JSON)


async def ended(client: Client, seconds: float = 10.0) -> None:
    """Wait until the broker has closed the connection."""
    await asyncio.wait_for(asyncio.shield(client.ended), seconds)


# --- frames in any slices


async def test_a_request_sent_byte_by_byte_is_answered() -> None:
    async with Echo() as server:
        client = await server.connect()
        command = client.command(1, {"say": "hello"})
        answer = client.expect(command)
        for byte in encode_frame(command):
            client.writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert (await asyncio.wait_for(answer, 5)).ext == {"echo": "hello"}
        await client.close()


async def test_ten_thousand_requests_in_one_write_are_all_answered() -> None:
    async with Echo() as server:
        client = await server.connect()
        commands = [client.command(1, {"say": str(n)}) for n in range(10_000)]
        answers = await client.ask_all(commands)
        assert [answer.ext["echo"] for answer in answers] == [str(n) for n in range(10_000)]
        await client.close()


class CountedBytes(bytes):
    """Counts the bytes that are copied out of a read."""

    copied = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        if not isinstance(found, bytes):
            return found
        CountedBytes.copied += len(found)
        return CountedBytes(found)


class CountedFrames(list[RawFrame]):
    """Counts the frames that are looked at or copied."""

    seen = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        CountedFrames.seen += len(found) if isinstance(key, slice) else 1
        return CountedFrames(found) if isinstance(key, slice) else found

    def __iter__(self) -> Iterator[RawFrame]:
        return CountedIterator(super().__iter__())


class CountedIterator:
    def __init__(self, frames: Iterator[RawFrame]) -> None:
        self._frames = frames

    def __iter__(self) -> Iterator[RawFrame]:
        return self

    def __next__(self) -> RawFrame:
        CountedFrames.seen += 1
        return next(self._frames)

    def __length_hint__(self) -> int:
        return length_hint(self._frames)


class CountedDecoder(FrameDecoder):
    def feed(self, data: bytes) -> list[RawFrame]:
        return CountedFrames(super().feed(data))


async def test_a_read_of_many_small_requests_is_gone_through_once(
    app: AppBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Going through the rest again for each request takes a time that grows with their square."""
    await client.request(310, send_ext("Orders"), b"x")
    assert app._server is not None
    [connection] = app._server.connections
    feed = connection._feed
    assert isinstance(feed, HotPath)
    monkeypatch.setattr(feed, "_decoder", CountedDecoder())
    monkeypatch.setattr(feed, "_turns", Turns(slice_s=60.0))
    monkeypatch.setattr(CountedBytes, "copied", 0)
    monkeypatch.setattr(CountedFrames, "seen", 0)
    count = 1000
    read = CountedBytes(encode_frame(Command(9999, flag=2)) * count)
    before = feed.completed
    feed.feed(read)
    assert feed.completed - before == count and not feed.kept_back
    assert count <= CountedFrames.seen <= 2 * count
    assert len(read) // 2 < CountedBytes.copied <= 2 * len(read)


async def test_an_unknown_code_and_a_broken_handler_are_answered() -> None:
    async with Echo() as server:
        client = await server.connect()
        unknown, broken, good = await client.ask_all(
            [client.command(77, {}), client.command(2, {}), client.command(1, {"say": "x"})]
        )
        assert (unknown.code, unknown.remark) == (3, " request type 77 not supported")
        assert (broken.code, broken.remark) == (1, "RuntimeError: planted")
        assert good.ext == {"echo": "x"}
        await client.close()


async def test_two_connections_never_mix_their_bytes(app: AppBroker) -> None:
    clients = [await Client.connect(app) for _ in range(4)]
    await clients[0].request(310, send_ext("Orders"))
    frames = []
    for number, client in enumerate(clients):
        body = bytes([65 + number]) * 3000
        commands = [client.command(310, send_ext("Orders", number), body) for _ in range(20)]
        frames.append((client, b"".join(map(encode_frame, commands)), commands))
    answers = [client.expect(each) for client, _, commands in frames for each in commands]
    longest = max(len(data) for _, data, _ in frames)
    for start in range(0, longest, 700):
        for client, data, _ in frames:
            client.writer.write(data[start : start + 700])
        await asyncio.sleep(0)
    assert {answer.code for answer in await asyncio.gather(*answers)} == {0}
    for number in range(4):
        await until(partial(has_stored, app, "Orders", number, 20))
        answer = await clients[0].request(11, pull_ext("Orders", number))
        bodies = {bytes(message.body) for message in decode_records(answer.body)}
        assert bodies - {b""} == {bytes([65 + number]) * 3000}
    for client in clients:
        await client.close()


# --- hostile bytes


def frame_of(header: bytes) -> bytes:
    return struct.pack(">iI", 4 + len(header), len(header)) + header


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        bytes.fromhex("1603010200010001fc0303"),
        struct.pack(">iI", -1, 0),
        struct.pack(">iI", 2**31 - 1, 0),
        struct.pack(">iI", 8, 9 << 24),
        struct.pack(">iI", 8, 100),
        struct.pack(">iI", 6, 2) + b"{}",
        struct.pack(">iI", 6, 2) + b"\xff\xff",
        os.urandom(4096),
    ],
)
async def test_bytes_that_are_no_frame_close_their_own_connection_only(data: bytes) -> None:
    async with Echo() as server:
        good, bad = await server.connect(), await server.connect()
        before = good.request(1, {"say": "before"})
        assert (await before).ext == {"echo": "before"}
        commands = [bad.command(1, {"say": str(n)}) for n in range(5)]
        answers = [bad.expect(command) for command in commands]
        bad.writer.write(b"".join(map(encode_frame, commands)) + data)
        told = await asyncio.wait_for(asyncio.gather(*answers), 5)
        assert [answer.ext["echo"] for answer in told] == ["0", "1", "2", "3", "4"]
        await ended(bad)
        assert (await good.request(1, {"say": "after"})).ext == {"echo": "after"}
        await good.close()
        await bad.close()


async def test_bytes_that_are_no_frame_are_said_once_though_answers_are_still_due() -> None:
    async with Echo(Limits(waiting_max=2)) as server:
        client = await server.connect()
        await client.request(1, {})
        [connection] = server.seen
        connection.waits_begin(3)
        with capture_logs() as logs:
            client.writer.write(b"GET / HTTP/1.1")
            connection.data_received(b"GET / HTTP/1.1")  # what was read before the pause
            for _ in range(3):
                connection.waits_end()
                await asyncio.sleep(0.01)
            await ended(client)
        assert sum("no frame" in line["event"] for line in logs) == 1
        await client.close()


@pytest.mark.parametrize("code", [310, 11, 34])
async def test_a_header_nested_too_deep_closes_the_connection_without_a_traceback(
    app: AppBroker, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    client = await Client.connect(app)
    depth = 100_000  # deeper than any Python lets its parser go
    ext = b'{"a":' + b"[" * depth + b"]" * depth + b"}"
    client.writer.write(frame_of(b'{"code":%d,"extFields":%s,"opaque":1}' % (code, ext)))
    await ended(client)
    await client.close()
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_response_that_nobody_asked_for_is_dropped() -> None:
    async with Echo() as server:
        client = await server.connect()
        client.writer.write(encode_frame(Command(0, opaque=4711, flag=1)))
        assert (await client.request(1, {"say": "still here"})).ext == {"echo": "still here"}
        await client.close()


async def test_a_client_that_half_closes_gets_its_answer() -> None:
    async with Echo() as server:
        client = await server.connect()
        command = client.command(1, {"say": "last words"})
        answer = client.expect(command)
        client.writer.write(encode_frame(command))
        client.writer.write_eof()
        assert (await asyncio.wait_for(answer, 5)).ext == {"echo": "last words"}
        await ended(client)
        await client.close()


@pytest.mark.parametrize("last", [b"", b"GET / HTTP/1.1\r\n\r\n"])
async def test_who_sends_no_more_gets_the_answers_that_wait_for_the_disk(
    tmp_path: Path, last: bytes
) -> None:
    async with running_broker(tmp_path, flush_disk_type="SYNC_FLUSH") as app:
        client = await Client.connect(app)
        await client.request(310, send_ext("Orders"))
        commands = [client.command(310, send_ext("Orders", queue)) for queue in (0, 0, -1)]
        answers = [client.expect(command) for command in commands]
        client.writer.write(b"".join(map(encode_frame, commands)) + last)
        if not last:
            client.writer.write_eof()
        told = await asyncio.wait_for(asyncio.gather(*answers), 5)
        assert [answer.code for answer in told] == [0, 0, 0]
        await ended(client)
        await client.close()


async def test_who_sends_no_more_gets_the_answers_that_were_too_large_to_be_made_at_once(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path, mapped_file_size_commit_log=16 << 20) as app:
        client = await Client.connect(app)
        for _ in range(3):
            await client.request(310, send_ext("Orders"), bytes(1 << 20))
        app.broker.store.reput.catch_up()  # a pull gives what is dispatched by then
        commands = [client.command(11, pull_ext("Orders")) for _ in range(6)]  # 18 MB of answers
        answers = [client.expect(command) for command in commands]
        client.writer.write(b"".join(map(encode_frame, commands)))
        client.writer.write_eof()
        told = await asyncio.wait_for(asyncio.gather(*answers), 10)
        assert [len(answer.body) > 3 << 20 for answer in told] == [True] * 6
        await ended(client)
        await client.close()


# --- deadlines


async def test_a_silent_connection_is_closed_and_a_talking_one_is_not() -> None:
    async with Echo(Limits(idle_seconds=1.0)) as server:
        silent, talking = await server.connect(), await server.connect()
        started = time.monotonic()
        while not silent.ended.done():
            await talking.request(1, {"say": "x"})
            await asyncio.sleep(0.1)
        assert time.monotonic() - started >= 0.9
        await talking.request(1, {"say": "x"})
        await silent.close()
        await talking.close()


async def test_a_header_that_does_not_come_whole_in_time_closes_the_connection() -> None:
    async with Echo(Limits(header_seconds=0.5, frame_seconds=60)) as server:
        client = await server.connect()
        frame = encode_frame(client.command(1, {"say": "slow"}))
        started = time.monotonic()
        for byte in itertools.islice(itertools.cycle(frame), 4):
            client.writer.write(bytes([byte]))
            await asyncio.sleep(0.05)
        await ended(client, 30)
        assert time.monotonic() - started > 0.4
        await client.close()


async def test_a_body_may_take_longer_than_a_header_but_not_for_ever() -> None:
    async with Echo(Limits(header_seconds=0.2, frame_seconds=1.5)) as server:
        client = await server.connect()
        frame = encode_frame(client.command(1, {"say": "slow"}, bytes(100)))
        started = time.monotonic()
        client.writer.write(frame[:-50])
        await asyncio.sleep(0.9)
        assert not client.ended.done()
        await ended(client, 30)
        assert time.monotonic() - started > 1.2
        await client.close()


async def test_a_stream_that_always_ends_inside_a_frame_is_not_slow() -> None:
    async with Echo(Limits(header_seconds=0.6, frame_seconds=0.8)) as server:
        client = await server.connect()
        one = encode_frame(Command(1, {"say": "x"}, flag=2))  # oneway: no answers in between
        client.writer.write(one[:30])
        for _ in range(20):
            client.writer.write(one[30:] + one[:30])
            await asyncio.sleep(0.1)
        assert not client.ended.done()
        client.writer.write(one[30:])
        assert (await client.request(1, {"say": "end"})).ext == {"echo": "end"}
        await client.close()


# --- bounds


async def test_connections_beyond_the_most_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net_server, "REFUSING_S", 0.1)  # for a first request, which does not come
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
        while before < len(fetched):  # until no more are
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


# --- requests of ours


async def test_the_broker_asks_a_client_and_gets_its_answer() -> None:
    async with Echo() as server:
        client = await server.connect()
        await client.request(1, {})
        [connection] = server.seen
        asked = connection.request(Command(307, {"consumerGroup": "g"}), timeout=5)
        await until(lambda: client.asked)
        [question] = client.asked
        assert (question.code, question.flag, question.codec) == (307, 0, JSON)
        client.writer.write(encode_frame(question.answer(0, {"a": "b"}, b"body")))
        answer = await asked
        assert (answer.ext, bytes(answer.body)) == ({"a": "b"}, b"body")
        assert connection.questions._begun().in_flight == 0
        await client.close()


async def test_a_question_without_an_answer_ends_by_its_time_or_with_the_connection() -> None:
    async with Echo() as server:
        client = await server.connect()
        await client.request(1, {})
        [connection] = server.seen
        with pytest.raises(TimeoutError, match="307"):
            await connection.request(Command(307), timeout=0.1)
        asked = connection.request(Command(309), timeout=30)
        await client.close()
        with pytest.raises(ConnectionClosed):
            await asked
        with pytest.raises(ConnectionClosed):
            await connection.request(Command(309), timeout=30)
        connection.send(Command(1))  # to nobody: nothing happens


async def test_a_oneway_of_ours_has_the_bit_and_its_own_number() -> None:
    async with Echo() as server:
        client = await server.connect()
        await client.request(1, {})
        [connection] = server.seen
        for _ in range(2):
            connection.send_oneway(Command(40, {"consumerGroup": "g"}))
        await until(lambda: len(client.asked) == 2)
        assert [question.flag for question in client.asked] == [2, 2]
        assert len({question.opaque for question in client.asked}) == 2
        await client.close()


async def test_all_callbacks_run_when_a_connection_closes_even_if_one_breaks() -> None:
    async with Echo() as server:
        client = await server.connect()
        await client.request(1, {})
        [connection] = server.seen
        closed: list[Connection] = []

        def broken(_connection: Connection) -> None:
            raise RuntimeError("planted")

        connection.on_close += [broken, closed.append]
        await client.close()
        await until(lambda: closed)
        assert closed == [connection] and connection.is_closed
        assert not server.server.connections


# --- stopping


async def test_at_a_stop_answers_that_are_under_way_go_out(tmp_path: Path) -> None:
    async with running_broker(tmp_path, flush_disk_type="SYNC_FLUSH") as app:
        client = await Client.connect(app)
        await client.request(310, send_ext("Orders"))
        commands = [client.command(310, send_ext("Orders"), b"x" * 1000) for _ in range(100)]
        answers = [client.expect(command) for command in commands]
        client.writer.write(b"".join(map(encode_frame, commands)))
        assert app._server is not None
        [connection] = app._server.connections
        await until(lambda: connection.waiting or answers[-1].done())
    assert {answer.code for answer in await asyncio.gather(*answers)} == {0}
    await ended(client)
    await client.close()


async def test_after_a_stop_nobody_is_listening(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as app:
        port = app.broker_port
        client = await Client.connect(app)
    await ended(client)
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", port)
    await client.close()


async def test_a_stop_does_not_wait_for_ever_for_a_client_that_does_not_read() -> None:
    async with Echo() as server:
        stalled = socket.create_connection(("127.0.0.1", server.port))
        stalled.setblocking(False)
        request = encode_frame(Command(1, {"say": "x" * 1000}))
        with contextlib.suppress(BlockingIOError):
            for _ in range(100_000):
                stalled.send(request)
                await asyncio.sleep(0)
        await server.server.stop(0.3)
        assert not server.server.connections
        stalled.close()


def test_a_pair_of_ports_lies_two_apart() -> None:
    main, fast = bind_pair("127.0.0.1", 0)
    assert main.getsockname()[1] - fast.getsockname()[1] == 2
    fast.listen()
    with pytest.raises(OSError, match="cannot listen on"):
        bind("127.0.0.1", fast.getsockname()[1])
    main.close()
    fast.close()


async def test_every_port_answers_the_same(app: AppBroker) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", app.broker_port - 2)
    client = Client(reader, writer, JSON)
    assert (await client.request(310, send_ext("Orders"))).code == 0
    await client.close()
