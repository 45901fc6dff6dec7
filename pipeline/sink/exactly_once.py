"""The exactly-once sink: tasks prepare rows in the broker, the driver's commit publishes them.

A batch is known by (query, batch): Spark's query id and batch id for a stream; for `df.write` the
options txnAppId and txnVersion, else a fresh id. The whole batch goes to one broker, its home, so
that one ledger decides about it. A batch that a ledger knows already is skipped by its tasks and by
its commit.
"""

import json
import time
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.taskcontext import TaskContext

from aerobee.pipeline.options import OptionError, Options
from aerobee.pipeline.sink.encode import BulkIds, RowNames, encode_rows
from aerobee.pipeline.sink.places import Places, first_turn
from aerobee.pipeline.sink.sender import Pile, Piles
from aerobee.pipeline.wire import Access, BrokerError, Cluster
from aerobee.protocol.names import TEMPLATE_TOPIC
from aerobee.protocol.wire.codes import ResponseCode
from aerobee.protocol.wire.sink_codes import SINK_COMMIT, SINK_PREPARE, SINK_STATE

COMMIT_TIMEOUT: Final = 300.0  # seconds: a large batch takes its time


@dataclass
class Prepared(WriterCommitMessage):  # type: ignore[misc]
    """What a task reports: its chunks [partition, attempt, chunk, offset, size] at the home."""

    query: str
    home: str
    chunks: list[list[int]]
    rows: int
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


def brokers_of(cluster: Cluster, topic: str | None) -> list[str]:
    """Addresses of the brokers that may take the batch: those of the topic, else those that make
    topics; for topics by column all brokers, where none makes topics by itself."""
    route = (cluster.route(topic) if topic else None) or cluster.route(TEMPLATE_TOPIC) or []
    addresses = sorted({share.address for share in route if share.perm & 2})
    if not addresses and topic is None:
        addresses = cluster.masters()
    if not addresses:
        raise OptionError(f"no broker takes messages for {topic or 'any topic'}; create it first")
    return addresses


def newest_batch(cluster: Cluster, address: str, query: str) -> int:
    """The query's newest committed batch there; OptionError when the broker keeps no ledger."""
    try:
        answer = cluster.request("asking the ledger", address, SINK_STATE, {"query": query})
    except BrokerError as error:
        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
        raise OptionError(
            f"deliveryGuarantee=exactly-once needs an Aerobee broker, which keeps a ledger of "
            f"committed batches; the broker at {address} has none. Use "
            "deliveryGuarantee=at-least-once, and drop repeats by messageId where you read"
        ) from None
    return int(answer.ext["batch"])


def check_ledgers(plan: SinkPlan) -> None:
    """On the driver, before any row moves."""
    with Cluster(plan.access) as cluster:
        for address in brokers_of(cluster, plan.topic):
            newest_batch(cluster, address, "check")


def prepare(plan: SinkPlan, query: str, batch: int, batches: Iterator[Any]) -> Prepared:
    """Stores the task's rows where nobody sees them yet."""
    context = TaskContext.get()
    assert context is not None, "a task runs inside Spark"
    with Cluster(plan.access) as cluster:
        addresses = brokers_of(cluster, plan.topic)
        home = addresses[zlib.crc32(query.encode()) % len(addresses)]
        if any(newest_batch(cluster, address, query) >= batch for address in addresses):
            return Prepared(query, home, [], 0, committed_before=True)
        preparer = _Preparer(cluster, plan, home, query, batch, context)
        piles = Piles(plan.batch_bytes, preparer.send)
        ids = BulkIds()
        names = RowNames(f"{query}/{batch}/{context.partitionId()}")
        lanes = preparer.places.count
        for record_batch in batches:
            for group in encode_rows(record_batch, plan.topic, ids, lanes, names):
                piles.add(group)
        piles.finish()
        return Prepared(query, home, preparer.chunks, preparer.rows, preparer.committed_before)


class _Preparer:
    """Stores piles of rows as chunks at the home."""

    def __init__(
        self, cluster: Cluster, plan: SinkPlan, home: str, query: str, batch: int, context: Any
    ) -> None:
        self._cluster = cluster
        self._plan = plan
        self._home = home
        self._query = query
        self._batch = batch
        self._partition: int = context.partitionId()
        self._attempt: int = context.taskAttemptId()
        self.places = Places(cluster, first_turn(query, batch, self._partition), home)
        self.chunks: list[list[int]] = []
        self.rows = 0
        self.committed_before = False

    def send(self, pile: Pile) -> None:
        number = len(self.chunks)
        topic = pile.target.topic
        _home, queue_id = self.places.choose(pile.target)
        ext = {
            "query": self._query,
            "batch": str(self._batch),
            "partition": str(self._partition),
            "attempt": str(self._attempt),
            "chunk": str(number),
            "topic": topic,
            "queueId": str(queue_id),
            "bornTimestamp": str(time.time_ns() // 1_000_000),
            "producerGroup": self._plan.group,
            "named": "true",
        }
        what = f"preparing {pile.rows} rows for {topic}"
        answer = self._cluster.request(what, self._home, SINK_PREPARE, ext, pile.body())
        if answer.ext.get("committed") == "true":
            self.committed_before = True
            return
        place = [int(answer.ext["offset"]), int(answer.ext["size"])]
        self.chunks.append([self._partition, self._attempt, number, *place])
        self.rows += pile.rows


def commit(plan: SinkPlan, messages: list[Any], batch: int) -> None:
    """On the driver: publishes the batch at its home. Done before, it does nothing."""
    parts = [message for message in messages if message is not None]
    if any(part.committed_before for part in parts):
        return
    chunks = [chunk for part in parts for chunk in part.chunks]
    if not parts or not chunks:
        return
    homes = {part.home for part in parts}
    if len(homes) > 1:
        raise RuntimeError(
            f"the topic's brokers changed during batch {batch}: its tasks wrote to "
            f"{', '.join(sorted(homes))}; the batch is run again"
        )
    query, home = parts[0].query, homes.pop()
    ext = {"query": query, "batch": str(batch), "timeoutMs": str(plan.timeout_ms)}
    body = json.dumps({"chunks": chunks}).encode()
    patient = replace(plan.access, timeout=max(plan.access.timeout, COMMIT_TIMEOUT))
    with Cluster(patient) as cluster:
        cluster.request(f"committing batch {batch} of {query}", home, SINK_COMMIT, ext, body)


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
                "this Spark does not tell its tasks the query's and the batch's id, on which "
                "exactly-once rests; use deliveryGuarantee=at-least-once"
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
        self.query = options["txnAppId"] or str(uuid.uuid4())
        self.batch = options["txnVersion"] or 0
        check_ledgers(replace(self.plan, access=self.plan.access.at_start()))

    def write(self, iterator: Iterator[Any]) -> Prepared:
        return prepare(self.plan, self.query, self.batch, iterator)

    def commit(self, messages: list[Any]) -> None:
        commit(self.plan, messages, self.batch)

    def abort(self, messages: list[Any]) -> None:
        pass  # prepared rows were never visible; they leave with their log file
