"""The pytest fixture `aerobee_broker`: a real broker for one test, if Aerobee is installed.

pytest imports this module in every project that has Aerobee installed, so nothing of Aerobee is
imported before a test asks for the fixture.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from aerobee.client.testing import EmbeddedBroker


def _async_fixture() -> Callable[..., Any]:
    """pytest-asyncio's fixture decorator if installed: pytest's own cannot await."""
    try:
        import pytest_asyncio
    except ImportError:
        return pytest.fixture
    fixture: Callable[..., Any] = pytest_asyncio.fixture
    return fixture


@_async_fixture()
async def aerobee_broker() -> AsyncIterator[EmbeddedBroker]:
    """A running broker in a temporary folder on free ports, with a clock that a test moves."""
    from aerobee.client.testing import EmbeddedBroker

    async with EmbeddedBroker() as broker:
        yield broker
