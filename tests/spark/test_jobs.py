"""The jobs of `aerobee pipeline`, each through its command, on the tests' own session."""

from __future__ import annotations

import io
import json
import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from peers.aerobee_broker import AerobeeBroker
from peers.wire import Wire
from pyspark.sql import SparkSession
from rich.console import Console
from spark.helpers import (
    Run,
    archive_as_before,
    create_topic,
    last_line,
    numbers,
    produce,
    topic_rows,
)

from aerobee.pipeline.jobs.replay import Replay, selected
from aerobee.pipeline.jobs.stats import show

AGO = (timedelta(0), timedelta(minutes=10))  # the messages were stored at most so long ago


def test_archive_then_replay_gives_the_same_messages(
    run: Run, spark: SparkSession, broker: AerobeeBroker, tmp_path: Path
) -> None:
    create_topic(broker.broker, "kept", 2)
    create_topic(broker.broker, "kept-again", 2)
    for queue_id in range(2):
        produce(broker.namesrv, "kept", numbers(300)[queue_id::2], tag="t", queue_id=queue_id)
    out = tmp_path / "archive"
    options = ("--namesrv", broker.namesrv, "--topics", "kept", "--out", out)
    assert last_line(run("archive", *options)).startswith("300 messages archived")
    assert last_line(run("archive", *options)).startswith("0 messages archived")
    produce(broker.namesrv, "kept", numbers(50, 300), tag="t", queue_id=0)
    assert last_line(run("archive", *options)).startswith("50 messages archived")
    parts = [path.parent for path in out.rglob("*.parquet")]
    assert all(p.name.startswith("date=") and p.parent.name == "topic=kept" for p in parts)
    result = run(
        *("replay", "--source", out, "--namesrv", broker.namesrv, "--topic", "kept-again"),
        "--same-queues",
    )
    assert last_line(result) == "350 messages sent"
    names = ["key", "value", "partition", "offset", "tags", "properties", "flag"]
    first = topic_rows(broker.namesrv, "kept", names)
    again = topic_rows(broker.namesrv, "kept-again", names)
    assert sorted(map(str, again)) == sorted(map(str, first)) and len(again) == 350


def test_an_archive_that_sparks_own_sink_wrote_is_taken_over(
    run: Run, spark: SparkSession, broker: AerobeeBroker, tmp_path: Path
) -> None:
    create_topic(broker.broker, "before", 2)
    produce(broker.namesrv, "before", numbers(100), queue_id=0)
    out = tmp_path / "archive"
    archive_as_before(spark, broker.namesrv, "before", out)
    produce(broker.namesrv, "before", numbers(100, 100), queue_id=1)
    archive_as_before(spark, broker.namesrv, "before", out)
    left = out / "topic=before" / "date=2026-01-01" / "part-left.parquet"
    left.parent.mkdir(exist_ok=True)
    left.touch()  # as a kill leaves it
    produce(broker.namesrv, "before", numbers(50, 200), queue_id=0)
    options = ("--namesrv", broker.namesrv, "--topics", "before", "--out", out)
    assert last_line(run("archive", *options)).startswith("50 messages archived")
    assert last_line(run("archive", *options)).startswith("0 messages archived")
    tables = [pq.read_table(file, columns=["value"]) for file in out.rglob("*.parquet")]
    values = [value for table in tables for value in table.column(0).to_pylist()]
    assert sorted(values) == numbers(250)
    again = [bytes(row.value) for row in spark.read.parquet(str(out)).select("value").collect()]
    assert sorted(again) == numbers(250)


