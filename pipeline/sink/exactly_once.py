"""The exactly-once sink: tasks prepare rows in the broker, the driver's commit publishes them.

A batch is known by (query, batch): Spark's query id and batch id for a stream; for `df.write` the
options txnAppId and txnVersion, else a fresh id. The whole batch goes to one broker, the query's
home, so that one ledger decides about it. A home is a name: its master may change meanwhile. A
batch that a ledger knows already is skipped by its tasks and by its commit.
"""

import json
import time
import uuid
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.taskcontext import TaskContext

from aerobee.pipeline.options import Options
from aerobee.pipeline.reused import reused_process
from aerobee.pipeline.sink.encode import BulkIds, RowNames, encode_rows
from aerobee.pipeline.sink.homes import Asked, Home, QueryLedgers, homes_of
from aerobee.pipeline.sink.places import Places, first_turn
from aerobee.pipeline.sink.sender import DEPTH, Pile, Piles
from aerobee.pipeline.wire import Access, Cluster
from aerobee.protocol.wire.sink_codes import SINK_COMMIT, SINK_PREPARE

COMMIT_TIMEOUT: Final = 300.0  # seconds: a large batch takes its time


@dataclass
class Prepared(WriterCommitMessage):  # type: ignore[misc]
    """What a task reports: its chunks [partition, attempt, chunk, offset, size] at the home."""

    query: str
    home: str  # the broker's name
    address: str  # of its master, when the task began
    chunks: list[list[int]] = field(default_factory=list)
    rows: int = 0
    committed_before: bool = False


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """What tasks and driver need alike."""

    access: Access
    topic: str | None
    group: str
    batch_bytes: int
    timeout_ms: int

    @classmethod
    def of(cls, options: Options) -> "SinkPlan":
        return cls(
            Access.of(options),
            options["topic"],
            options["producerGroup"],
            options["maxBatchBytes"],
            options["preparedTimeout"],
        )


def check_ledgers(plan: SinkPlan) -> None:
    """On the driver, before any row moves."""
    with Cluster(plan.access) as cluster:
        for home in homes_of(cluster, plan.topic):
            home.state("check")


def prepare(
    plan: SinkPlan, query: str, batch: int, batches: Iterator[Any], *, runs_again: bool = True
) -> Prepared:
    """Stores the task's rows, still invisible to consumers. A batch that never runs again needs no
    note of its home."""
    context = TaskContext.get()
    assert context is not None, "a task runs inside Spark"
    with reused_process(), Cluster(plan.access) as cluster:
        ledgers = QueryLedgers(cluster, query, homes_of(cluster, plan.topic))
        done = Prepared(query, ledgers.home.name, ledgers.home.address)
        if ledgers.newest_batch >= batch:
            done.committed_before = True
            return done
        preparer = _Preparer(ledgers.home, plan, done, batch, context)
        piles = Piles(plan.batch_bytes, preparer.send)
        ids = BulkIds()
        names = RowNames(f"{query}/{batch}/{context.partitionId()}")
        lanes = preparer.places.count
        for record_batch in batches:
            piles.add(encode_rows(record_batch, plan.topic, ids, lanes, names))
        piles.finish()
        preparer.finish()
        if runs_again and preparer.topic:
            ledgers.note_home(batch, preparer.topic)
        return done


