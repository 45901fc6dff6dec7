"""A broker with a client. Its own loop is uvloop; tests of the connection run on asyncio's too."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
import uvloop
from peers.in_process import Client, running_broker

from aerobee.broker.daemon.app import AppBroker

LoopFactory = Callable[[], asyncio.AbstractEventLoop]

_LOOPS: dict[str, LoopFactory] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.new_event_loop,
}


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, LoopFactory]:
    if item.path.name == "test_connection.py":
        return _LOOPS
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[AppBroker]:
    async with running_broker(tmp_path) as app:
        yield app


@pytest.fixture
async def client(app: AppBroker) -> AsyncIterator[Client]:
    client = await Client.connect(app)
    yield client
    await client.close()
