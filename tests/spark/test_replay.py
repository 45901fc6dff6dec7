"""Messages sent again: in batches that are published once, by functions, and from dead letters."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from peers.aerobee_broker import AerobeeBroker
from pyspark.sql import SparkSession
from spark.helpers import (
    create_topic,
    numbers,
    produce,
    start_command,
    topic_rows,
    topic_values,
)
from spark.kills import kill_group, wait_until

import aerobee
from aerobee.pipeline.cli import pipeline
from aerobee.pipeline.jobs import replay
from aerobee.pipeline.jobs.messages import Chosen
from aerobee.pipeline.jobs.reprocess import TableReprocess, reprocess
from aerobee.pipeline.jobs.row_by_row import is_row_by_row
from aerobee.pipeline.jobs.slices import cut_batches, ends_of
from aerobee.pipeline.lake.opening import open_table

pytestmark = pytest.mark.timeout(400)  # a busy machine starts workers slowly
Run = Callable[..., str]


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The last line of a job, or its error."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def invoke(*words: Any, fails: bool = False) -> str:
        result = CliRunner().invoke(pipeline, [str(word) for word in words])
        assert (result.exit_code != 0) == fails, f"{result.output}\n{result.exception!r}"
        return result.output if fails else result.output.strip().splitlines()[-1]

    return invoke


def kept(run: Run, broker: AerobeeBroker, topic: str, to: Path, *more: str) -> None:
    """The topic as a table, as it is now."""
    run("table", topic, "--namesrv", broker.namesrv, "--to", to, "--once", *more)


def messages(spark: SparkSession, counts: dict[int, int], step_ms: int = 1000) -> Any:
    """A frame of queues with so many messages each, one every `step_ms`."""
    parts = [
        spark.range(count).selectExpr(
            *("'t' as topic", "'b' as broker", f"{queue} as partition", "id as offset"),
            f"timestamp_millis(id * {step_ms}) as timestamp",
        )
        for queue, count in counts.items()
    ]
    frame = parts[0]
    for part in parts[1:]:
        frame = frame.unionAll(part)
    return frame


def test_batches_cover_each_queue_without_gap_in_the_order_of_time(spark: SparkSession) -> None:
    frame = messages(spark, {0: 1000, 1: 200})
    batches = cut_batches(frame, 100, {})
    assert sum(batch.rows for batch in batches) == 1200
    assert all(batch.rows <= 100 for batch in batches)
    reached = {0: 0, 1: 0}
    for batch in batches:
        for one in batch.slices:
            assert one.start == reached[one.partition]
            reached[one.partition] = one.end
    assert reached == {0: 1000, 1: 200}
    firsts = [batch.first_ms for batch in batches]
    assert firsts == sorted(firsts)
    ends = ends_of(batches[:5])
    rest = cut_batches(frame, None, ends)
    assert len(rest) == 1 and rest[0].rows == 1200 - sum(batch.rows for batch in batches[:5])


def test_only_a_query_that_looks_at_each_row_by_itself_is_run_in_parts(spark: SparkSession) -> None:
    messages(spark, {0: 1}).createOrReplaceTempView("rows_of_one")
    for text, by_row in {
        "select *, upper(topic) as up from rows_of_one where offset > 3": True,
        "select explode(array(1, 2)) as n from rows_of_one": True,
        "select count(*) from rows_of_one": False,
        "select * from rows_of_one limit 1": False,
        "select a.* from rows_of_one a join rows_of_one b on a.offset = b.offset": False,
        "select * from rows_of_one where offset = (select max(offset) from rows_of_one)": False,
    }.items():
        assert is_row_by_row(spark.sql(text)) == by_row, text


def test_an_exactly_once_replay_that_is_run_again_sends_only_what_is_new(
    run: Run, broker: AerobeeBroker, tmp_path: Path
) -> None:
    create_topic(broker.broker, "was", 2)
    produce(broker.namesrv, "was", numbers(300))
    kept(run, broker, "was", tmp_path / "was")
    words: tuple[Any, ...]
    words = ("replay", "--source", tmp_path / "was", "--namesrv", broker.namesrv, "--topic", "is")
    words = (*words, "--exactly-once", "--rows-per-batch", "128")
    words = (*words, "--sql", "select * from messages where value <> '000007'")
    assert run(*words, "--dry-run") == "299 messages would be sent"
    assert run(*words) == "300 messages read, and what was made of them sent"
    assert run(*words).endswith("; 300 before (--again sends them again)")
    produce(broker.namesrv, "was", numbers(50, 300))
    kept(run, broker, "was", tmp_path / "was")
    assert run(*words).startswith("50 messages read")
    wanted = Counter(numbers(350))
    del wanted[b"000007"]
    assert topic_values(broker.namesrv, "is") == wanted
    elsewhere = run(*words, "--state", tmp_path / "other", fails=True)
    assert "its plan is not in" in elsewhere and "--again" in elsewhere
    run(*words, "--again")
    assert topic_values(broker.namesrv, "is") == wanted + wanted


def test_a_sum_that_was_sent_is_not_followed_by_a_sum_of_what_is_new(
    run: Run, broker: AerobeeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(broker.broker, "summed", 1)
    produce(broker.namesrv, "summed", numbers(30))
    kept(run, broker, "summed", tmp_path / "t")
    words: tuple[Any, ...]
    words = ("replay", "--source", tmp_path / "t", "--namesrv", broker.namesrv, "--topic", "sums")
    words = (*words, "--exactly-once", "--sql", "select string(count(*)) as value from messages")
    with monkeypatch.context() as patch:
        patch.setattr(replay, "_publish", killed)
        run(*words, fails=True)
    produce(broker.namesrv, "summed", numbers(5))
    kept(run, broker, "summed", tmp_path / "t")
    assert run(*words).startswith("30 messages read")  # what was planned
    assert topic_values(broker.namesrv, "sums") == Counter([b"30"])
    assert "there are 5 more now: --again" in run(*words, fails=True)
    assert run(*words, "--again").startswith("35 messages read")
    assert run(*words).startswith("0 messages read")
    assert topic_values(broker.namesrv, "sums") == Counter([b"30", b"35"])


def killed(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.timeout(900)  # it starts Spark again and again
def test_a_replay_that_is_killed_continues_and_sends_each_message_once(
    run: Run, own_broker: Callable[..., AerobeeBroker], tmp_path: Path
) -> None:
    """KILLS=20 of them by `make test-replay-kills`."""
    broker = own_broker()
    create_topic(broker.broker, "first", 2)
    create_topic(broker.broker, "second", 2)
    count = 400
    produce(broker.namesrv, "first", numbers(count))
    kept(run, broker, "first", tmp_path / "table")
    words = ["pipeline", "replay", "--source", tmp_path / "table", "--namesrv", broker.namesrv]
    words += ["--topic", "second", "--exactly-once", "--rows-per-batch", 50, "--master", "local[1]"]
    kills = int(os.environ.get("KILLS") or 1)
    rng = random.Random(os.environ.get("SEED") or "1")

    def sent() -> int:
        return sum(topic_values(broker.namesrv, "second").values())

    def has_sent_more(before: int) -> bool:
        return sent() > min(before, count - 1)

    for _ in range(kills):
        before = sent()
        driver = start_command(*map(str, words))
        try:
            wait_until(partial(has_sent_more, before), driver, 300)
            time.sleep(rng.uniform(0, 0.3))  # somewhere in a batch
        finally:
            if driver.poll() is None:
                kill_group(driver)
    output, _ = start_command(*map(str, words)).communicate(timeout=300)
    assert "before (--again" in output or kills == 0, output[-3000:]
    assert topic_values(broker.namesrv, "second") == Counter(numbers(count))


FUNCTION = """
from pyspark.sql import functions as f

