"""Rows per second and CPU of `aerobee pipeline table` beside Spark's own Parquet sink.

    python -m bench.table [--rows 300000] [--body 1024] [--rounds 3]

The same topic goes into each kind of table, in turns, in one session. CPU is that of the JVM and
the Python processes, without the broker's. "fresh" is the age of the oldest message of a commit
when it was done, with a message sent every 10 ms and a goal of 2 seconds.

A stream of Spark's starts processes of its own, seconds of CPU whatever the rows: take rows enough,
and a quiet machine. Rounds of one case that differ much say that the figures mean nothing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aerobee.pipeline.jobs.session import open_session
from aerobee.pipeline.jobs.table import Commit, TableJob, keep_table
from bench.spark import TOPIC, fill, running_broker

FORMATS = ("parquet", "delta", "iceberg")
SPARKS = "Spark's Parquet sink"


def tree_cpu() -> float:
    """CPU seconds of this process and of all below it, also of those that ended."""
    parents: dict[int, list[int]] = {}
    used: dict[int, float] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(words[1]), []).append(int(entry.name))
        used[int(entry.name)] = sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")
    total, todo = 0.0, [os.getpid()]
    while todo:
        pid = todo.pop()
        if _is_broker(pid):
            continue
        total += used.get(pid, 0.0)
        todo += parents.get(pid, [])
    return total


def _is_broker(pid: int) -> bool:
    try:
        return b"broker" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def sparks_own(spark: Any, namesrv: str, out: str) -> None:
    rows = (
        spark.readStream.format("aerobee")
        .options(namesrv=namesrv, subscribe=TOPIC, startingOffsets="earliest")
        .load()
        .selectExpr("*", "to_date(timestamp) as date")
    )
    writer = rows.writeStream.format("parquet").partitionBy("date").trigger(availableNow=True)
    writer = writer.option("compression", "zstd").option("checkpointLocation", f"{out}/_c")
    writer.start(out).awaitTermination()


def kept(spark: Any, namesrv: str, out: str, table_format: str) -> None:
    job = TableJob(namesrv, out, TOPIC, table_format=table_format, rows_per_commit=10**9)
    keep_table(spark, job, lambda commit: None)


def freshness(spark: Any, namesrv: str, out: str) -> list[float]:
    """Of ten commits of an Iceberg table while messages are sent."""
    stop, commits = threading.Event(), []

    def tell(commit: Commit) -> None:
        commits.append(commit.fresh)
        if len(commits) == 10:
            stop.set()

    def send() -> None:
        while not stop.wait(0.01):
            fill(namesrv, 1, 100)

    sender = threading.Thread(target=send)
    sender.start()
    job = TableJob(namesrv, out, TOPIC, table_format="iceberg", fresh=2.0, starting="latest")
    try:
        keep_table(spark, job, tell, stop)
    finally:
        stop.set()
        sender.join()
    return commits


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--body", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    wanted = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        running_broker(Path(folder) / "store") as namesrv,
    ):
        fill(namesrv, wanted.rows, wanted.body)
        spark = open_session("bench", "local[2]", retries=True)
        cases: dict[str, Callable[[str], None]] = {
            SPARKS: lambda out: sparks_own(spark, namesrv, out)
        }
        for name in FORMATS:
            cases[name] = lambda out, name=name: kept(spark, namesrv, out, name)  # type: ignore[misc]
        figures: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
        for turn in range(wanted.rounds + 1):  # the first warms the JVM
            names = list(cases)
            at = turn % len(names)  # another one first in each round: one leaves work to the next
            for name in (*names[at:], *names[:at]):
                case = cases[name]
                began, cpu = time.monotonic(), tree_cpu()
                case(f"{folder}/{name.split()[-1]}-{name[0]}-{turn}")
                if turn:
                    figures[name].append((time.monotonic() - began, tree_cpu() - cpu))
        for name, runs in figures.items():
            seconds, cpu = statistics.median(run[0] for run in runs), min(run[1] for run in runs)
            per_row = 1e6 * cpu / wanted.rows
            each = ", ".join(f"{used:.1f}" for _, used in runs)
            print(
                f"{name:22} {wanted.rows / seconds:10.0f} rows/s  {per_row:6.1f} us CPU a row "
                f"(CPU s of each round: {each})"
            )
        ages = sorted(freshness(spark, namesrv, f"{folder}/fresh"))
        print(f"fresh (goal 2 s): median {statistics.median(ages):.2f} s, worst {ages[-1]:.2f} s")


if __name__ == "__main__":
    main()
