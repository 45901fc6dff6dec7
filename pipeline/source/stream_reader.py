"""A topic as a stream. The offset of a stream is {"topic": {"broker:queue": next offset}}.

Spark 4.2 and newer pass the reader the stream's offset and its limit. Spark 4.1 passes neither, so
there the reader keeps both (`LegacyStreamReader`).
"""

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # Spark 4.1

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """A placeholder for Spark 4.1, which has no such class."""


from aerobee.pipeline.options import OptionError, Options
from aerobee.pipeline.source.batch_readers import planned, read_partition
from aerobee.pipeline.source.history import History
from aerobee.pipeline.source.lag import waiting_seconds
from aerobee.pipeline.source.partitions import arrow_schema_of
from aerobee.pipeline.source.queues import (
    Addresses,
    DataLoss,
    Offsets,
    QueueKey,
    bound,
    commit_group,
    discover,
    edges,
    ends,
    from_json,
    latest,
    spread,
    to_json,
)
from aerobee.pipeline.source.readings import Address, Readings
from aerobee.pipeline.source.topic_ranges import BatchPlan, TopicPlan, cut, split_past
from aerobee.pipeline.wire import Access, BrokerError, Cluster
from aerobee.protocol.wire.codecs import ProtocolError

log: Final = logging.getLogger("aerobee.pipeline")
ROUTE_AGE_MAX: Final = 30.0  # seconds after which new queues and brokers are looked for
# Keys beside the topics in a progress report; no topic has such a name.
WAITED: Final = "(waited ms)"  # by the driver, by address
LAG_SECONDS: Final = "(lag seconds)"  # by "topic/broker:queue"
READ: Final = "(read)"  # by the tasks of batches that ended since the last report

Table = dict[str, dict[str, int]]
Report = dict[str, dict[str, Any]]