def test_replay_takes_a_time_range_at_a_rate(
    run: Run, spark: SparkSession, broker: AerobeeBroker, tmp_path: Path
) -> None:
    rows = spark.range(100).selectExpr(
        "cast(lpad(id, 6, '0') as binary) as value",
        "cast(null as binary) as key",
        "cast(null as string) as tags",
        "map('n', cast(id as string)) as properties",
        "0 as flag",
        "'paced' as topic",
        "'b' as broker",
        "0 as partition",
        "id as offset",
        "timestamp'2026-01-01 10:00:00' + make_interval(0,0,0,0,0,cast(id as int),0) as timestamp",
        "date'2026-01-01' as date",
    )
    rows.write.partitionBy("topic", "date").parquet(str(tmp_path / "a"))
    result = run(
        *("replay", "--source", tmp_path / "a", "--namesrv", broker.namesrv, "--rate", 20),
        *("--start", "2026-01-01T10:10:00Z", "--end", "2026-01-01T10:40:00Z"),
    )
    assert last_line(result) == "30 messages sent"
    stored = topic_rows(broker.namesrv, "paced", ["value", "timestamp"])
    assert sorted(row["value"] for row in stored) == numbers(30, 10)
    times = sorted(row["timestamp"] for row in stored)
    assert (times[-1] - times[0]).total_seconds() > 1.0  # 30 messages at 20 a second


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ("2026-01-01T10:10:00Z", "2026-01-01T10:40:00Z"),
        ("2026-01-02T00:10:00+14:00", "2026-01-02T00:40:00+14:00"),
        ("2025-12-31T22:10:00-12:00", "2025-12-31T22:40:00-12:00"),
    ],
)
def test_replay_takes_the_same_messages_in_whatever_zone_the_times_are_given(
    spark: SparkSession, tmp_path: Path, start: str, end: str
) -> None:
    """And in whatever zone the archive's days were counted (`--conf` of the session)."""
    for zone in ("UTC", "Pacific/Kiritimati", "Etc/GMT+12"):
        rows = spark.range(100).selectExpr(
            "timestamp'2026-01-01 10:00:00' + make_interval(0,0,0,0,0,cast(id as int),0) "
            "as timestamp",
            "id as offset",
            "'t' as topic",
        )
        date = f"to_date(from_utc_timestamp(timestamp, '{zone}')) as date"
        path = str(tmp_path / zone.replace("/", "-"))
        rows.selectExpr("*", date).write.partitionBy("topic", "date").parquet(path)
        times = (datetime.fromisoformat(start), datetime.fromisoformat(end))
        found = selected(spark, Replay(path, "", start=times[0], end=times[1])).collect()
        assert sorted(row["offset"] for row in found) == list(range(10, 40)), zone


def test_replay_of_a_store_sends_what_a_query_makes_of_it(
    run: Run, store: Path, broker: AerobeeBroker, tmp_path: Path
) -> None:
    create_topic(broker.broker, "chosen", 1)
    words = ("replay", "--source", store, "--namesrv", broker.namesrv, "--topic", "chosen")
    chosen = (
        "select upper(cast(value as string)) as value, tags, topic, partition, offset "
        "from messages where tags = 'red' and cast(substr(value, 1, 6) as string) < '000010'"
    )
    assert last_line(run(*words, "--sql", chosen, "--dry-run")) == "10 messages would be sent"
    assert topic_rows(broker.namesrv, "chosen") == []
    assert last_line(run(*words, "--sql", chosen)) == "10 messages sent"
    assert len(topic_rows(broker.namesrv, "chosen")) == 10
    once = ("--exactly-once", "--rows-per-batch", 300, "--state", tmp_path / "plans")
    assert last_line(run(*words, "--sql", chosen, *once)).startswith("800 messages read, and")
    assert len(list((tmp_path / "plans").glob("*.json"))) == 1
    (plan,) = (json.loads(file.read_text()) for file in (tmp_path / "plans").glob("*.json"))
    assert len(plan["batches"]) == 3  # a query of each row by itself is run in parts
    assert len(topic_rows(broker.namesrv, "chosen")) == 20
    message = run(*words, "--sql", "select tags from messages", fails=True).output
    assert "a message needs a value" in message


