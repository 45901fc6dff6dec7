"""What every test begins with."""

import pytest
import structlog


@pytest.fixture(autouse=True)
def plain_logs() -> None:
    """Logs go to stdout as structlog's defaults say, whatever a broker in an earlier test set."""
    structlog.reset_defaults()
