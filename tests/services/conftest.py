"""A real store with the message services on it, driven by hand: no event loop needed."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from services.services_world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "store")
    yield world
    world.close_quietly()
