"""How a broker finds the leading controller, with controllers that do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from aerobee.broker.ha.arbiter import ArbiterError
from aerobee.broker.ha.controller_client import ControllerClient
from aerobee.broker.settings import Settings
from aerobee.protocol.wire import controller_codes as controller
from aerobee.protocol.wire.codecs import decode_command
from aerobee.protocol.wire.codes import ResponseCode
from aerobee.protocol.wire.frame import FrameDecoder, encode_frame

TIMEOUT_S = 2.0


@pytest.fixture
async def deaf() -> AsyncIterator[str]:
    """Accepts connections and never answers, as a machine that hangs."""
    ended = asyncio.Event()

    async def listen(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ended.wait()
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    yield f"{host}:{port}"
    ended.set()
    server.close()
    await server.wait_closed()


@pytest.fixture
async def leader() -> AsyncIterator[str]:
    """Names itself as the leader, and answers everything."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = FrameDecoder()
        while data := await reader.read(65536):
            for frame in decoder.feed(data):
                request = decode_command(*frame)
                ext = {"controllerLeaderAddress": address}
                writer.write(encode_frame(request.answer(ResponseCode.SUCCESS, ext)))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    address = f"{host}:{port}"
    yield address
    server.close()
    await server.wait_closed()


def client_of(
    *addresses: str, fetch_controller_addr_by_dns_lookup: bool = False
) -> ControllerClient:
    settings = Settings(
        enable_controller_mode=True,
        controller_addr=";".join(addresses),
        fetch_controller_addr_by_dns_lookup=fetch_controller_addr_by_dns_lookup,
    )
    return ControllerClient(settings, TIMEOUT_S)


async def test_controllers_that_hang_do_not_hide_the_leader(deaf: str, leader: str) -> None:
    client = client_of(deaf, leader)
    await client.ask(controller.GET_SYNC_STATE_DATA, {})
    assert client.leader == leader
    client.close()


async def test_controllers_that_all_hang_are_an_error_in_time(deaf: str) -> None:
    client = client_of(deaf, deaf)
    with pytest.raises(ArbiterError, match="no controller that leads was found in 2 s"):
        await client.ask(controller.GET_SYNC_STATE_DATA, {})
    client.close()


async def test_a_name_without_an_address_does_not_hide_the_other_controllers(leader: str) -> None:
    client = client_of("no..name:9878", leader, fetch_controller_addr_by_dns_lookup=True)
    await client.ask(controller.GET_SYNC_STATE_DATA, {})
    assert client.leader == leader
    client.close()


async def test_names_that_all_have_no_address_are_an_error() -> None:
    client = client_of("no..name:9878", fetch_controller_addr_by_dns_lookup=True)
    with pytest.raises(ArbiterError, match=r"controllerAddr=no\.\.name:9878 cannot be looked up"):
        await client.ask(controller.GET_SYNC_STATE_DATA, {})
    client.close()
