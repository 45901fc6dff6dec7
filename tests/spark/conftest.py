"""A real SparkSession, a real broker. Without PySpark these tests are not even collected."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("pyspark") is None or find_spec("pyarrow") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    from click.testing import CliRunner, Result
    from peers.aerobee_broker import AerobeeBroker
    from peers.tools import need_tools
    from pyspark.sql import SparkSession
    from spark.helpers import Run, session_config

    from aerobee.pipeline.cli import pipeline

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.spark)
            # py4j leaves its sockets to the garbage collector.
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(
                pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
            )


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for all tests that can share one."""
    need_tools("java")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master("local[2]").appName("tests")
    for key, value in session_config().items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AerobeeBroker]:
    """One broker that most tests share: each uses topics and groups of its own."""
    with AerobeeBroker(tmp_path_factory.mktemp("broker"), enablePropertyFilter="true") as running:
        yield running


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Callable[..., AerobeeBroker]]:
    """Brokers for tests that stop, kill or configure them."""
    started: list[AerobeeBroker] = []

    def start(**settings: str) -> AerobeeBroker:
        running = AerobeeBroker(tmp_path / f"broker-{len(started)}", **settings)
        running.start()
        started.append(running)
        return running

    yield start
    for running in started:
        running.__exit__()


@pytest.fixture
def run(spark: SparkSession) -> Run:
    """Runs a command of the pipeline; it finds the running session."""

    def invoke(*words: Any, fails: bool = False) -> Result:
        result = CliRunner().invoke(pipeline, [str(word) for word in words])
        assert (result.exit_code != 0) == fails, f"{result.output}\n{result.exception!r}"
        return result

    return invoke
