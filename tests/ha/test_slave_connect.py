"""How a slave connects to its master's replication port."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest
from peers.tools import free_port
from waiting import until

from aerobee.broker.ha.master_client import MasterAddress
from aerobee.broker.ha.slave_link import _connect
from ha.pairs import running_master, running_slave


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


@pytest.mark.parametrize("odd", ["broker", "broker..local:10912"])
async def test_an_odd_address_of_the_master_does_not_end_the_following(
    tmp_path: Path, odd: str
) -> None:
    """A name server repeats what a broker has registered, such as a brokerIP2 with a mistake."""
    async with running_master(tmp_path) as master, running_slave(tmp_path, None) as slave:
        main = f"127.0.0.1:{master.broker_port}"
        following = slave._role_change.following
        assert following is not None
        following.on_master(main, odd)
        await until(lambda: following._link.master == MasterAddress(main, odd))
        await until(lambda: "no name server" not in following._link._logged)
        following.on_master(main, f"127.0.0.1:{master.broker.addresses.ha_port}")
        await until(lambda: following.follows)
        assert not slave.health()