def test_replay_takes_a_list_of_topics_with_spaces_in_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = spark.range(3).selectExpr("concat('t', id) as topic", "id as offset")
    path = str(tmp_path / "archive")
    rows.selectExpr("*", "date'2026-01-01' as date").write.partitionBy("topic", "date").parquet(
        path
    )
    found = selected(spark, Replay(path, "", only="t0, t2")).collect()
    assert sorted(row["topic"] for row in found) == ["t0", "t2"]


def test_a_topic_whose_name_is_a_number_is_archived_and_replayed_under_that_name(
    run: Run, broker: AerobeeBroker, tmp_path: Path
) -> None:
    create_topic(broker.broker, "007", 1)
    produce(broker.namesrv, "007", numbers(5))
    out = tmp_path / "archive"
    run("archive", "--namesrv", broker.namesrv, "--topics", "007", "--out", out)
    run("replay", "--source", out, "--namesrv", broker.namesrv)
    assert sorted(r["value"] for r in topic_rows(broker.namesrv, "007")) == sorted(numbers(5) * 2)


@pytest.fixture
def store(own_broker: Callable[..., AerobeeBroker]) -> Path:
    """The store of a broker that was stopped: two topics, keys, several log files."""
    broker = own_broker(mappedFileSizeCommitLog="65536")
    for topic in ("red", "blue"):
        create_topic(broker.broker, topic, 2)
        produce(broker.namesrv, topic, [b"%06d" % n + b"." * 200 for n in range(400)], tag=topic)
    broker.stop()
    return broker.store


def test_audit_finds_nothing_in_a_sound_store_and_every_planted_damage(
    run: Run, store: Path, tmp_path: Path
) -> None:
    assert "no damage found" in run("audit", store).output
    log = sorted((store / "commitlog").iterdir())[1]
    data = bytearray(log.read_bytes())
    data[200] ^= 0xFF  # inside a body
    log.write_bytes(data)
    queue = sorted((store / "consumequeue" / "red" / "0").iterdir())[0]
    entries = bytearray(queue.read_bytes())
    entries[20 * 3 + 7] ^= 0x04  # the fourth entry's physical offset
    queue.write_bytes(entries)
    index = next((store / "index").iterdir())
    with index.open("r+b") as file:  # the first key's hash; 100000 slots, as the tests set them
        file.seek(40 + 100_000 * 4 + 20)
        file.write(b"\x00\x00\x00\x01")
    run("audit", store, "--json", tmp_path / "found.json", fails=True)
    reports = json.loads((tmp_path / "found.json").read_text())
    found = {
        kind: [f for report in reports if report["kind"] == kind for f in report["findings"]]
        for kind in ("log", "queue", "index")
    }
    damaged, keyless = sorted(found["log"], key=lambda f: f["file"], reverse=True)
    assert (damaged["file"], damaged["position"]) == (str(log), 0)
    assert "does not match its checksum" in damaged["problem"]
    assert "is in no index file" in keyless["problem"]
    assert [(f["file"], f["position"]) for f in found["queue"]] == [(str(queue), 20 * 3)]
    assert "queue entry 3: the log has no record" in found["queue"][0]["problem"]
    assert any("index entry 1: no record at" in f["problem"] for f in found["index"])


def test_audit_takes_deleted_topics_and_topics_recreated_for_what_they_are(
    run: Run, own_broker: Callable[..., AerobeeBroker], tmp_path: Path
) -> None:
    broker = own_broker(mappedFileSizeCommitLog="131072")
    for topic in ("gone", "anew", "kept"):
        create_topic(broker.broker, topic, 1)
        produce(broker.namesrv, topic, numbers(200), tag=topic)
    with Wire(broker.broker) as wire:
        for topic in ("gone", "anew"):
            assert wire.request(215, {"topic": topic}).code == 0
    create_topic(broker.broker, "anew", 1)
    produce(broker.namesrv, "anew", numbers(50), tag="anew")
    broker.stop()
    assert "no damage found" in run("audit", broker.store).output
    shutil.rmtree(broker.store / "consumequeue" / "kept")
    run("audit", broker.store, "--json", tmp_path / "found.json", fails=True)
    assert "the record has no entry 0 in queue kept/0" in (tmp_path / "found.json").read_text()


