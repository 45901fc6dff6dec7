"""A broker's coordination, queries and administration on a real socket over a real store."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from coordination.serving import Peer, Serving


@pytest.fixture
async def serving(tmp_path: Path) -> AsyncIterator[Serving]:
    """A server with an empty store."""
    async with Serving(tmp_path) as server:
        yield server


@pytest.fixture
async def peer(serving: Serving) -> AsyncIterator[Peer]:
    """One client's connection to it."""
    async with serving.connect() as connected:
        yield connected


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[str], str]:
    """The path of a config file in the test's folder."""
    return lambda name: str(tmp_path / "config" / name)
