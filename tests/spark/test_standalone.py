"""On a standalone master with two workers, not only in one JVM; executors die in the middle."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from peers.aerobee_broker import AerobeeBroker
from peers.tools import need_tools
from spark.helpers import create_topic, numbers, produce, start_script, topic_values
from spark.kills import kill_group, wait_until
from spark.standalone import CONFIG, StandaloneCluster

FOLDER = Path(__file__).parent
pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StandaloneCluster]:
    need_tools("java")
    with StandaloneCluster(tmp_path / "spark") as running:
        yield running


def test_batch_stream_and_files_give_the_same_rows_on_two_executors(
    cluster: StandaloneCluster, own_broker: Callable[..., AerobeeBroker], tmp_path: Path
) -> None:
    broker = own_broker()
    create_topic(broker.broker, "in", 4)
    for queue_id in range(4):
        produce(broker.namesrv, "in", numbers(2000)[queue_id::4], queue_id=queue_id)
    settings = {
        "master": cluster.master,
        "config": CONFIG,
        "namesrv": broker.namesrv,
        "store": str(broker.store),
        "folder": str(tmp_path / "out"),
    }
    driver = start_script(FOLDER / "reads_driver.py", settings)
    output, _ = driver.communicate(timeout=240)
    assert "batch 2000 2000, files 2000 2000, stream 2000 2000, hosts 2" in output, output[-3000:]


def test_every_row_is_there_once_after_an_executor_and_the_driver_were_killed(
    cluster: StandaloneCluster, own_broker: Callable[..., AerobeeBroker], tmp_path: Path
) -> None:
    broker = own_broker()
    for topic in ("in", "alo", "eo"):
        create_topic(broker.broker, topic, 2)
    rows = numbers(2000)
    for queue_id in range(2):
        produce(broker.namesrv, "in", rows[queue_id::2], queue_id=queue_id)
    settings = {
        "master": cluster.master,
        "config": CONFIG,
        "namesrv": broker.namesrv,
        "checkpoints": str(tmp_path / "checkpoints"),
        "limit": 500,
        "pause_ms": 4,
    }

    def written() -> int:
        return sum(topic_values(broker.namesrv, "alo").values())

    driver = start_script(FOLDER / "sink_driver.py", settings)
    try:
        assert wait_until(lambda: written() >= 200, driver, 150)
        os.kill(cluster.executors()[0], signal.SIGKILL)
        assert wait_until(lambda: written() >= 900, driver, 150)
    finally:
        kill_group(driver)
    driver = start_script(FOLDER / "sink_driver.py", settings)
    try:
        assert wait_until(lambda: written() >= 1300, driver, 150)
        os.kill(cluster.executors()[-1], signal.SIGKILL)
        output, _ = driver.communicate(timeout=200)
    finally:
        if driver.poll() is None:
            kill_group(driver)
    assert "complete" in output, output[-3000:]
    assert topic_values(broker.namesrv, "eo") == Counter(rows)
    at_least = topic_values(broker.namesrv, "alo")
    assert set(at_least) == set(rows) and sum(at_least.values()) > len(rows)
