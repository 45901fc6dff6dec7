"""table: a topic kept as a table, exactly once, with the table itself as the only checkpoint.

A trigger reads from the table which offsets it holds, lets tasks write files of the later messages,
and commits files and offsets in one step. Killed at any point, it either has committed or it has
not; files that were not committed are not part of the table and are removed later.
"""

import logging
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from aerobee.pipeline.columns import DEFAULT_COLUMNS
from aerobee.pipeline.jobs.rejected import Rejected
from aerobee.pipeline.jobs.table_tasks import layout_of, shared_out, write_ranges, write_typed
from aerobee.pipeline.jobs.upkeep import Schedule, Upkeep, compact, is_small
from aerobee.pipeline.lake.data_files import table_schema
from aerobee.pipeline.lake.model import (
    RETRIES,
    DataFile,
    Held,
    Table,
    TableConflict,
    TableError,
)
from aerobee.pipeline.lake.opening import create_table, format_of, open_table, place
from aerobee.pipeline.options import source_options
from aerobee.pipeline.source.history import History
from aerobee.pipeline.source.puller import Range
from aerobee.pipeline.source.queues import Offsets, QueueKey, from_json, store_time, to_json
from aerobee.pipeline.source.stream_reader import TopicStream
from aerobee.pipeline.source.topic_ranges import TopicPlan
from aerobee.pipeline.typed.columns import columns_of, grown
from aerobee.pipeline.typed.shape import Shape

log: Final = logging.getLogger("aerobee.pipeline")
ROWS_PER_TASK: Final = 20_000  # fewer are not worth a file of their own
COMMIT_TRIES: Final = 5
IDLE_SECONDS: Final = 1.0  # between polls of an idle topic


@dataclass(frozen=True, slots=True)
class TableJob:
    """What to keep, where and how."""

    namesrv: str
    to: str
    topics: str | None = None
    pattern: str | None = None
    table_format: str = "parquet"
    partition_by: tuple[str, ...] = ("date",)
    starting: str = "earliest"
    rows_per_commit: int = 500_000
    fresh: float | None = None  # seconds from stored to visible; None: all there is now, then end
    group: str | None = None
    fail_on_data_loss: bool = True
    upkeep: Upkeep = field(default_factory=Upkeep)
    schema: Shape | None = None  # the value as columns
    options: Mapping[str, str] = field(default_factory=dict)  # of the source: access keys, TLS


@dataclass(frozen=True, slots=True)
class Commit:
    """One trigger that found rows."""

    rows: int
    files: int
    seconds: float
    fresh: float  # age of its oldest message when it became visible
    lag: dict[str, dict[str, int]]  # what the brokers hold beyond it
    small_files: int
    rejected: int = 0  # rows that went to the table beside
    took_all: bool = False  # what was stored when its trigger began; more may have come since

    @property
    def behind(self) -> int:
        return sum(count for queues in self.lag.values() for count in queues.values())


def keep_table(
    spark: Any,
    job: TableJob,
    report: Callable[[Commit], None],
    stop: threading.Event | None = None,
    complete: Callable[[float], None] = lambda at: None,
) -> int:
    """Runs until there is nothing more, or for ever with `fresh`; returns how many rows it added.
    `report` is called with each commit; `complete` with the time up to which the table has all."""
    stop = stop or threading.Event()
    keeper = Keeper(spark, job)
    rows = 0
    worst = 0.0  # seconds of the slowest of the last triggers
    try:
        while not stop.is_set():
            began, began_at = time.monotonic(), time.time()
            commit = keeper.trigger()
            if commit is not None:
                report(commit)
                rows += commit.rows + commit.rejected
                worst = max(commit.seconds, 0.8 * worst)
            has_all = commit is None or commit.took_all
            if has_all:
                complete(began_at)
            if commit is None and job.fresh is None:
                break
            keeper.upkeep()
            if job.fresh is not None and has_all:
                pause = max(0.0, job.fresh - 1.5 * worst) if commit else IDLE_SECONDS
                stop.wait(max(0.0, min(pause, job.fresh) - (time.monotonic() - began)))
        keeper.upkeep(ending=job.fresh is None)
    finally:
        keeper.close()
    return rows


