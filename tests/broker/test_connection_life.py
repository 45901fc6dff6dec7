"""How long a connection lives, what the broker asks by it, and how it ends."""

import asyncio
import contextlib
import itertools
import socket
import time
from pathlib import Path

import pytest
from peers.echo import Echo, ended
from peers.in_process import Client, running_broker, send_ext
from waiting import until

from aerobee.broker.daemon.app import AppBroker
from aerobee.broker.net.connection import Connection
from aerobee.broker.net.feed import Limits
from aerobee.broker.net.questions import ConnectionClosed
from aerobee.broker.net.server import bind, bind_pair
from aerobee.protocol.wire.command import JSON, Command
from aerobee.protocol.wire.frame import encode_frame

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
        connection.send(Command(1))  # the peer is gone: a no-op


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


def test_a_free_port_is_not_one_that_another_start_has_bound() -> None:
    """Two concurrent starts would both bind it, and the second would fail in listen()."""
    with bind("127.0.0.1", 0) as other:
        port = other.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            bind("127.0.0.1", port, is_found=True)
    with bind("127.0.0.1", port, is_found=True), bind("127.0.0.1", port):
        pass  # an explicit port is bound even beside leftovers of an earlier start


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
