"""Rows per second and CPU of Spark over Aerobee beside Spark over Kafka by spark-sql-kafka-0-10.

    python -m bench.spark_kafka [--rows 500000] [--body 1024 100] [--rounds 5] [--out bench/results]

The same rows are in a topic of four queues and in one of four partitions; both brokers and one
session on two cores run all the time, and the cases take turns. Reads are batch reads of the six
columns that both have into Spark's `noop` sink; writes take the rows from Parquet and are at least
once, each with its connector's defaults, but Kafka's writes may take longer than two minutes: on a
busy machine they would end the run. CPU is microseconds per row by process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyspark

from bench.driver import BUILD, JAVA_SOURCES
from bench.machine import describe_machine
from bench.peers.kafka import Kafka
from bench.process import need
from bench.spark import TOPIC, Runs, drain, fill, run_rounds, running_broker, session
from bench.tables import Runs as Figures
from bench.tables import table

OURS, KAFKA = "Aerobee", "Kafka"
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp")
PATIENT = {"kafka.delivery.timeout.ms": "1200000"}
_POM = JAVA_SOURCES / "spark-kafka.xml"
_LIB = BUILD / "spark-kafka" / "lib"


class KafkaTopics(Kafka):
    """Topics that it makes by itself have as many partitions as Aerobee's have queues."""

    def _settings(self) -> dict[str, str]:
        return super()._settings() | {"num.partitions": "4"}


@contextmanager
def running_kafka(folder: Path) -> Iterator[str]:
    """A Kafka of its own; gives its address."""
    kafka = KafkaTopics(folder, sync=False)
    try:
        kafka.start()
        yield f"127.0.0.1:{kafka.port}"
    finally:
        kafka.close()


def connector() -> dict[str, str]:
    """What makes Spark's own connector of Kafka a part of the session."""
    need("mvn=maven")
    stamp = _LIB / ".fetched"
    if not stamp.exists() or stamp.stat().st_mtime < _POM.stat().st_mtime:
        subprocess.run(["mvn", "-q", "-B", "-f", _POM, "package"], check=True)
        stamp.touch()
    return {"spark.jars": ",".join(str(jar) for jar in sorted(_LIB.glob("*.jar")))}


def connector_version() -> str:
    (jar,) = _LIB.glob("spark-sql-kafka-0-10_*.jar")
    return jar.stem.rpartition("-")[2]


def cases(
    spark: Any, namesrv: str, kafka: str, rows: Any
) -> dict[str, dict[str, Callable[[], None]]]:
    ours = {"namesrv": namesrv, "subscribe": TOPIC, "columns": ",".join(COLUMNS)}
    theirs = {"kafka.bootstrap.servers": kafka, "subscribe": TOPIC, "startingOffsets": "earliest"}
    reads = {
        OURS: spark.read.format("aerobee").options(**ours).load(),
        KAFKA: spark.read.format("kafka").options(**theirs).load().select(*COLUMNS),
    }
    writes = {
        OURS: rows.write.format("aerobee").options(namesrv=namesrv, topic="out"),
        KAFKA: rows.write.format("kafka").options(**theirs | PATIENT | {"topic": "out"}),
    }
    return {
        "read": {name: partial(drain, frame) for name, frame in reads.items()},
        "write": {name: writer.mode("append").save for name, writer in writes.items()},
    }


def figures(what: str, runs: Runs, rows: int) -> dict[str, list[float]]:
    """A value per round: thousands of rows a second, and CPU in all and by process."""
    found = {f"{what}: krows/s": [rows / seconds / 1000 for seconds in runs.seconds]}
    found[f"{what}: CPU us/row"] = [sum(used.values()) / rows * 1e6 for used in runs.cpu]
    for process in runs.cpu[0]:
        name = f"{what}: CPU us/row, {process}"
        found[name] = [used[process] / rows * 1e6 for used in runs.cpu]
    return found


def measure(rows: int, body_size: int, rounds: int, found: Figures) -> None:
    """Adds the figures of bodies of this size."""
    with tempfile.TemporaryDirectory(prefix="aerobee-bench-") as name:
        folder = Path(name)
        with running_broker(folder / "store") as namesrv, running_kafka(folder / "kafka") as kafka:
            fill(namesrv, rows, body_size)
            spark = session(connector())
            topic = spark.read.format("aerobee").options(namesrv=namesrv, subscribe=TOPIC).load()
            topic.select("key", "value").write.parquet(str(folder / "parquet"))
            frame = spark.read.parquet(str(folder / "parquet"))
            frame.write.format("kafka").options(
                **{"kafka.bootstrap.servers": kafka, "topic": TOPIC} | PATIENT
            ).save()
            for what, both in cases(spark, namesrv, kafka, frame).items():
                fresh = 3 * rows * (body_size + 400) if what == "write" else 0
                for server, runs in run_rounds(both, rounds, fresh).items():
                    found[server] |= figures(f"{what}, {body_size} B", runs, rows)
            spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--body", type=int, nargs="+", default=[1024, 100], help="bytes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--note", default="", help="a note on the run, such as: busy machine")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    options = parser.parse_args()
    KafkaTopics.prepare()
    connector()
    found: Figures = {OURS: {}, KAFKA: {}}
    title = (
        f"{describe_machine()}; Spark {pyspark.__version__} on local[2], spark-sql-kafka-0-10 "
        f"{connector_version()}; {options.rows} rows, {options.rounds} rounds in turns, medians "
        f"(ranges){'; ' + options.note if options.note else ''}"
    )
    options.out.mkdir(parents=True, exist_ok=True)
    for size in options.body:
        measure(options.rows, size, options.rounds, found)
        page = f"{title}.\n\n{table(found, [OURS, KAFKA])}\n"
        result = {"run": title, "runs": found}
        (options.out / "spark-kafka.json").write_text(json.dumps(result, indent=1) + "\n")
        (options.out / "spark-kafka.md").write_text(page)  # after each: a run may be cut off
    print(page)


if __name__ == "__main__":
    main()
