"""How a slave connects to its master's replication port."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from peers.tools import free_port

from aerobee.broker.ha.slave_link import _connect


def address(port: int) -> tuple[Any, ...]:
    return socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port)


async def test_an_address_that_refuses_does_not_hide_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        async def found(*_: object, **__: object) -> list[tuple[Any, ...]]:
            return [address(free_port()), address(port)]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found)
        with await _connect("master", port) as sock:
            assert sock.getpeername() == ("127.0.0.1", port)


async def test_the_last_refusal_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    async def found(*_: object, **__: object) -> list[tuple[Any, ...]]:
        return [address(free_port()), address(free_port())]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found)
    with pytest.raises(ConnectionRefusedError):
        await _connect("master", 1)
