"""`aerobee pipeline table`: a topic kept as Parquet, Delta and Iceberg by a real Spark."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest
from peers.aerobee_broker import AerobeeBroker
from peers.wire import Wire
from pyspark.sql import SparkSession
from spark.helpers import Run, create_topic, last_line, numbers, produce
from spark.lake_readers import FORMATS, open_with_others

from aerobee.pipeline.jobs.table import Commit, Keeper, TableJob, keep_table
from aerobee.pipeline.jobs.upkeep import Upkeep
from aerobee.pipeline.lake.data_files import table_schema
from aerobee.pipeline.lake.model import Held, TableConflict
from aerobee.pipeline.lake.opening import create_table, open_table
from aerobee.pipeline.source.queues import DataLoss

pytestmark = pytest.mark.timeout(400)  # a busy machine starts workers slowly


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_topic_is_a_table_that_others_open(
    run: Run, broker: AerobeeBroker, tmp_path: Path, table_format: str
) -> None:
    topic = f"lake-{table_format}"
    create_topic(broker.broker, topic, 2)
    for queue_id in range(2):
        produce(broker.namesrv, topic, numbers(200)[queue_id::2], tag="a b", queue_id=queue_id)
    where = tmp_path / "table"
    words: tuple[Any, ...]
    words = ("table", topic, "--namesrv", broker.namesrv, "--to", where, "--format", table_format)
    words = (*words, "--once", "--partition", "tags")
    assert last_line(run(*words)).startswith("200 messages added")
    assert last_line(run(*words)).startswith("0 messages added")
    produce(broker.namesrv, topic, numbers(50, 200), queue_id=0)
    assert last_line(run(*words)).startswith("50 messages added")
    for reader, values in open_with_others(where, table_format).items():
        assert sorted(values) == numbers(250), reader
    table = open_table(str(where))
    queues = [(topic, f"{name}:{n}") for n in range(2) for name in (_broker_name(table),)]
    assert [table.held(queues).next[topic][queue] for _, queue in queues] == [150, 100]
    assert {one.partition["tags"] for one in table.files()} == {"a b", None}


def _broker_name(table: Any) -> str:
    path = table.files()[0].path
    return str(duckdb.sql(f"select any_value(broker) from read_parquet('{path}')").fetchall()[0][0])


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_kill_while_the_table_is_made_leaves_nothing_that_the_next_start_refuses(
    spark: SparkSession, broker: AerobeeBroker, tmp_path: Path, table_format: str
) -> None:
    folders = {"parquet": "_aerobee/commits", "delta": "_delta_log", "iceberg": "metadata"}
    (tmp_path / "t" / folders[table_format]).mkdir(parents=True)
    topic = f"made-{table_format}"
    create_topic(broker.broker, topic, 1)
    produce(broker.namesrv, topic, numbers(5))
    job = TableJob(broker.namesrv, str(tmp_path / "t"), topic, table_format=table_format)
    assert keep_table(spark, job, print) == 5


@pytest.mark.parametrize("table_format", FORMATS)
def test_small_files_are_merged_and_leftovers_removed(
    spark: SparkSession, broker: AerobeeBroker, tmp_path: Path, table_format: str
) -> None:
    topic = f"small-{table_format}"
    create_topic(broker.broker, topic, 1)
    produce(broker.namesrv, topic, numbers(120))
    where = tmp_path / "table"
    job = TableJob(
        broker.namesrv,
        str(where),
        topic,
        table_format=table_format,
        rows_per_commit=10,
        upkeep=Upkeep(small_files=4, keep=timedelta(0)),
    )
    commits: list[Commit] = []
    assert keep_table(spark, job, commits.append) == 120
    assert [commit.rows for commit in commits] == [10] * 12
    assert max(commit.small_files for commit in commits) <= 4 + 3  # of a tier; and the merged ones
    table = open_table(str(where))
    named = {one.path for one in table.files()}
    assert len(named) <= 6
    assert {str(file) for file in where.rglob("part-*.parquet")} == named
    for reader, values in open_with_others(where, table_format).items():
        assert sorted(values) == numbers(120), reader


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_file_that_no_commit_names_stays_for_half_an_hour_if_that_is_asked_for(
    tmp_path: Path, table_format: str
) -> None:
    table = create_table(str(tmp_path / "t"), table_format, table_schema(()), ())
    file = Path(table.data_folder(), "part-1.parquet")
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"of a task that is not done")
    table.clean(timedelta(minutes=30))
    assert file.exists()


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_recreated_topic_is_added_from_its_beginning_if_loss_is_allowed(
    spark: SparkSession, broker: AerobeeBroker, tmp_path: Path, table_format: str
) -> None:
    topic = f"remade-table-{table_format}"
    create_topic(broker.broker, topic, 2)
    fill_two(broker, topic, 20)
    where = tmp_path / "t"
    job = TableJob(broker.namesrv, str(where), topic, table_format=table_format)
    assert keep_table(spark, job, print) == 20
    with Wire(broker.broker) as wire:
        assert wire.request(215, {"topic": topic}).code == 0
    create_topic(broker.broker, topic, 2)
    produce(broker.namesrv, topic, numbers(5, 20), queue_id=0)
    with pytest.raises(DataLoss, match="ends at 5, before 10"):
        keep_table(spark, job, print)
    job = replace(job, fail_on_data_loss=False)
    assert keep_table(spark, job, print) == 5
    produce(broker.namesrv, topic, numbers(3, 25), queue_id=1)
    assert keep_table(spark, job, print) == 3
    for reader, values in open_with_others(where, table_format).items():
        assert sorted(values) == numbers(28), reader


def test_a_queue_that_lost_its_last_messages_is_continued_where_it_is_the_tables(
    spark: SparkSession, broker: AerobeeBroker, tmp_path: Path
) -> None:
    create_topic(broker.broker, "shorter", 1)
    produce(broker.namesrv, "shorter", numbers(20))
    where = tmp_path / "t"
    job = TableJob(broker.namesrv, str(where), "shorter", fail_on_data_loss=False)
    assert keep_table(spark, job, print) == 20
    table = open_table(str(where), writing=True)
    held = table.held([])
    [queue] = held.next["shorter"]
    table.append([], Held(held.first, {"shorter": {queue: 25}}), {})  # as if it had five more
    produce(broker.namesrv, "shorter", numbers(3, 20))  # where those were
    assert keep_table(spark, job, print) == 3
    assert open_table(str(where)).held([]).next == {"shorter": {queue: 23}}
    for reader, values in open_with_others(where, "parquet").items():
        assert sorted(values) == numbers(23), reader


def fill_two(broker: AerobeeBroker, topic: str, count: int) -> None:
    for queue_id in range(2):
        produce(broker.namesrv, topic, numbers(count)[queue_id::2], queue_id=queue_id)


@pytest.mark.parametrize("table_format", FORMATS)
def test_of_two_jobs_on_one_table_one_adds_nothing(
    spark: SparkSession,
    broker: AerobeeBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    table_format: str,
) -> None:
    topic = f"twice-{table_format}"
    create_topic(broker.broker, topic, 1)
    produce(broker.namesrv, topic, numbers(30))
    where = tmp_path / "table"
    job = TableJob(broker.namesrv, str(where), topic, table_format=table_format)
    one, other = Keeper(spark, job), Keeper(spark, job)
    append = other._table.append

    def late(*planned: Any) -> None:  # the first commits after the other has read and planned
        assert one.trigger() is not None
        append(*planned)

    monkeypatch.setattr(other._table, "append", late)
    refused = pytest.raises(TableConflict, match="another job adds rows")
    with closing(one), closing(other), refused:
        other.trigger()
    for reader, values in open_with_others(where, table_format).items():
        assert sorted(values) == numbers(30), reader


def test_a_table_follows_its_topic_and_says_how_fresh_it_is(
    spark: SparkSession, broker: AerobeeBroker, tmp_path: Path
) -> None:
    create_topic(broker.broker, "followed", 2)
    produce(broker.namesrv, "followed", numbers(10))
    stop, commits = threading.Event(), []
    complete_until: list[float] = []
    began = time.time()

    def tell(commit: Commit) -> None:
        commits.append(commit)
        if sum(one.rows for one in commits) == 40:
            stop.set()
        elif len(commits) == 1:
            produce(broker.namesrv, "followed", numbers(30, 10))

    job = TableJob(broker.namesrv, str(tmp_path / "t"), "followed", fresh=2.0, group="lake")
    assert keep_table(spark, job, tell, stop, complete_until.append) == 40
    assert complete_until == sorted(complete_until) and complete_until[-1] > began
    assert all(commit.fresh > 0 for commit in commits)
    assert set(commits[-1].lag) == {"followed"} and commits[-1].behind == 0


class NoWaits(threading.Event):
    """Does not wait, but remembers how long it should have."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.asked.append(timeout or 0.0)
        return self.is_set()