def shout(text):
    return text.upper()

def louder(messages):
    loud = f.udf(shout, useArrow=False)
    return messages.select(loud(f.col("value").cast("string")).alias("value"), "offset", "tags")

def sums(messages):
    return messages.groupBy("tags").count()
"""


@pytest.mark.parametrize(
    "table_format",
    ["parquet", *(pytest.param(name, marks=pytest.mark.slow) for name in ("delta", "iceberg"))],
)
def test_a_function_over_history_makes_a_table_that_continues(
    run: Run, spark: SparkSession, broker: AerobeeBroker, tmp_path: Path, table_format: str
) -> None:
    (tmp_path / "made.py").write_text(FUNCTION)
    topic = f"plain-{table_format}"
    create_topic(broker.broker, topic, 2)
    produce(broker.namesrv, topic, [b"a%03d" % n for n in range(60)], tag="x")
    kept(run, broker, topic, tmp_path / "source")
    words: tuple[Any, ...]
    words = ("reprocess", "--source", tmp_path / "source", "--format", table_format)
    words = (*words, "--function", f"{tmp_path}/made.py:louder", "--rows-per-batch", "25")
    words = (*words, "--to", tmp_path / "loud", "--partition", "tags")
    assert run(*words, "--dry-run") == "60 messages would be read"
    assert run(*words).startswith("60 messages read, 60 rows added")
    produce(broker.namesrv, topic, [b"b%03d" % n for n in range(5)], tag="y")
    kept(run, broker, topic, tmp_path / "source")
    assert run(*words).startswith("5 messages read, 5 rows added")
    assert run(*words).startswith("0 messages read, 0 rows added")
    assert sorted(_values(tmp_path / "loud", table_format)) == sorted(
        [f"A{n:03}" for n in range(60)] + [f"B{n:03}" for n in range(5)]
    )
    wrong = run(*words[:-2], "--partition", "offset", fails=True)
    assert "use another place" in wrong


def test_a_table_of_a_function_never_passes_over_messages_before_its_first_ones(
    run: Run, broker: AerobeeBroker, tmp_path: Path
) -> None:
    (tmp_path / "made.py").write_text(FUNCTION)
    create_topic(broker.broker, "later", 1)
    produce(broker.namesrv, "later", [b"a"])
    first = topic_rows(broker.namesrv, "later", ["timestamp"])[0]["timestamp"]
    second = first
    while second == first:  # the broker's clock counts milliseconds
        produce(broker.namesrv, "later", [b"b"])
        second = topic_rows(broker.namesrv, "later", ["timestamp"])[-1]["timestamp"]
    kept(run, broker, "later", tmp_path / "source")
    words: tuple[Any, ...]
    words = ("reprocess", "--source", tmp_path / "source", "--to", tmp_path / "loud")
    words = (*words, "--function", f"{tmp_path}/made.py:louder")
    assert run(*words, "--start", second.isoformat()).startswith("1 messages read, 1 rows added")
    assert f"loud was made with --start {second.isoformat()}" in run(*words, fails=True)
    assert run(*words, "--start", second.isoformat()).startswith("0 messages read")
    assert run(*words, "--start", second.isoformat(), "--dry-run").startswith("0 messages would")


@pytest.mark.parametrize("table_format", ["parquet", "delta", "iceberg"])
def test_a_table_of_a_function_knows_all_that_it_was_made_of(
    run: Run, spark: SparkSession, broker: AerobeeBroker, tmp_path: Path, table_format: str
) -> None:
    """One batch has one queue, the next has another: the table holds both."""
    (tmp_path / "made.py").write_text(FUNCTION)
    topic = f"one-by-one-{table_format}"
    create_topic(broker.broker, topic, 2)
    for queue_id in (1, 0):
        produce(broker.namesrv, topic, [b"%d" % queue_id] * 20, queue_id=queue_id)
    kept(run, broker, topic, tmp_path / "source")
    words: tuple[Any, ...]
    words = ("reprocess", "--source", tmp_path / "source", "--to", tmp_path / "loud")
    words = (*words, "--function", f"{tmp_path}/made.py:louder", "--format", table_format)
    words = (*words, "--rows-per-batch", "20")
    assert run(*words).startswith("40 messages read, 40 rows added")
    assert run(*words).startswith("0 messages read, 0 rows added")


def test_of_two_jobs_that_make_one_table_one_is_refused(
    run: Run, spark: SparkSession, broker: AerobeeBroker, tmp_path: Path
) -> None:
    create_topic(broker.broker, "two-makers", 1)
    produce(broker.namesrv, "two-makers", numbers(5))
    kept(run, broker, "two-makers", tmp_path / "source")
    job = TableReprocess(Chosen(str(tmp_path / "source")), str(tmp_path / "t"), "delta")
    calls = 0

    def meanwhile(rows: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:  # of the batch; the first was for the columns
            assert reprocess(spark, job, values).rows == 5
        return values(rows)

    def values(rows: Any) -> Any:
        return rows.select("value")

    with pytest.raises(Exception, match="another job adds rows"):
        reprocess(spark, job, meanwhile)
    assert sum(one.rows for one in open_table(job.to).files()) == 5


def _values(folder: Path, table_format: str) -> list[str]:
    if table_format == "delta":
        return [str(v) for v in DeltaTable(folder).to_pyarrow_table()["value"].to_pylist()]
    if table_format == "iceberg":
        from pyiceberg.table import StaticTable

        rows = StaticTable.from_metadata(str(folder)).scan().to_arrow()
        return [str(value) for value in rows["value"].to_pylist()]
    files = [pq.ParquetFile(file).read(["value"]) for file in folder.glob("tags=*/*.parquet")]
    return [value for file in files for value in file["value"].to_pylist()]


def test_a_function_over_history_writes_a_topic_and_sums_are_made_of_all_at_once(
    run: Run, broker: AerobeeBroker, tmp_path: Path
) -> None:
    (tmp_path / "made.py").write_text(FUNCTION)
    create_topic(broker.broker, "quiet", 1)
    produce(broker.namesrv, "quiet", [b"a%03d" % n for n in range(30)], tag="x")
    kept(run, broker, "quiet", tmp_path / "source")
    words: tuple[Any, ...]
    words = ("reprocess", "--source", tmp_path / "source", "--rows-per-batch", "10")
    loud = ("--function", f"{tmp_path}/made.py:louder", "--namesrv", broker.namesrv)
    assert run(*words, *loud, "--topic", "loud").startswith("30 messages read, and")
    assert topic_values(broker.namesrv, "loud") == Counter(b"A%03d" % n for n in range(30))
    sums = ("--function", f"{tmp_path}/made.py:sums", "--to", tmp_path / "sums")
    assert run(*words, *sums).startswith("30 messages read, 1 rows added")
    assert "names no function" in run(*words, "--function", "x", "--to", "y", fails=True)


async def test_dead_letters_go_back_once_by_a_query_with_what_the_user_gave_them(
    run: Run, broker: AerobeeBroker
) -> None:
    async with aerobee.connect(f"mq://{broker.namesrv}") as mq:
        await mq.admin.create_topic("meals", queues=1)
        for number in range(6):
            await mq.send("meals", b"%d" % number, tag="t", key=f"k{number}", properties={"p": "q"})
        async with mq.consumer("meals", group="eaters") as inbox:
            async for message in inbox:
                await message.reject("bad meal" if message.body < b"4" else "no time")
                if message.body == b"5":
                    break
    words = ("dead-letters", "eaters", "--namesrv", broker.namesrv)
    chosen = ("--sql", "select * from letters where reason = 'bad meal' and key <> 'k0'")
    assert run(*words, *chosen, "--dry-run") == ("6 dead letters of eaters: 3 would be sent back")
    assert run(*words, *chosen) == "6 dead letters of eaters: 3 were sent back"
    assert run(*words, *chosen).endswith("0 were sent back, 3 were sent before (--again)")
    rows = topic_rows(broker.namesrv, "meals", ["value", "key", "tags", "properties"])
    again = [row for row in rows if "AEROBEE_REPLAYED_FROM" in row["properties"]]
    assert sorted(row["value"] for row in again) == [b"1", b"2", b"3"] and len(rows) == 9
    for row in again:
        assert row["key"] == b"k" + row["value"] and row["tags"] == "t"
        assert row["properties"]["p"] == "q" and "RETRY_TOPIC" not in row["properties"]
    assert run("dead-letters", "nobody", "--namesrv", broker.namesrv).startswith("0 dead letters")