class _Preparer:
    """Stores piles of rows as chunks at the home, a few in flight."""

    def __init__(
        self, home: Home, plan: SinkPlan, done: Prepared, batch: int, context: Any
    ) -> None:
        self._home = home
        self._done = done
        self._partition: int = context.partitionId()
        self._attempt: int = context.taskAttemptId()
        self._fields = {
            "query": done.query,
            "batch": str(batch),
            "partition": str(self._partition),
            "attempt": str(self._attempt),
            "producerGroup": plan.group,
            "named": "true",
        }
        turn = first_turn(done.query, batch, self._partition)
        self.places = Places(home.cluster, turn, home.name)
        self.topic: str | None = None  # of the newest pile
        self._sent = 0
        self._in_flight: deque[tuple[int, int, Asked]] = deque()  # number and rows of a chunk

    def send(self, pile: Pile) -> None:
        topic = self.topic = pile.target.topic
        _home, queue_id = self.places.choose(pile.target)
        ext = self._fields | {
            "chunk": str(self._sent),
            "topic": topic,
            "queueId": str(queue_id),
            "bornTimestamp": str(time.time_ns() // 1_000_000),
        }
        if len(self._in_flight) >= DEPTH:
            self._settle()
        what = f"preparing {pile.rows} rows for {topic}"
        asked = self._home.ask(what, SINK_PREPARE, ext, pile.body())
        self._in_flight.append((self._sent, pile.rows, asked))
        self._sent += 1

    def finish(self) -> None:
        while self._in_flight:
            self._settle()

    def _settle(self) -> None:
        number, rows, asked = self._in_flight.popleft()
        answer = self._home.take(asked)
        if answer.ext.get("committed") == "true":
            self._done.committed_before = True
            return
        place = [int(answer.ext["offset"]), int(answer.ext["size"])]
        self._done.chunks.append([self._partition, self._attempt, number, *place])
        self._done.rows += rows


def commit(plan: SinkPlan, messages: list[Any], batch: int) -> None:
    """On the driver: publishes the batch at its home. Done before, it does nothing."""
    parts = [message for message in messages if message is not None]
    if any(part.committed_before for part in parts):
        return
    chunks = [chunk for part in parts for chunk in part.chunks]
    if not parts or not chunks:
        return
    names = {part.home for part in parts}
    if len(names) > 1:
        raise RuntimeError(
            f"the topic's brokers changed during batch {batch}: its tasks wrote to "
            f"{', '.join(sorted(names))}; the batch is run again"
        )
    query, name, address = parts[0].query, parts[0].home, parts[0].address
    ext = {"query": query, "batch": str(batch), "timeoutMs": str(plan.timeout_ms)}
    body = json.dumps({"chunks": chunks}).encode()
    patient = replace(plan.access, timeout=max(plan.access.timeout, COMMIT_TIMEOUT))
    with reused_process(), Cluster(patient) as cluster:
        home = Home(cluster, name, address, plan.topic)
        home.request(f"committing batch {batch} of {query}", SINK_COMMIT, ext, body)


class PreparedStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """`writeStream` with deliveryGuarantee=exactly-once."""

    def __init__(self, options: Options) -> None:
        self.plan = SinkPlan.of(options)
        check_ledgers(self.plan)

    def write(self, iterator: Iterator[Any]) -> Prepared:
        context = TaskContext.get()
        assert context is not None, "a task runs inside Spark"
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise RuntimeError(
                "this Spark does not give its tasks the query's and the batch's id, which "
                "exactly-once needs; use deliveryGuarantee=at-least-once"
            )
        return prepare(self.plan, query, int(batch), iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:
        commit(self.plan, messages, batchId)

    def abort(self, messages: list[Any], batchId: int) -> None:
        pass  # prepared rows were never visible; they leave with their log file


class PreparedBatchWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """`df.write` with deliveryGuarantee=exactly-once: all rows appear at the end, or none.

    With txnAppId and txnVersion the same write may be done again: it is published once."""

    def __init__(self, options: Options) -> None:
        self.plan = SinkPlan.of(options)
        self.runs_again = bool(options["txnAppId"])
        self.query = options["txnAppId"] or str(uuid.uuid4())
        self.batch = options["txnVersion"] or 0
        check_ledgers(replace(self.plan, access=self.plan.access.at_start()))

    def write(self, iterator: Iterator[Any]) -> Prepared:
        return prepare(self.plan, self.query, self.batch, iterator, runs_again=self.runs_again)

    def commit(self, messages: list[Any]) -> None:
        commit(self.plan, messages, self.batch)

    def abort(self, messages: list[Any]) -> None:
        pass  # prepared rows were never visible; they leave with their log file
