"""Kills of a real driver, of its Python workers and of the broker under the exactly-once sink.

`python -m spark.sink_kills 100 SEED MINUTES`: so many of the driver, a fifth as many of each
other, fewer when the minutes are over. After each kill no row is there twice, and at the
end every message is there.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections import Counter
from pathlib import Path

from peers.aerobee_broker import AerobeeBroker
from spark.helpers import create_topic, numbers, topic_values
from spark.kill_rounds import Drivers, Killed, KillRounds, Load, complete

from aerobee.pipeline.options import source_options
from aerobee.pipeline.source.queues import discover, latest
from aerobee.pipeline.wire import Access, Cluster

DRIVER = Path(__file__).with_name("sink_driver.py")
QUEUES = 3


def check(namesrv: str) -> int:
    """How many rows are visible, none of them twice."""
    rows = topic_values(namesrv, "eo")
    twice = [value for value, count in rows.items() if count > 1]
    assert not twice, f"twice: {twice[:5]}"
    return len(rows)


def visible(namesrv: str) -> int:
    """How many rows consumers of the copy can see."""
    options = source_options({"namesrv": namesrv, "subscribe": "eo"}, streaming=False)
    with Cluster(Access.of(options)) as cluster:
        return sum(latest(cluster, discover(cluster, options)).values())


def run(
    folder: Path, kills: int, others: int, seed: int, minutes: float = math.inf
) -> tuple[Killed, int]:
    """So many kills of the driver, and of workers and of the broker; the rows in the end."""
    with AerobeeBroker(folder / "broker") as broker:
        for topic in ("in", "eo"):
            create_topic(broker.broker, topic, QUEUES)
        settings = {
            "master": "local[2,4]",  # a task may fail three times
            "namesrv": broker.namesrv,
            "checkpoints": str(folder / "checkpoints"),
            "limit": 60,
            "pause_ms": 3,
            "done": str(folder / "done"),
        }
        drivers = Drivers.warm(DRIVER, settings)
        rounds = KillRounds(broker, drivers, folder, seed)
        namesrv = broker.namesrv
        with Load(namesrv, "in", QUEUES) as load:
            killed = rounds.run(
                kills,
                others,
                load,
                lambda: visible(namesrv),
                lambda: check(namesrv),
                120,
                minutes,
            )
        complete(drivers, limit=5000, pause_ms=0)
        assert topic_values(namesrv, "eo") == Counter(numbers(load.sent))
    return killed, load.sent


if __name__ == "__main__":
    arguments = dict(enumerate(sys.argv))
    count, start = int(sys.argv[1]), int(arguments.get(2, 1))
    with tempfile.TemporaryDirectory() as temporary:
        done, rows = run(
            Path(temporary), count, max(1, count // 5), start, float(arguments.get(3, math.inf))
        )
    print(f"{done}: {rows} rows, each once", flush=True)
