"""Reads of many requests over a real socket: received where the compiled part parses them."""

import asyncio
from pathlib import Path

import pytest
from peers.in_process import Client, has_stored, running_broker, send_ext
from waiting import until

from aerobee.broker.compiled import PATH
from aerobee.broker.daemon.app import AppBroker
from aerobee.broker.fast.compiled_path import CompiledPath
from aerobee.broker.net.connection import Connection
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.frame import encode_frame

pytestmark = pytest.mark.skipif(PATH != "compiled", reason="the path in Python has no inbox")


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of reads that the inbox took."""
    sizes: list[int] = []
    receive = CompiledPath.receive

    def counted(self: CompiledPath, count: int) -> object:
        sizes.append(count)
        return receive(self, count)

    monkeypatch.setattr(CompiledPath, "receive", counted)
    return sizes


async def send_many(client: Client, topic: str, count: int) -> None:
    commands = [
        client.command(RequestCode.SEND_MESSAGE_V2, send_ext(topic), b"%06d" % n + bytes(1024))
        for n in range(count)
    ]
    answers = await client.ask_all(commands)
    assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
    offsets = [int(answer.ext["queueOffset"]) for answer in answers]
    assert offsets == list(range(offsets[0], offsets[0] + count))


async def many_sent(app: AppBroker, count: int = 3000) -> Client:
    """A client whose reads already go to the inbox."""
    client = await Client.connect(app)
    await client.request(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"makes the topic")
    await send_many(client, "T", count)
    return client


def connection_of(app: AppBroker) -> Connection:
    assert app._server is not None
    (connection,) = app._server.connections
    return connection


async def test_large_reads_are_parsed_where_they_are_received(
    tmp_path: Path, received: list[int]
) -> None:
    async with running_broker(tmp_path) as app:
        client = await many_sent(app)
        assert sum(received) > 1 << 20
        await until(lambda: has_stored(app, "T", 0, 3001))
        small = await client.request(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"alone")
        assert small.code == ResponseCode.SUCCESS, "small reads continue"
        await client.close()


async def test_clients_with_large_reads_do_not_mix(tmp_path: Path, received: list[int]) -> None:
    async with running_broker(tmp_path) as app:
        first, second = await many_sent(app), await many_sent(app)
        await asyncio.gather(send_many(first, "A", 2000), send_many(second, "B", 2000))
        assert received
        await until(lambda: has_stored(app, "A", 0, 2000) and has_stored(app, "B", 0, 2000))
        await first.close()
        await second.close()


async def test_a_frame_begun_in_the_inbox_has_its_deadline(
    tmp_path: Path, received: list[int]
) -> None:
    async with running_broker(tmp_path) as app:
        client = await many_sent(app)
        assert received
        command = client.command(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"cut")
        client.writer.write(encode_frame(command)[:20])
        connection = connection_of(app)
        await until(lambda: connection.frame_begun_at > 0)
        connection.check_deadlines(connection.frame_begun_at + 11)
        await until(lambda: connection.is_closed)
        await client.close()


async def test_what_is_no_frame_ends_a_connection_with_an_inbox(
    tmp_path: Path, received: list[int]
) -> None:
    async with running_broker(tmp_path) as app:
        client = await many_sent(app)
        assert received
        connection = connection_of(app)
        client.writer.write(b"\xff" * (200 << 10))
        await until(lambda: connection.is_closed)
        await client.close()
