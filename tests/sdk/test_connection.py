"""The SDK's end of a connection, with a peer of the test's own on a real socket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from waiting import until

from aerobee import connect
from aerobee.client.errors import ConnectFailed, ConnectionLost, RequestTimeout
from aerobee.client.transport.connection import Connection, open_connection
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.conversation import Conversation, frame_parts
from aerobee.protocol.wire.signing import signature


class Peer:
    """Keeps the requests it gets; answers at once only if `prompt`."""

    def __init__(self, *, prompt: bool) -> None:
        self.prompt = prompt
        self.asked: list[Command] = []
        self.writer: asyncio.StreamWriter

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        conversation = Conversation[asyncio.Future[Command]]()
        self.writer = writer
        while data := await reader.read(1 << 16):
            for request in conversation.receive(data):
                self.asked.append(request)
                if self.prompt:
                    self.answer(request)

    def answer(self, request: Command) -> None:
        self.writer.writelines(frame_parts(request.answer(0)))


@asynccontextmanager
async def serving(*, prompt: bool = True) -> AsyncIterator[tuple[Peer, str]]:
    peer = Peer(prompt=prompt)
    async with await asyncio.start_server(peer.serve, "127.0.0.1", 0) as server:
        yield peer, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        peer.writer.close()
        await peer.writer.wait_closed()


@asynccontextmanager
async def connected(*, prompt: bool = True) -> AsyncIterator[tuple[Peer, Connection]]:
    async with serving(prompt=prompt) as (peer, address):
        connection = await open_connection(address, lambda *_: None, timeout=3)
        yield peer, connection
        connection.close()
        await connection.wait_closed(3)


async def test_a_client_with_credentials_signs_whatever_way_a_request_takes() -> None:
    async with serving() as (peer, address), connect(f"mq://key:secret@{address}") as mq:
        remoting = mq._core.remoting
        await mq.admin.ping(address)
        await remoting.ask(address, 25, {"a": "1"}, b"body", what="a question")
        await remoting.oneway(address, Command(15, {"a": "2"}))
        await (await remoting.connection(address)).request(Command(34), 3)
        await until(lambda: len(peer.asked) == 4)
    for request in peer.asked:
        assert request.ext["AccessKey"] == "key"
        assert request.ext["Signature"] == signature(request.ext, request.body, "secret")


async def test_each_request_has_its_own_deadline_and_the_others_go_on() -> None:
    async with connected(prompt=False) as (peer, connection):
        patient = connection.ask(Command(11), 30)
        brief = [connection.ask(Command(10), seconds) for seconds in (0.2, 0.1, 0.1234)]
        for future, seconds in zip(brief, ("0.2", "0.1", "0.1234"), strict=True):
            with pytest.raises(RequestTimeout, match=f"answer request 10 within {seconds} s"):
                await future
        for request in peer.asked:  # three of the answers come too late
            peer.answer(request)
        assert (await patient).code == 0
        assert connection.conversation.in_flight == 0


async def test_a_connection_without_requests_has_no_timer() -> None:
    async with connected() as (_, connection):
        await connection.request(Command(10), 0.05)
        assert connection._timer is not None
        await until(lambda: connection._timer is None)
        late = connection.ask(Command(10), 30)
        connection.close()
        with pytest.raises(ConnectionLost, match="was closed"):
            await late
        assert connection._timer is None


async def test_a_peer_that_speaks_something_else_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async with connected(prompt=False) as (peer, connection):
        asked = connection.ask(Command(10), 30)
        await until(lambda: peer.asked)
        peer.writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with pytest.raises(ConnectionLost, match="does not speak RocketMQ's protocol: frame of"):
            await asked
    assert caplog.text.count("something that is not a RocketMQ frame") == 1


async def test_a_request_written_while_the_transport_is_closing_fails_as_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with connected() as (_peer, connection):
        await connection.request(Command(10), 3)
        asked = connection.ask(Command(10), 30)
        connection._transport.close()  # as at the other side's EOF; `connection_lost` comes later
        with pytest.raises(ConnectionLost):
            await asked
    assert not caplog.records


@pytest.mark.parametrize(
    "address", ["", "nohost", "localhost:", ":10911", "localhost:99999", "a:-1"]
)
async def test_what_is_no_address_is_not_connected_to(address: str) -> None:
    with pytest.raises(ConnectFailed, match="an address is host:port"):
        await open_connection(address, lambda *_: None, timeout=3)
