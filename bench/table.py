"""Rows per second and CPU of `aerobee pipeline table` beside Spark's own Parquet sink.

    python -m bench.table [--rows 300000] [--body 1024] [--rounds 3] [--out bench/results]

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

import pyspark

from aerobee.pipeline.jobs.session import open_session
from aerobee.pipeline.jobs.table import Commit, TableJob, keep_table
from bench.machine import describe_machine
from bench.spark import TOPIC, fill, running_broker
from bench.tables import Runs as Figures
from bench.tables import table

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
    parser.add_argument("--note", default="", help="a note on the run, such as: busy machine")
    parser.add_argument("--out", type=Path, help="the folder for table.md")
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
        found: Figures = {
            name: {
                "krows/s": [wanted.rows / seconds / 1000 for seconds, _ in runs],
                "CPU us/row": [1e6 * cpu / wanted.rows for _, cpu in runs],
            }
            for name, runs in figures.items()
        }
        ages = sorted(freshness(spark, namesrv, f"{folder}/fresh"))
    note = f"; {wanted.note}" if wanted.note else ""
    page = (
        f"{describe_machine()}; Spark {pyspark.__version__} on local[2]; {wanted.rows} rows of "
        f"{wanted.body} bytes, {wanted.rounds} rounds in turns, medians (ranges){note}.\n\n"
        f"{table(found, list(found))}\n\n"
        f"Fresh, with a goal of 2 s, Iceberg: median {statistics.median(ages):.2f} s, worst "
        f"{ages[-1]:.2f} s of {len(ages)} commits.\n"
    )
    print(page)
    if wanted.out:
        wanted.out.mkdir(parents=True, exist_ok=True)
        (wanted.out / "table.md").write_text(page)


if __name__ == "__main__":
    main()
