"""Kills of masters under the exactly-once sink: three brokers, a real etcd, one Spark stream.

`python -m spark.sink_failovers 20 SEED`: so many masters are killed while a stream copies a topic.
It continues unaided; after each kill no row is there more often than its message, and at the end
the copy has what the topic has.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from ha.failover_cluster import Cluster
from spark.helpers import create_topic, numbers, start_script, topic_values
from spark.kill_rounds import Load
from spark.kills import kill_group, wait_until
from spark.sink_kills import DRIVER, QUEUES, visible


def run(folder: Path, kills: int, seed: int) -> tuple[int, list[float]]:
    """How many rows the copy has, and for how many seconds each kill has stopped it."""
    with Cluster(folder, 3) as cluster:
        cluster.name_each_other()
        master = cluster.wait_in_sync(1, 2, 3)
        for topic in ("in", "eo"):
            create_topic(cluster.brokers[master].broker, topic, QUEUES)
        namesrv = ";".join(broker.namesrv for broker in cluster.brokers.values())
        done = folder / "done"
        settings = {
            "master": "local[2]",  # no task may fail
            "namesrv": namesrv,
            "checkpoints": str(folder / "checkpoints"),
            "limit": 200,
            "pause_ms": 2,
            "done": str(done),
        }
        driver = start_script(DRIVER, settings)
        try:
            # Some are sent twice: where a master died before it had answered.
            with Load(namesrv, "in", QUEUES) as load:
                stops = kill_masters(cluster, namesrv, driver, kills, seed)
            done.touch()
            output, _ = driver.communicate(timeout=600)
        finally:
            kill_group(driver)
        assert "complete" in output, output[-5000:]
        sent = check(namesrv)
        assert sent.keys() == set(numbers(load.sent)), "acknowledged messages are lost"
        assert topic_values(namesrv, "eo") == sent, "rows are lost"
    return sent.total(), stops


def kill_masters(
    cluster: Cluster, namesrv: str, driver: subprocess.Popen[str], kills: int, seed: int
) -> list[float]:
    """Each one is replaced, and comes back as a replica."""
    chance = random.Random(seed)

    def await_rows(count: int) -> float:
        began = time.monotonic()
        more = visible(namesrv) + count
        lives = wait_until(lambda: visible(namesrv) >= more, driver, 300)
        assert lives, driver.communicate()[0][-5000:]
        return time.monotonic() - began

    await_rows(100)
    stops = []
    for n in range(kills):
        master = cluster.wait_in_sync(*cluster.brokers)
        time.sleep(chance.random())
        cluster.brokers[master].kill()
        stops.append(await_rows(1))
        cluster.brokers[master].start()
        await_rows(chance.randint(1, 120))
        check(namesrv)
        print(f"kill {n + 1}: {visible(namesrv)} rows, stopped for {stops[-1]:.1f} s", flush=True)
    return stops


def check(namesrv: str) -> Counter[bytes]:
    """What the topic has; no row of the copy is there more often than that."""
    copied, sent = topic_values(namesrv, "eo"), topic_values(namesrv, "in")
    assert copied <= sent, f"too often: {list(copied - sent)[:5]}"
    return sent


if __name__ == "__main__":
    count, start = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    with tempfile.TemporaryDirectory() as temporary:
        rows, stopped = run(Path(temporary), count, start)
    longest = max(stopped, default=0.0)
    print(f"{count} kills of masters: {rows} rows, each once; stopped for {longest:.1f} s at most")
