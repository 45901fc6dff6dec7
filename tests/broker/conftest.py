"""A broker with a client. Its own loop is uvloop; tests of the connection run on asyncio's too."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import uvloop
from peers.in_process import Client, running_broker
from peers.name_server import Ask, connect

from aerobee.broker.base.clock import VirtualClock
from aerobee.broker.daemon.app import AppBroker
from aerobee.broker.daemon.namesrv import AppNameServer
from aerobee.broker.net.request_link import RequestLink
from aerobee.broker.settings import load_settings
from aerobee.protocol.wire.command import JSON, Command

LoopFactory = Callable[[], asyncio.AbstractEventLoop]

_LOOPS: dict[str, LoopFactory] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.new_event_loop,
}
ON_BOTH_LOOPS = {
    "test_connection.py",
    "test_connection_bounds.py",
    "test_connection_life.py",
}


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, LoopFactory]:
    if item.path.name in ON_BOTH_LOOPS:
        return _LOOPS
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[AppBroker]:
    async with running_broker(tmp_path) as app:
        yield app


@pytest.fixture
def codec() -> int:
    """The client's codec; modules that test all codecs override this fixture."""
    return JSON


@pytest.fixture
async def client(app: AppBroker, codec: int) -> AsyncIterator[Client]:
    client = await Client.connect(app, codec)
    yield client
    await client.close()


@pytest.fixture
async def json_client(app: AppBroker) -> AsyncIterator[Client]:
    client = await Client.connect(app)
    yield client
    await client.close()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[AppNameServer]:
    settings = load_settings(None, {"namesrvListenPort": 0, "storePathRootDir": tmp_path}, {})
    app = AppNameServer(settings, clock=VirtualClock())
    await app.start()
    yield app
    await app.stop()


@pytest.fixture
async def link(server: AppNameServer) -> AsyncIterator[RequestLink]:
    link = await connect(server)
    yield link
    link.close()
    await asyncio.sleep(0)


@pytest.fixture
def ask(link: RequestLink) -> Ask:
    async def request(code: int, body: bytes = b"", version: int = 513, **ext: Any) -> Command:
        texts = {key: str(value) for key, value in ext.items()}
        return await link.request(Command(code, texts, body, version=version), 60)

    return request
