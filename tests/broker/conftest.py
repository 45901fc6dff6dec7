"""The broker's own loop is uvloop: its tests run on that, those of the connection on both."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

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
