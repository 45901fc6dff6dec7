"""The broker under test and the third-party clients that use it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from peers.apache import VERSIONS
from peers.java_client import JavaClient
from peers.under_test import Broker, make_broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One broker that most tests share: each uses topics and groups of its own."""
    with make_broker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker
        broker.stop()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """Starts brokers with settings, for tests that stop, kill or configure them."""
    with ExitStack() as stack:

        def start(**settings: str) -> Broker:
            broker = make_broker(tmp_path / "broker", **settings)
            stack.enter_context(broker)
            return broker

        yield start


@pytest.fixture(scope="session", params=VERSIONS)
def java(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JavaClient]:
    """A JVM with the Java client of each version; recalls are traced, too."""
    folder = tmp_path_factory.mktemp(f"java-{request.param}")
    traced = {"com__rocketmq__recall__default__trace__enable": "true"}
    with JavaClient(request.param, folder, **traced) as java:
        yield java


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name of this test alone, fit for topics, groups and clients."""
    words = re.sub(r"[^A-Za-z0-9]+", "_", request.node.name).strip("_")
    return words.removeprefix("test_")[-90:]