class Keeper:
    """The table, the topics and what is between them."""

    def __init__(self, spark: Any, job: TableJob) -> None:
        self._spark, self._job = spark, job
        given = {
            "namesrv": job.namesrv,
            "startingOffsets": job.starting,
            "failOnDataLoss": str(job.fail_on_data_loss).lower(),
            **(
                {"subscribe": job.topics} if job.topics else {"subscribePattern": job.pattern or ""}
            ),
            **({"groupId": job.group} if job.group else {}),
            **job.options,
        }
        options = source_options(given, streaming=True)
        self._stream = TopicStream(options)
        self._plan = TopicPlan.of(options, DEFAULT_COLUMNS)
        self._schedule = Schedule(job.upkeep)
        self._added = job.upkeep.small_files  # files since the last merge: check soon
        try:
            self._stream.addresses()  # a wrong address or topic fails before a table is made
            self._table = _opened(job)
            self._rejected = Rejected(spark, self._table, job.schema) if job.schema else None
            if self._rejected:
                self._rejected.settle(self._queues())
            self._small = sum(map(is_small, self._table.files()))
            self._held = self._begin()
            if job.fresh is None:
                self._stream.freeze()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> Held:
        """Commits a new table's start offsets at once: after a kill before the first rows, the next
        run resumes there."""
        held = self._seen()
        if held.next:
            return held
        start = to_json(self._stream.initial())
        held = Held().extended(start, start)
        self._table.append([], held, {})
        return held

    def _queues(self) -> list[tuple[str, str]]:
        keys = self._stream.addresses()
        return [(key.topic, f"{key.broker}:{key.queue_id}") for key in keys]

    def _seen(self) -> Held:
        return self._table.held([*self._queues(), RETRIES])

    def retry_rejected(self) -> tuple[int, int]:
        """Rejected rows tried again: how many fit now, and how many do not."""
        if self._rejected is None:
            raise TableError("rejected rows can be tried again with a schema: give --schema")
        return self._rejected.retry(self._queues())

    def trigger(self) -> Commit | None:
        """One commit with the rows since the last one; None if there are none."""
        began = time.monotonic()
        self._table.refresh()
        self._held = self._seen()
        start = self._start()
        end = self._stream.next_end(start, self._job.rows_per_commit)
        if first := {key: at for key, at in end.items() if at < start.get(key, at)}:
            start |= self._set_back(first, start)
            end = self._stream.next_end(start, self._job.rows_per_commit)
        ranges = self._stream.planned(start, end).ranges
        if not ranges:
            self._stream.show_progress(start)
            return None
        begun = {one.key: one.start for one in reversed(ranges)} | start
        held = self._held.extended(to_json(end | begun), to_json(end))
        groups = shared_out(ranges, self._tasks(), ROWS_PER_TASK)
        files, refused = self._write(groups, start)
        oldest = min((one.oldest_ms or 0 for one in (*files, *refused)), default=0)
        rows = sum(one.rows for one in files)
        self._append(files, held, {"rows": rows, "oldest-ms": oldest})
        self._stream.show_progress(end)
        rejected = sum(one.rows for one in refused)
        return self._commit_of(files, time.monotonic() - began, oldest, end, rejected)

    def _set_back(self, first: Offsets, start: Offsets) -> Offsets:
        """Queues that end before what the table has of them were recreated, or lost their last
        messages: the table says that it holds them as far as their messages are its own."""
        history = History(self._table.where)
        history.refresh(first)
        ends = self._stream.available(start)

        def is_other(key: QueueKey, at: int) -> bool:
            return self._stored(key, at) not in history.stored(key, at)

        back = {
            key: at + bisect_left(range(at, ends[key]), True, key=partial(is_other, key))
            for key, at in first.items()
        }
        if self._rejected:
            self._rejected.set_back(self._queues(), to_json(back))
        self._append([], self._held.set_back(to_json(back)), {})
        return back

    def _stored(self, key: QueueKey, at: int) -> int | None:
        return store_time(self._stream.cluster, key, self._stream.addresses()[key], at)

    def _write(
        self, groups: list[list[Range]], start: Offsets
    ) -> tuple[list[DataFile], list[DataFile]]:
        """The files of the rows, and of those that do not fit the schema; the latter committed."""
        if self._rejected is None:
            layout = layout_of(self._table)
            return write_ranges(self._spark, groups, self._plan, layout), []
        begun = {one.key: one.start for group in reversed(groups) for one in reversed(group)}
        sorting = self._rejected.sorting(self._queues(), begun | start)
        files, refused = write_typed(self._spark, groups, self._plan, sorting)
        ends = {one.key: one.end for group in groups for one in group}
        self._rejected.append(refused, self._held.extended(to_json(begun), to_json(ends)))
        return files, refused

    def _start(self) -> Offsets:
        """The next offsets of the queues that this job covers; new queues are not among them."""
        covered = {key.topic for key in self._stream.addresses()}
        next_offsets = from_json(self._held.next)
        return {key: offset for key, offset in next_offsets.items() if key.topic in covered}

    def _tasks(self) -> int:
        return int(self._spark.sparkContext.defaultParallelism)

    def _append(self, files: list[DataFile], held: Held, note: Mapping[str, Any]) -> None:
        """Commits. A conflict with another's upkeep is tried again; with other rows it is not."""
        for attempt in range(COMMIT_TRIES):
            try:
                self._table.append(files, held, note)
                self._held = held
                return
            except TableConflict as error:
                self._table.refresh()
                if self._seen().next != self._held.next:
                    raise TableConflict(
                        f"another job adds rows to {self._table.where}; this one added none of its "
                        "own and ends. Run one job for each table"
                    ) from None
                if attempt == COMMIT_TRIES - 1:
                    raise
                log.warning("%s; trying again", error)

    def _commit_of(
        self, files: list[DataFile], seconds: float, oldest_ms: int, end: Offsets, rejected: int
    ) -> Commit:
        self._added += len(files)
        self._small += sum(map(is_small, files))
        fresh = max(0.0, time.time() - oldest_ms / 1000) if oldest_ms else 0.0
        ends = self._stream.available(end)
        lag = {key: max(0, ends[key] - end.get(key, 0)) for key in ends}
        rows = sum(one.rows for one in files)
        all_there = self._stream.reaches_end
        return Commit(
            rows, len(files), seconds, fresh, to_json(lag), self._small, rejected, all_there
        )

    def upkeep(self, *, ending: bool = False) -> None:
        """Merges small files once enough came, and cleans on schedule."""
        job = self._job.upkeep
        try:
            if self._added >= job.small_files:
                self._added = 0
                compact(self._spark, self._table, self._held, job.small_files)
                if self._rejected:
                    self._rejected.upkeep(job.small_files)
                self._small = sum(map(is_small, self._table.files()))
            beside = [self._rejected.table] if self._rejected else []
            for cleaned in self._schedule.clean([self._table, *beside], ending=ending):
                log.info("%s: %s", self._table.where, cleaned)
        except TableConflict as error:  # another process does the same; the next round will do
            log.warning("upkeep of %s: %s", self._table.where, error)
            self._table.refresh()

    def close(self) -> None:
        self._stream.cluster.close()


def _opened(job: TableJob) -> Table:
    """The job's table, made when it is not there; with new columns when its schema has grown."""
    where = place(job.to)
    there = format_of(where)
    typed = columns_of(job.schema) if job.schema else []
    if there is None:
        schema = table_schema(job.partition_by, typed)
        return create_table(where, job.table_format, schema, job.partition_by)
    if there != job.table_format:
        raise TableError(f"{where} is a {there} table: --format {there}, or another place")
    table = open_table(where, writing=True)
    if table.partition_by != job.partition_by:
        raise TableError(
            f"{where} is partitioned by {', '.join(table.partition_by) or 'nothing'}, not by "
            f"{', '.join(job.partition_by) or 'nothing'}; say the same, or use another place"
        )
    known = table.schema()
    more = [name for name in known.names if name not in (*DEFAULT_COLUMNS, *job.partition_by)]
    if more and job.schema is None:
        raise TableError(f"{where} has the columns {', '.join(more)} of a schema: give --schema")
    if job.schema and (new := grown(known, job.schema)):
        table.add_columns(new)
    return table
