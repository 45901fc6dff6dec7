"""MB/s of reading a topic, reading a store's files and writing, beside Spark's own Parquet reader.

    python -m bench.spark [--rows 500000] [--body 1024 100] [--reads-only] [--out bench/results]

All cases read the same rows in the same session, interleaved, into Spark's `noop` sink, so every
column is read: all sixteen, those that a job usually takes, and three; then count(), and what a
filter leaves, both by the catalog of topics. "of Parquet" is the median over the
rounds of Parquet's time by this case's in the same round. Bodies are random bytes, each different:
Parquet's dictionary would store repeated ones once, and Snappy has little work with what does not
compress. "ready-made" is a Python source that only hands over Arrow batches, so no Python source
can be faster; "bytes copied" is the same, but it also copies heads and values out of the log once,
and "bytes received" pulls the messages and throws them away; "a Python sink that drops" is the same
for writes. MB are bytes of the commitlog; CPU is microseconds per row by process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark

from aerobee.broker.store.files.layout import offset_name
from aerobee.pipeline.columns import DEFAULT_COLUMNS
from aerobee.pipeline.driver import SETTINGS
from aerobee.pipeline.options import source_options
from aerobee.pipeline.sink.encode import BulkIds, encode_rows
from aerobee.pipeline.sink.sender import BatchSender
from aerobee.pipeline.source.queues import discover, latest
from aerobee.pipeline.wire import Access, Cluster
from aerobee.spark import catalog
from bench.machine import describe_machine, warm_memory
from bench.spark_ready import ReadySource, make_ready, make_ready_to_receive

Table = dict[str, dict[str, float]]  # case -> figure -> value

TOPIC = "bench"
PARQUET = "Spark's Parquet reader"
READY = "ready-made Arrow"
COPIED = "ready-made, bytes copied"
RECEIVED = "ready-made, bytes received"
DROPPED = "a Python sink that drops"
COLUMN_SETS = {
    "all columns": DEFAULT_COLUMNS,
    "usual columns": ("key", "value", "topic", "partition", "offset", "timestamp", "tags"),
    "three columns": ("partition", "offset", "timestamp"),
}
READY_LINE = re.compile(r"ready broker=(\S+) namesrv=(\S+) store=")


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
            ready = READY_LINE.match(process.stdout.readline())
            assert ready is not None, "the broker gave no ready line"
            yield ready.group(2)
        finally:
            process.terminate()


def fill(namesrv: str, rows: int, body_size: int) -> None:
    """Stores the rows, each with a body of its own."""
    rng = random.Random(1)
    ids = BulkIds()
    with Cluster(Access((namesrv,))) as cluster:
        sender = BatchSender(cluster, "bench", 1024 * 1024)
        for start in range(0, rows, 8192):
            numbers = range(start, min(rows, start + 8192))
            bodies = memoryview(rng.randbytes(body_size * len(numbers)))
            columns = {
                "value": [
                    bytes(bodies[at : at + body_size]) for at in range(0, len(bodies), body_size)
                ],
                "key": [b"key-%d" % number for number in numbers],
                "tags": [b"tag" for _ in numbers],
            }
            sender.add(encode_rows(pa.record_batch(columns), TOPIC, ids))
        sender.finish()
        options = source_options({"namesrv": namesrv, "subscribe": TOPIC}, streaming=False)
        while sum(latest(cluster, discover(cluster, options)).values()) < rows:
            time.sleep(0.1)  # the queues follow the log


def session(config: dict[str, str] | None = None) -> Any:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])  # the workers import ReadySource
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master("local[2]").appName("bench")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.ui.showConsoleProgress": "false",
        **SETTINGS,  # as `import pyspark_aerobee` sets them
        **(config or {}),
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(ReadySource)
    return spark


def drain(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def read_cases(
    spark: Any, namesrv: str, folder: Path, columns: tuple[str, ...], record_size: int
) -> dict[str, Callable[[], None]]:
    """Reads of these columns; the frames are made here, for planning is not what is measured."""
    ready = folder / f"ready-{len(columns)}"
    make_ready(folder / "store", TOPIC, columns, ready)
    received = folder / f"received-{len(columns)}"
    make_ready_to_receive(namesrv, TOPIC, columns, received)
    log = folder / "store" / "commitlog" / offset_name(0)

    def read(source: str = "aerobee", **options: Any) -> Any:
        return spark.read.format(source).options(columns=",".join(columns), **options).load()

    frames = {
        PARQUET: spark.read.parquet(str(folder / "parquet")).select(*columns),
        READY: read("ready", path=str(ready)),
        COPIED: read("ready", path=str(ready), log=str(log), record=record_size),
        "store files": read(path=str(folder / "store"), subscribe=TOPIC),
        RECEIVED: read("ready", path=str(received), namesrv=namesrv, subscribe=TOPIC),
        "topic over TCP": read(namesrv=namesrv, subscribe=TOPIC),
    }
    return {name: partial(drain, frame) for name, frame in frames.items()}


def count_cases(spark: Any, namesrv: str, folder: Path) -> dict[str, Callable[[], None]]:
    """How long the rows take to count."""
    catalog(spark, namesrv)
    narrow = spark.read.format("aerobee").options(
        path=str(folder / "store"), subscribe=TOPIC, columns="offset"
    )
    frames = {
        PARQUET: spark.read.parquet(str(folder / "parquet")),
        "store files": narrow.load(),
        "topic by the catalog": spark.table(f"aerobee.`{TOPIC}`"),
    }
    return {name: frame.count for name, frame in frames.items()}


def filter_cases(spark: Any, namesrv: str, folder: Path) -> dict[str, Callable[[], None]]:
    """Three columns of the fifth of the rows that a filter on offsets leaves."""
    catalog(spark, namesrv)
    (queues,) = spark.sql(f"SELECT count(DISTINCT partition) FROM aerobee.`{TOPIC}`").first()
    rows = spark.read.parquet(str(folder / "parquet")).count()
    query = f"SELECT partition, offset, timestamp FROM {{}} WHERE offset < {rows // queues // 5}"
    spark.read.parquet(str(folder / "parquet")).createOrReplaceTempView("in_parquet")
    frames = {
        PARQUET: spark.sql(query.format("in_parquet")),
        "topic by the catalog": spark.sql(query.format(f"aerobee.`{TOPIC}`")),
    }
    return {name: partial(drain, frame) for name, frame in frames.items()}


def write_cases(spark: Any, namesrv: str, folder: Path) -> dict[str, Callable[[], None]]:
    rows = spark.read.parquet(str(folder / "parquet")).select("value", "key", "tags")

    def write(guarantee: str) -> None:
        writer = rows.write.format("aerobee").options(namesrv=namesrv, topic=f"out-{guarantee}")
        writer.option("deliveryGuarantee", guarantee).mode("append").save()

    def drop() -> None:
        rows.write.format("ready").mode("append").save()

    return {
        PARQUET: partial(drain, rows),
        DROPPED: drop,
        "write, at least once": partial(write, "at-least-once"),
        "write, exactly once": partial(write, "exactly-once"),
    }


def cpu_seconds() -> dict[tuple[str, int], float]:
    """CPU seconds so far of each process below this one, by its kind and number."""
    parents, used = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().partition("(")[2].rpartition(") ")
            command = (path.parent / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended
        fields = rest.split()
        pid = int(path.parent.name)
        parents[pid] = int(fields[1])
        is_broker = b"listenPort" in command or b"kafka.Kafka\0" in command
        kind = "broker" if is_broker else "jvm" if name == "java" else "python"
        used[kind, pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return {(kind, pid): used[kind, pid] for kind, pid in used if _is_ours(pid, parents)}


def _is_ours(pid: int, parents: dict[int, int]) -> bool:
    while pid := parents.get(pid, 0):
        if pid == os.getpid():
            return True
    return False


@dataclass
class Runs:
    """What the rounds of one case took."""

    seconds: list[float] = field(default_factory=list)
    cpu: list[dict[str, float]] = field(default_factory=list)

    def add(self, run: Callable[[], None], fresh_bytes: int = 0) -> float:
        """`fresh_bytes`: of memory that the run takes, for a log."""
        with warm_memory(fresh_bytes):
            pass
        before, began = cpu_seconds(), time.perf_counter()
        run()
        self.seconds.append(time.perf_counter() - began)
        used = dict.fromkeys(("jvm", "python", "broker"), 0.0)
        for process, seconds in cpu_seconds().items():
            used[process[0]] += seconds - before.get(process, 0.0)
        self.cpu.append(used)
        return self.seconds[-1]


def run_rounds(
    cases: dict[str, Callable[[], None]], rounds: int, fresh_bytes: int = 0
) -> dict[str, Runs]:
    """Every case in every round; two rounds before the first one warm up."""
    for run in (*cases.values(), *cases.values()):
        run()
    taken = {name: Runs() for name in cases}
    for number in range(rounds):
        for name, run in cases.items():
            took = taken[name].add(run, fresh_bytes)
            print(f"round {number}: {name}: {took:.2f} s", file=sys.stderr)
    return taken


def figures(taken: dict[str, Runs], rows: int, record_size: int) -> Table:
    base = taken[PARQUET].seconds
    base_cpu = [sum(used.values()) for used in taken[PARQUET].cpu]
    table = {}
    for name, runs in taken.items():
        took = statistics.median(runs.seconds)
        cpu = [sum(used.values()) for used in runs.cpu]
        table[name] = {
            "krows_per_s": round(rows / took / 1000, 1),
            "mb_per_s": round(rows * record_size / took / 1e6, 1),
            "of_parquet": round(_median_ratio(base, runs.seconds), 2),
            "of_parquet_by_cpu": round(_median_ratio(base_cpu, cpu), 2),
        } | {
            f"{what}_us_per_row": round(
                statistics.median(used[what] for used in runs.cpu) / rows * 1e6, 2
            )
            for what in runs.cpu[0]
        }
    return table


def _median_ratio(base: list[float], other: list[float]) -> float:
    return statistics.median(one / two for one, two in zip(base, other, strict=True))


def measure(
    rows: int, body_size: int, rounds: int, *, with_writes: bool, only: str = ""
) -> dict[str, Any]:
    """The tables by what was read or written."""
    tables = {}
    record_size = 88 + body_size + 1 + len(TOPIC) + 2 + 75  # head, body, topic, properties
    with tempfile.TemporaryDirectory(prefix="aerobee-bench-") as name:
        folder = Path(name)
        with running_broker(folder / "store") as namesrv:
            fill(namesrv, rows, body_size)
            spark = session()
            frame = spark.read.format("aerobee").options(namesrv=namesrv, subscribe=TOPIC).load()
            frame.write.option("compression", "snappy").parquet(str(folder / "parquet"))
            parts: dict[str, Callable[..., dict[str, Callable[[], None]]]] = {
                what: partial(read_cases, columns=columns, record_size=record_size)
                for what, columns in COLUMN_SETS.items()
            }
            parts["count()"] = count_cases
            parts["a fifth, by a filter"] = filter_cases
            if with_writes:  # last: they make the log grow
                parts["writing"] = write_cases
            for what, cases_of in parts.items():
                if only not in what:
                    continue
                cases = cases_of(spark, namesrv, folder)
                fresh = 3 * rows * record_size if what == "writing" else 0
                tables[what] = figures(run_rounds(cases, rounds, fresh), rows, record_size)
            spark.stop()
    return tables


def show(title: str, table: Table) -> None:
    print(
        f"\n{title:26} {'krows/s':>8} {'MB/s':>7} {'of Parquet':>10} {'by CPU':>7}"
        f"   CPU us/row: {'JVM':>5} {'Python':>7} {'broker':>7}"
    )
    for name, row in table.items():
        print(
            f"{name:26} {row['krows_per_s']:8} {row['mb_per_s']:7} {row['of_parquet']:10} "
            f"{row['of_parquet_by_cpu']:7}   {'':11} {row['jvm_us_per_row']:5} "
            f"{row['python_us_per_row']:7} {row['broker_us_per_row']:7}"
        )


def write_page(out: Path, title: str, found: dict[int, dict[str, Table]]) -> None:
    lines = [
        f"{title}.",
        "",
        "| | krows/s | MB/s | of Parquet | of Parquet by CPU | CPU us/row: JVM | Python | broker |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for size, tables in found.items():
        for what, table in tables.items():
            for name, row in table.items():
                cells = " | ".join(str(figure) for figure in row.values())
                lines.append(f"| {what}, {size} B: {name} | {cells} |")
    out.mkdir(parents=True, exist_ok=True)
    (out / "spark.md").write_text("\n".join(lines) + "\n")
    result = {"run": title, "tables": found}
    (out / "spark.json").write_text(json.dumps(result, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--body", type=int, nargs="+", default=[1024, 100], help="bytes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--reads-only", action="store_true")
    parser.add_argument("--only", help="the tables with this in their names")
    parser.add_argument("--note", default="", help="a note on the run, such as: busy machine")
    parser.add_argument("--out", type=Path, help="the folder for spark.md and spark.json")
    options = parser.parse_args()
    found: dict[int, dict[str, Table]] = {}
    for size in options.body:
        found[size] = measure(
            options.rows,
            size,
            options.rounds,
            with_writes=not options.reads_only,
            only=options.only or "",
        )
        for what, table in found[size].items():
            show(f"{what}, {size} B bodies", table)
        if options.out:  # after each: a run may be cut off
            note = f"; {options.note}" if options.note else ""
            title = (
                f"{describe_machine()}; Spark {pyspark.__version__} on local[2]; {options.rows} "
                f"rows, {options.rounds} rounds in turns, medians{note}"
            )
            write_page(options.out, title, found)


if __name__ == "__main__":
    main()
