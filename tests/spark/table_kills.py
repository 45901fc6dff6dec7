"""Kills of a real driver, of its Python workers and of the broker under kept tables.

`python -m spark.table_kills 100 SEED MINUTES`: so many of the driver, a fifth as many of each
other, fewer when the minutes are over. After each kill every table is opened with all readers,
Spark among them.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections import Counter
from pathlib import Path

from peers.aerobee_broker import AerobeeBroker
from spark.helpers import create_topic, numbers
from spark.kill_rounds import Drivers, Killed, KillRounds, Load, complete
from spark.lake_readers import FORMATS, open_with_others, with_spark

from aerobee.pipeline.lake.opening import format_of, open_table

DRIVER = Path(__file__).with_name("table_driver.py")
TOPIC = "kept"
QUEUES = 3


def check(root: Path) -> dict[str, int]:
    """Each table opens with every reader, has no row twice, and the rows that its offsets say."""
    rows = {}
    for table_format in FORMATS:
        where = root / table_format
        if format_of(str(where)) is None:
            continue  # killed before it was made
        table = open_table(str(where), writing=True)
        held = table.held([(TOPIC, f"broker-a:{n}") for n in range(QUEUES)])
        queues = held.next.get(TOPIC, {})
        wanted = sum(end - held.first[TOPIC][queue] for queue, end in queues.items())
        for reader, values in open_with_others(where, table_format).items():
            twice = [value for value, count in Counter(values).items() if count > 1]
            assert not twice, f"{reader}: twice in {table_format}: {twice[:5]}"
            assert len(values) == wanted, (
                f"{reader}: {len(values)} rows in {table_format}: {wanted}"
            )
        rows[table_format] = wanted
    return rows


def run(
    folder: Path, kills: int, others: int, seed: int, minutes: float = math.inf
) -> tuple[Killed, dict[str, int]]:
    """So many kills of the driver, and of workers and of the broker; the rows of each table."""
    root = folder / "lake"
    with AerobeeBroker(folder / "broker", brokerName="broker-a") as broker:
        create_topic(broker.broker, TOPIC, QUEUES)
        settings = {
            "namesrv": broker.namesrv,
            "topic": TOPIC,
            "root": str(root),
            "done": str(folder / "done"),
            "master": "local[2]",
            "rows_per_commit": 60,
        }
        drivers = Drivers.warm(DRIVER, settings)
        complete(drivers)  # the tables are there
        rounds = KillRounds(broker, drivers, folder, seed)
        with Load(broker.namesrv, TOPIC, QUEUES) as load:
            killed = rounds.run(
                kills, others, load, lambda: commits(root), lambda: check(root), 5, minutes
            )
        complete(drivers, rows_per_commit=20_000)
        rows = check(root)
        check_complete(root, load.sent)
    return killed, rows


def check_complete(root: Path, sent: int) -> None:
    """Every reader finds each of so many messages in each table."""
    for table_format in FORMATS:
        for reader, values in open_with_others(root / table_format, table_format).items():
            assert sorted(values) == numbers(sent), f"{reader} of {table_format}"


def commits(root: Path) -> int:
    """How many commits the Parquet table ever had."""
    return max((int(file.stem) for file in root.glob("parquet/_aerobee/commits/*.json")), default=0)


if __name__ == "__main__":
    arguments = dict(enumerate(sys.argv))
    count, start = int(sys.argv[1]), int(arguments.get(2, 1))
    with_spark()
    with tempfile.TemporaryDirectory() as temporary:
        done, rows = run(
            Path(temporary), count, max(1, count // 5), start, float(arguments.get(3, math.inf))
        )
    told = ", ".join(f"{table_format} {found}" for table_format, found in rows.items())
    print(f"{done}: rows, each once: {told}", flush=True)
