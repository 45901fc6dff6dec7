"""A start that is cancelled while the broker begins to listen, where asyncio's loop yields;
uvloop does not."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from peers.in_process import SMALL, running_broker

from aerobee.broker.daemon.app import AppBroker
from aerobee.broker.settings import Settings


@pytest.mark.parametrize("listening", [1, 2])
def test_a_start_cancelled_between_two_ports_leaves_nothing_open(
    tmp_path: Path, listening: int
) -> None:
    asyncio.run(cancelled_start(tmp_path, listening))


async def cancelled_start(tmp_path: Path, listening: int) -> None:
    values = SMALL | {"namesrv_listen_port": 0, "store_path_root_dir": str(tmp_path / "store")}
    app = AppBroker(Settings(**values))
    start = asyncio.create_task(app.start())
    while app._server is None or len(app._server._listeners) < listening:
        assert not start.done(), "it was not cancelled"
        await asyncio.sleep(0)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    for port in (app.broker_port, app.namesrv_port):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 1)
    async with running_broker(tmp_path) as again:  # the store was closed cleanly
        assert again.is_ready