def test_a_topic_that_is_always_written_to_is_committed_as_often_as_fresh_says(
    spark: SparkSession, broker: AerobeeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(broker.broker, "steady", 1)
    produce(broker.namesrv, "steady", numbers(10))
    stop, commits = NoWaits(), []
    complete_until: list[float] = []
    append = Keeper._append

    def more_comes_meanwhile(*planned: Any) -> None:
        produce(broker.namesrv, "steady", numbers(1))
        append(*planned)

    def tell(commit: Commit) -> None:
        commits.append(commit)
        if len(commits) == 3:
            stop.set()

    monkeypatch.setattr(Keeper, "_append", more_comes_meanwhile)
    job = TableJob(broker.namesrv, str(tmp_path / "t"), "steady", fresh=600.0)
    keep_table(spark, job, tell, stop, complete_until.append)
    assert [commit.behind for commit in commits] == [1, 1, 1]
    assert len(complete_until) == 3
    assert len(stop.asked) == 3 and all(0 < seconds <= 600 for seconds in stop.asked)


def test_a_table_of_another_shape_is_refused(
    run: Run, broker: AerobeeBroker, tmp_path: Path
) -> None:
    create_topic(broker.broker, "shaped", 1)
    words = ("table", "shaped", "--namesrv", broker.namesrv, "--to", tmp_path / "t", "--once")
    run(*words)
    assert (
        "partitioned by date, not by date, hour" in run(*words, "--by", "hour", fails=True).output
    )
    assert "is a parquet table" in run(*words, "--format", "delta", fails=True).output
    other = ("table", "shaped", "--namesrv", broker.namesrv, "--to", tmp_path / "u", "--once")
    assert "no column colour" in run(*other, "--partition", "colour", fails=True).output
    assert not (tmp_path / "u").exists()
