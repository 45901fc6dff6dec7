"""What every test begins with."""

import os

import pytest
import structlog
from hypothesis import settings

# A machine that is busy makes one case of many slow, which says nothing about the code.
# CI tries the same cases each time; who runs the tests by hand tries new ones.
settings.register_profile("no deadline", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("no deadline")


@pytest.fixture(autouse=True)
def plain_logs() -> None:
    """Logs go to stdout as structlog's defaults say, whatever a broker in an earlier test set."""
    structlog.reset_defaults()
