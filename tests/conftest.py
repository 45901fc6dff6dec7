"""What every test begins with."""

import gc
import os

import pytest
import structlog
from hypothesis import settings

# On a busy machine single cases are slow, which says nothing about the code.
# CI tries the same cases each time; a run by hand tries new ones.
settings.register_profile("no deadline", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("no deadline")

# Started first, so that no worker is left with one of them at the end (`make test`).
LONGEST = (
    "tests/two_ways/test_two_ways.py",
    "tests/ha/test_killed.py",
    "tests/broker/test_daemon.py",
    "tests/sdk/test_order_app.py",
    "tests/cli/test_terminal.py",
    "tests/services/test_clock_set.py",
    "tests/docs/test_commands.py",
    "tests/two_ways/test_compiled.py",
    "tests/ha/test_simulation.py",
    "tests/sdk/test_examples.py",
    "tests/architecture/test_contracts.py",
    "tests/crash/test_simulator.py",
    "tests/console/test_child.py",
    "tests/cli/test_snapshot.py",
    "tests/services/test_killed_process.py",
    "tests/services/test_retention_crashes.py",
    "tests/broker/test_config_saves.py",
    "tests/ha/test_replica_commands.py",
)


# structlog's own default colours tracebacks by rich, which takes 0.1 s for each error that a test
# has the broker log, and 0.5 s more for the first.
for renderer in structlog.get_config()["processors"]:
    if isinstance(renderer, structlog.dev.ConsoleRenderer):
        renderer.exception_formatter = structlog.dev.plain_traceback


# Modules and the list of tests live on: the collector skips them while they are made, which is
# a third of the time to collect all tests, and in every later collection.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


@pytest.fixture(autouse=True)
def plain_logs() -> None:
    """Logs go to stdout as structlog's defaults say, whatever a broker in an earlier test set."""
    structlog.reset_defaults()


@pytest.fixture
def group_commit_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """The syncs of SYNC_FLUSH go through `sync` in Python, which a test can hold or let fail; those
    of the thread in C cannot be (tests/store/test_sync_thread.py has its tests)."""
    from aerobee.broker.store.durability import flush_log

    monkeypatch.setattr(flush_log, "hot", None)
