"""What Spark's tests share: a small session, messages in a topic, and what a topic holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from click.testing import Result
from peers.wire import Wire

from aerobee.pipeline import arrow
from aerobee.pipeline.driver import SETTINGS
from aerobee.pipeline.options import source_options
from aerobee.pipeline.sink.encode import BulkIds, encode_rows
from aerobee.pipeline.sink.sender import BatchSender
from aerobee.pipeline.source.puller import PullPlan, Range, pull_range
from aerobee.pipeline.source.queues import discover, latest
from aerobee.pipeline.wire import Access, Cluster

Run = Callable[..., Result]  # a command of the pipeline, in this process


def last_line(result: Result) -> str:
    return result.output.strip().splitlines()[-1]


def session_config() -> dict[str, str]:
    """Quick to start, small, on the loopback only."""
    return {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
        **SETTINGS,
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.streaming.pollingDelay": "50ms",
        "spark.python.worker.reuse": "true",
    }


def produce(
    namesrv: str,
    topic: str,
    bodies: Iterable[bytes],
    *,
    tag: str = "",
    queue_id: int | None = None,
    keys: bool = True,
) -> None:
    """Stores the bodies as a client would, with a unique id and, as text, the key k<body>."""
    values = list(bodies)
    columns: dict[str, Any] = {"value": values}
    if keys:
        columns["key"] = [b"k" + body[:20] for body in values]
    if tag:
        columns["tags"] = [tag.encode()] * len(values)
    if queue_id is not None:
        columns["partition"] = [queue_id] * len(values)
    batch = pa.record_batch(columns)
    with Cluster(Access(tuple(namesrv.split(";")))) as cluster:
        sender = BatchSender(cluster, "test-producer", 16 * 1024)
        sender.add(encode_rows(batch, topic, BulkIds()))
        sender.finish()


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%06d" % n for n in range(start, start + count)]


def create_topic(broker_address: str, topic: str, queues: int, *, perm: int = 6) -> None:
    ext = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": str(perm),
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    with Wire(broker_address) as wire:
        answer = wire.request(17, ext)
        assert answer.code == 0, answer.header


def group_offsets(broker_address: str, group: str, topic: str, queues: int) -> list[int]:
    """What the broker knows of the group's progress; -1 where it knows nothing."""
    offsets = []
    with Wire(broker_address) as wire:
        for queue_id in range(queues):
            ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id)}
            answer = wire.request(14, ext | {"setZeroIfNotFound": "false"})
            offsets.append(int(answer.ext["offset"]) if answer.code == 0 else -1)
    return offsets


def topic_rows(namesrv: str, topic: str, columns: Sequence[str] = ("value",)) -> list[Any]:
    """Everything a consumer of the topic can see, without Spark."""
    options = source_options({"namesrv": namesrv, "subscribe": topic}, streaming=False)
    plan = PullPlan("check", ("TAG", "*"), True)
    rows: list[Any] = []
    with Cluster(Access.of(options)) as cluster:
        if cluster.route(topic) is None:
            return rows
        addresses = discover(cluster, options)
        for key, end in latest(cluster, addresses).items():
            for body in pull_range(cluster, Range(key, addresses[key], 0, end), plan, print):
                rows += arrow.decode(body, columns).to_pylist(maps_as_pydicts="strict")
    return rows


def topic_values(namesrv: str, topic: str) -> Counter[bytes]:
    return Counter(row["value"] for row in topic_rows(namesrv, topic))


def archive_as_before(
    spark: Any, namesrv: str, topic: str, out: Path, sink: str = "parquet", table: str = ""
) -> None:
    """An archive by Spark's own sink, with a checkpoint: how it was done once."""
    rows = (
        spark.readStream.format("aerobee")
        .options(namesrv=namesrv, subscribe=topic, startingOffsets="earliest")
        .load()
        .selectExpr("*", "to_date(timestamp) as date")
    )
    writer = rows.writeStream.format(sink).option("checkpointLocation", f"{out}/_checkpoint")
    writer = writer.trigger(availableNow=True)
    if table:
        query = writer.option("fanout-enabled", "true").toTable(table)
    else:
        query = writer.partitionBy("topic", "date").start(str(out))
    query.awaitTermination()


def start_script(
    script: Path, settings: dict[str, Any], **environment: str
) -> subprocess.Popen[str]:
    """A driver of its own, to be killed: runs the script with the settings as JSON."""
    return _start([sys.executable, str(script), json.dumps(settings)], environment)


def await_turn(settings: dict[str, Any]) -> None:
    """A driver that is ready says so, and waits for the file that its settings may name."""
    print("started", flush=True)
    while "turn" in settings and not Path(settings["turn"]).exists():
        time.sleep(0.02)


def start_command(*words: str) -> subprocess.Popen[str]:
    """An `aerobee` command in a process group of its own, to be killed."""
    return _start([str(Path(sys.executable).with_name("aerobee")), *words])


def _start(command: list[str], more: Mapping[str, str] = {}) -> subprocess.Popen[str]:
    environment = os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": str(Path(__file__).parents[1]),
        **more,
    }
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,
    )