class TopicStream:
    """What both forms of the reader share; lives in the driver's source process."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._cluster: Cluster | None = None
        self._addresses: Addresses = {}
        self._addresses_at = 0.0
        self._committed: Offsets = {}
        self._frozen_end: Offsets | None = None
        self._last_batch_at = time.monotonic()
        self.history = History(options["history"]) if options["history"] else None
        self._history_at = 0.0
        self._readings: Readings | None = None
        self._planned_end: Offsets = {}
        self.reaches_end = False  # whether the planned batch takes all there was

    def __getstate__(self) -> dict[str, Any]:  # the reader is shipped to tasks without its links
        return self.__dict__ | {"_cluster": None, "_readings": None}

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
        if self._readings is not None:
            self._readings.close()
            self._readings = None

    @property
    def cluster(self) -> Cluster:
        if self._cluster is None:
            access = Access.of(self.options)
            self._cluster = Cluster(access if self._addresses else access.at_start())
        return self._cluster

    def addresses(self) -> Addresses:
        if not self._addresses or time.monotonic() - self._addresses_at > ROUTE_AGE_MAX:
            try:
                self._addresses = discover(self.cluster, self.options)
            except OptionError as error:  # brokers that restart are not known for a moment
                if not self._addresses:
                    raise
                log.warning("the queues stay as they were: %s", error)
            self._addresses_at = time.monotonic()
            self.cluster.access = Access.of(self.options)  # from now on brokers are waited for
        return self._addresses

    def initial(self) -> Offsets:
        addresses = self.addresses()
        side = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
        if not self.options.given.intersection(side):
            return latest(self.cluster, addresses)
        return bound(self.cluster, self.options, addresses, "starting", self._past(addresses))

    def _past(self, keys: Iterable[QueueKey]) -> History | None:
        """The table of the past as it is now."""
        if self.history:
            self.history.refresh(keys)
            self._history_at = time.monotonic()
        return self.history

    def _needed_past(self, start: Offsets, first: Offsets, keys: Addresses) -> History | None:
        """The same, refreshed only if a batch begins before its broker's first message, or after a
        while: a stream that is near the end needs no table."""
        if self.history is None:
            return None
        gone = any(start[key] < first.get(key, 0) for key in start)
        if gone or time.monotonic() - self._history_at > ROUTE_AGE_MAX:
            return self._past(keys)
        return self.history

    def available(self, read: Offsets) -> Offsets:
        """The newest end; that of the start of the run when it is to stop there (AvailableNow)."""
        if self._frozen_end is None:
            return ends(self.cluster, self.addresses(), read)
        frozen = self._frozen_end
        short = [key for key in read if frozen.get(key, read[key]) < read[key]]
        if asked := {key: self._addresses[key] for key in short if key in self._addresses}:
            self._frozen_end = frozen | ends(self.cluster, asked, read)
        return self._frozen_end

    def readings(self) -> Address | None:
        """Where tasks report what they have read; from the first batch on."""
        if self._readings is None:
            self._readings = Readings(self.options["namesrv"][0])
        return self._readings.address

    def reported(self) -> Report:
        """The newest end; how long the first message beyond the next batch has waited; and what
        was read, how often servers were asked again and how long they were waited for since the
        last report."""
        end = self.available({})
        report: Report = dict(to_json(end))
        waited, self.cluster.waited = self.cluster.waited, {}
        retries, self.cluster.retries = self.cluster.retries, 0
        if waited:
            report[WAITED] = {at: round(1000 * seconds) for at, seconds in waited.items()}
        read = self._readings.take() if self._readings else {}
        report[READ] = {**read, "retries": read.get("retries", 0) + retries}
        if ages := self._ages(end):
            report[LAG_SECONDS] = ages
        return report

    def _ages(self, end: Offsets) -> dict[str, float]:
        behind = {k: n for k, n in self._planned_end.items() if n < end.get(k, n)}
        try:
            waited = waiting_seconds(self.cluster, self._addresses, behind)
        except (OSError, BrokerError, ProtocolError) as error:
            log.warning("no lag in seconds in the query's progress: %s", error)
            return {}
        return {f"{k.topic}/{k.broker}:{k.queue_id}": age for k, age in waited.items()}

    def freeze(self) -> None:
        self._addresses_at = 0.0
        self._frozen_end = latest(self.cluster, self.addresses())

    def next_end(self, start: Offsets, rows_max: int | None) -> Offsets:
        """Where the next batch ends; `start` itself when it is not to run yet."""
        end = start | self.available(start)
        if behind := [key for key in start if end[key] < start[key]]:
            return start | self._recreated(behind, start, end)
        waiting = sum(max(0, end[key] - start.get(key, 0)) for key in end)
        least = self.options["minOffsetsPerTrigger"]
        delay = self.options["maxTriggerDelay"] / 1000
        early = time.monotonic() - self._last_batch_at < delay
        if least and early and self._frozen_end is None and 0 < waiting < least:
            return start
        if waiting:
            self._last_batch_at = time.monotonic()
        self._planned_end = spread(self._with_new(start, end), end, rows_max)
        self.reaches_end = all(self._planned_end[key] >= end[key] for key in end)
        return self._planned_end

    def _with_new(self, start: Offsets, end: Offsets) -> Offsets:
        """Queues that were not there before are read from their beginning."""
        new = {key: self._addresses[key] for key in end if key not in start}
        if not new:
            return start
        first = edges(self.cluster, new)[0]
        past = self._past(self._addresses)
        return start | (past.earliest(first) if past else first)

    def _recreated(self, keys: list[QueueKey], start: Offsets, end: Offsets) -> Offsets:
        """Queues that end before the stream's offset were recreated, or their broker lost messages
        that the stream had read: the next batch begins with what they hold now."""
        for key in keys:
            text = f"{key} ends at {end[key]}, before {start[key]}, up to which it was read"
            _lost(f"{text}: it was recreated, or messages were lost", self.options)
        recreated = {key: at for key, at in self.addresses().items() if key in keys}
        return edges(self.cluster, recreated)[0]

    def planned(self, start: Offsets, end: Offsets) -> BatchPlan:
        """What a batch takes from the brokers, and what from the table of the past."""
        addresses = self.addresses()
        missing = [key for key in end if key not in addresses and end[key] > start.get(key, 0)]
        if missing:
            _lost(f"{missing[0]} is gone; messages of it were still to be read", self.options)
        first, _ = edges(self.cluster, addresses)
        past = self._past(addresses) if end.keys() - start.keys() else None
        begin = past.earliest(first) if past else first  # of queues that are new, as in next_end
        start = {key: start.get(key, begin.get(key, 0)) for key in end}
        history = self._needed_past(start, first, addresses)
        start, older = split_past(start, end, first, history, self.options)
        return BatchPlan(cut(start, end, addresses, self.options), older, history)

    def show_progress(self, offsets: Offsets) -> None:
        """Commits the group's offsets, for the broker's tools; never stops the stream."""
        group = self.options["groupId"]
        if not group or not self.options["commitOffsets"]:
            return
        changed = {k: n for k, n in offsets.items() if self._committed.get(k) != n}
        patient = Access.of(self.options)
        try:
            addresses = self.addresses()
            self.cluster.access = replace(patient, patience=0.0)
            commit_group(self.cluster, addresses, group, changed)
            self._committed |= changed
        except (OSError, BrokerError) as error:
            log.warning("the offsets of group %s were not committed: %s", group, error)
        finally:
            if self._addresses:  # else the stream has not started
                self.cluster.access = patient


def _lost(text: str, options: Options) -> None:
    if options["failOnDataLoss"]:
        raise DataLoss(f"{text}; set failOnDataLoss=false to continue without them")
    log.warning(text)


class AnyStreamReader(DataSourceStreamReader):  # type: ignore[misc]
    """What the readers for all Sparks have in common."""

    def __init__(self, options: Options, columns: tuple[str, ...], schema: StructType) -> None:
        self.stream = TopicStream(options)
        self.plan = TopicPlan.of(options, columns)
        self.schema = schema

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield from read_partition(partition, self.plan, arrow_schema_of(self.schema))

    def commit(self, end: Table) -> None:
        self.stream.show_progress(from_json(end))

    def stop(self) -> None:
        self.stream.close()


class StreamReader(AnyStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Spark 4.2 and newer: limits and start come from Spark."""

    def initialOffset(self) -> Table:
        return to_json(self.stream.initial())

    def getDefaultReadLimit(self) -> Any:
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

        rows = self.stream.options["maxOffsetsPerTrigger"]
        return ReadMaxRows(rows) if rows else ReadAllAvailable()

    def latestOffset(self, start: Table, limit: Any) -> Table:
        begin = from_json(start)
        self.stream.show_progress(begin)
        rows_max = getattr(limit, "max_rows", None)
        return to_json(self.stream.next_end(begin, rows_max))

    def reportLatestOffset(self) -> Report:
        return self.stream.reported()

    def prepareForTriggerAvailableNow(self) -> None:
        self.stream.freeze()

    def partitions(self, start: Table, end: Table) -> Sequence[InputPartition]:
        plan = self.stream.planned(from_json(start), from_json(end))
        return planned(plan, self.stream.readings())
