"""A real broker for tests: `async with EmbeddedBroker() as broker`; see aerobee.client.testing."""

from aerobee.client.testing import EmbeddedBroker

__all__ = ["EmbeddedBroker"]
