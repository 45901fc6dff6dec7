"""Both loops: on uvloop a plain connection writes to its socket directly."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

from tls.certificates import Authority, Pair

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, LoopFactory]:
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Pair:
    return authority.sign("server")