def test_stats_tell_of_a_store_and_of_a_cluster(
    run: Run, store: Path, broker: AerobeeBroker, tmp_path: Path
) -> None:
    png, figures = tmp_path / "plot.png", tmp_path / "figures.json"
    output = run("stats", "--store", store, "--png", png, "--json", figures).output
    assert "blue" in output and "400" in output
    assert png.read_bytes().startswith(b"\x89PNG")
    hours = json.loads(figures.read_text())["hours"]
    assert {(row["topic"], row["messages"]) for row in hours} == {("red", 400), ("blue", 400)}
    assert all(row["bytes"] > 400 * 200 for row in hours)
    # All were stored within seconds, at most across one turn of the hour.
    assert sum(row["messages_per_second"] for row in hours) > 40
    produce(broker.namesrv, "counted", numbers(30))
    namesrv = f"{broker.namesrv},{broker.namesrv}"  # a comma separates as ; does
    run("stats", "--namesrv", namesrv, "--topics", "counted", "--json", figures)
    assert json.loads(figures.read_text())["hours"][0]["messages"] == 30


def test_the_hours_of_stats_are_those_of_utc_wherever_they_run(
    run: Run, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = tmp_path / "figures.json"
    stored = datetime.fromtimestamp(store.stat().st_mtime, UTC)
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        output = run("stats", "--store", store, "--json", figures).output
    finally:
        monkeypatch.undo()
        time.tzset()
    hours = {row["hour"] for row in json.loads(figures.read_text())["hours"]}
    wanted = {(stored - ago).replace(minute=0, second=0, microsecond=0) for ago in AGO}
    assert {datetime.fromisoformat(hour) for hour in hours} <= wanted
    assert any(f"{hour:%Y-%m-%d %H:00}" in output for hour in wanted)


def test_stats_show_an_hour_in_which_no_message_has_a_possible_time_of_birth() -> None:
    hour = datetime(2026, 1, 1, tzinfo=UTC)
    row: dict[str, Any] = {"topic": "t", "hour": hour, "messages": 1, "bytes": 200}
    row |= {"messages_per_second": 1 / 3600, "latency_ms_p50": None, "latency_ms_p99": None}
    console = Console(file=io.StringIO(), width=100)
    show([row], [], console)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines()[4].split("│")[-3:-1] == ["      - ", "      - "]


def test_what_spark_says_of_an_argument_is_a_sentence_too(
    run: Run, broker: AerobeeBroker, tmp_path: Path
) -> None:
    create_topic(broker.broker, "argued", 1)
    named = ("--namesrv", broker.namesrv)
    message = run("replay", "--source", tmp_path / "gone", *named, fails=True).output
    assert message.startswith("Error: ") and "Path does not exist" in message
    out = ("--topics", "argued", "--out", tmp_path / "out")
    message = run("archive", *named, *out, "--every", "soon", fails=True).output
    assert "Error: " in message and "'soon' is not a time like 30s" in message


def test_wrong_arguments_end_with_a_sentence(run: Run, tmp_path: Path, store: Path) -> None:
    nowhere = ("--namesrv", "127.0.0.1:1")
    assert "give --topics or --pattern" in run("archive", *nowhere, "--out", "x", fails=True).output
    assert "give --store or --namesrv" in run("stats", fails=True).output
    message = run("replay", "--source", "x", *nowhere, "--start", "soon", fails=True).output
    assert "'soon' is not a time" in message
    message = run("stats", "--store", tmp_path, fails=True).output
    assert "holds no commitlog file" in message
    assert "holds no commitlog file" in run("audit", tmp_path, fails=True).output
    message = run("replay", "--source", "x", *nowhere, "--rate", "0", fails=True).output
    assert "0 is not in the range" in message
    result = run("stats", "--store", store, "--json", tmp_path / "no" / "file", fails=True)
    assert "No such file or directory" in result.output
