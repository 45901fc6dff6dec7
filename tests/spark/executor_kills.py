"""Kills of executors, JVMs of their own on a standalone cluster, under the sink and kept tables.

`python -m spark.executor_kills 20 SEED`: so many under each, in turns of both executors. The
driver goes on with new executors. After each kill no row is there twice, and at the end every
message is there. Tables are opened with every reader after each kill, when the driver has ended.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from peers.aerobee_broker import AerobeeBroker
from peers.tools import wait_for
from spark import sink_kills, table_kills
from spark.helpers import create_topic, numbers, start_script, topic_values
from spark.kill_rounds import Load
from spark.kills import kill_group, wait_until
from spark.lake_readers import with_spark
from spark.standalone import CONFIG, StandaloneCluster

QUEUES = 3
PATIENT = {"spark.task.maxFailures": "100"}  # an executor that is killed fails its tasks


@dataclass(frozen=True, slots=True)
class Subject:
    """What runs while executors are killed: a driver, its progress, and what must hold."""

    driver: Path
    topic: str
    settings: dict[str, Any]
    progress: Callable[[], int]
    most: int  # progress between two kills
    check: Callable[[], object]
    at_rest: bool  # it can be checked only while no driver works on it
    complete: Callable[[int], None]  # every one of so many messages is there


def sink(folder: Path, broker: AerobeeBroker) -> Subject:
    namesrv = broker.namesrv
    create_topic(broker.broker, "eo", QUEUES)

    def complete(sent: int) -> None:
        assert topic_values(namesrv, "eo") == Counter(numbers(sent))

    settings = {"checkpoints": str(folder / "checkpoints"), "limit": 60, "pause_ms": 3}
    return Subject(
        sink_kills.DRIVER,
        "in",
        settings,
        lambda: sink_kills.visible(namesrv),
        120,
        lambda: sink_kills.check(namesrv),
        False,
        complete,
    )


def tables(folder: Path, _: AerobeeBroker) -> Subject:
    root = folder / "lake"
    settings = {"root": str(root), "topic": table_kills.TOPIC, "rows_per_commit": 60}
    return Subject(
        table_kills.DRIVER,
        table_kills.TOPIC,
        settings,
        lambda: table_kills.commits(root),
        5,
        lambda: table_kills.check(root),
        True,
        lambda sent: table_kills.check_complete(root, sent),
    )


def _end(driver: subprocess.Popen[str], done: Path) -> None:
    """Let it do all that is there."""
    done.touch()
    output, _ = driver.communicate(timeout=600)
    assert "complete" in output, output[-3000:]
    done.unlink()


def run(
    folder: Path, kills: int, seed: int, subject_of: Callable[[Path, AerobeeBroker], Subject]
) -> int:
    """Kills `kills` executors; how many rows there are in the end, each once."""
    chance = random.Random(seed)
    done = folder / "done"
    with (
        StandaloneCluster(folder / "spark") as cluster,
        AerobeeBroker(folder / "broker", brokerName="broker-a") as broker,
    ):
        subject = subject_of(folder, broker)
        create_topic(broker.broker, subject.topic, QUEUES)
        common = {
            "master": cluster.master,
            "config": CONFIG | PATIENT,
            "namesrv": broker.namesrv,
            "done": str(done),
        }
        start = partial(start_script, subject.driver, subject.settings | common)
        driver = start()
        try:
            with Load(broker.namesrv, subject.topic, QUEUES) as load:
                for number in range(kills):
                    more = subject.progress() + chance.randint(1, subject.most)
                    assert wait_until(lambda more=more: subject.progress() >= more, driver, 300)  # type: ignore[misc]
                    wait_for(lambda: len(cluster.executors()) == 2, timeout=60, what="executors")
                    time.sleep(chance.random())
                    os.kill(chance.choice(cluster.executors()), signal.SIGKILL)
                    if subject.at_rest:
                        _end(driver, done)
                    print(f"kill {number + 1}: {subject.check()} of {load.sent}", flush=True)
                    if subject.at_rest:
                        driver = start()
            _end(driver, done)
        finally:
            kill_group(driver)
        subject.check()
        subject.complete(load.sent)
    return load.sent


if __name__ == "__main__":
    count, seed = int(sys.argv[1]), int(sys.argv[2])
    with_spark()
    for name, subject in (("the exactly-once sink", sink), ("kept tables", tables)):
        with tempfile.TemporaryDirectory() as temporary:
            rows = run(Path(temporary), count, seed, subject)
        print(f"{count} kills of an executor under {name}: {rows} rows, each once", flush=True)
