"""MB/s of reading a topic, reading a store's files and writing, beside Spark's own Parquet reader.

    python -m bench.spark [--rows 1000000] [--reads-only] [--json out.json]

All cases read the same rows (1 KB bodies) with the same columns in the same session, interleaved,
and the best of the rounds is shown: the machine's other work disturbs a single one. MB are bytes of
the commitlog. Reads end in Spark's `noop` sink.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from aerobee.pipeline.encode import BulkIds, encode_rows
from aerobee.pipeline.options import source_options
from aerobee.pipeline.queues import discover, latest
from aerobee.pipeline.sender import BatchSender
from aerobee.pipeline.wire import Access, Cluster

TOPIC = "bench"
BODY_SIZE = 1024
READY = re.compile(r"ready broker=(\S+) namesrv=(\S+) store=")


@contextmanager
def running_broker(folder: Path) -> Iterator[str]:
    """A broker of its own; gives the name server's address."""
    settings = {"listenPort": "0", "namesrvListenPort": "0", "storePathRootDir": str(folder)}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = [str(Path(sys.executable).with_name("aerobee")), "broker", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            ready = READY.match(process.stdout.readline())
            assert ready is not None, "the broker gave no ready line"
            yield ready.group(2)
        finally:
            process.terminate()


def fill(namesrv: str, rows: int) -> None:
    """Stores the rows: random bodies that compress as badly as they should."""
    bodies = [random.Random(seed).randbytes(BODY_SIZE) for seed in range(256)]
    ids = BulkIds()
    with Cluster(Access((namesrv,))) as cluster:
        sender = BatchSender(cluster, "bench", 1024 * 1024)
        for start in range(0, rows, 8192):
            numbers = range(start, min(rows, start + 8192))
            columns = {
                "value": [bodies[number % 256] for number in numbers],
                "key": [b"key-%d" % number for number in numbers],
                "tags": [b"tag" for _ in numbers],
            }
            for group in encode_rows(pa.record_batch(columns), TOPIC, ids):
                sender.add(group)
        sender.finish()
        options = source_options({"namesrv": namesrv, "subscribe": TOPIC}, streaming=False)
        while sum(latest(cluster, discover(cluster, options)).values()) < rows:
            time.sleep(0.1)  # the queues follow the log


def session() -> Any:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master("local[2]").appName("bench")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.ui.showConsoleProgress": "false",
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def drain(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def cases(spark: Any, namesrv: str, store: Path, parquet: Path) -> dict[str, Callable[[], None]]:
    def read(**options: Any) -> Any:
        return spark.read.format("aerobee").options(**options).load()

    def write(guarantee: str) -> None:
        rows = spark.read.parquet(str(parquet)).select("value", "key", "tags")
        writer = rows.write.format("aerobee").options(namesrv=namesrv, topic=f"out-{guarantee}")
        writer.option("deliveryGuarantee", guarantee).mode("append").save()

    frames = {  # made here: starting the planner's Python is not what is measured
        "Spark's Parquet reader": spark.read.parquet(str(parquet)),
        "store files": read(path=str(store), subscribe=TOPIC),
        "topic over TCP": read(namesrv=namesrv, subscribe=TOPIC),
    }
    reads = {name: partial(drain, frame) for name, frame in frames.items()}
    return reads | {
        "write, at least once": lambda: write("at-least-once"),
        "write, exactly once": lambda: write("exactly-once"),
    }


def measure(rows: int, rounds: int, *, with_writes: bool) -> dict[str, float]:
    """Seconds of the best round, by case."""
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="aerobee-bench-") as folder:
        store, parquet = Path(folder) / "store", Path(folder) / "parquet"
        with running_broker(store) as namesrv:
            fill(namesrv, rows)
            spark = session()
            frame = spark.read.format("aerobee").options(namesrv=namesrv, subscribe=TOPIC).load()
            frame.write.option("compression", "snappy").parquet(str(parquet))
            every = cases(spark, namesrv, store, parquet)
            writes = {name: run for name, run in every.items() if name.startswith("write")}
            reads = {name: run for name, run in every.items() if name not in writes}
            for some in (
                reads,
                writes if with_writes else {},
            ):  # writes last: they make the log grow
                for number in range(rounds + 1):  # the first round warms up
                    for name, run in some.items():
                        began = time.perf_counter()
                        run()
                        took = time.perf_counter() - began
                        if number:
                            best[name] = min(best.get(name, took), took)
                        print(f"round {number}: {name}: {took:.2f} s", file=sys.stderr)
            spark.stop()
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--reads-only", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    record_size = 91 + BODY_SIZE + len(TOPIC) + 75  # head, body, topic, properties
    best = measure(options.rows, options.rounds, with_writes=not options.reads_only)
    base = best["Spark's Parquet reader"]
    figures = {
        name: {
            "krows_per_s": round(options.rows / took / 1000, 1),
            "mb_per_s": round(options.rows * record_size / took / 1e6, 1),
            "of_parquet": round(base / took, 2),
        }
        for name, took in best.items()
    }
    print(f"{'case':26} {'krows/s':>9} {'MB/s':>8} {'of Parquet':>11}")
    for name, row in figures.items():
        print(f"{name:26} {row['krows_per_s']:9} {row['mb_per_s']:8} {row['of_parquet']:11}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
