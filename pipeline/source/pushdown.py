"""Readers that use Spark's filters to read less.

They are classes of their own because Spark refuses a reader that takes filters while
`spark.sql.python.filterPushdown.enabled` is false, its default. The filters decide what need not be
read at all; those that are exact also drop the rows that were read, before they travel to the JVM.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from aerobee.pipeline.source.batch_readers import PathReader, TopicReader, planned
from aerobee.pipeline.source.partitions import NOTHING
from aerobee.pipeline.source.puller import Range
from aerobee.pipeline.source.queues import QueueKey, by_time
from aerobee.pipeline.source.row_filters import applies, kept
from aerobee.pipeline.source.topic_filter import topic_filter
from aerobee.pipeline.source.topic_ranges import plan_batch
from aerobee.pipeline.wire import Access, Cluster

_PUSHING: Final = "pyspark.sql.worker.data_source_pushdown_filters"


def spark_pushes() -> bool:
    """Whether this is the process in which Spark hands over filters; only there may a reader say
    that it takes them. Should Spark rename it, rows are filtered by Spark."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHING in sys.modules or getattr(spec, "name", None) == _PUSHING


@dataclass
class Limits:
    """What the filters leave over."""

    topics: set[str] | None = None
    partitions: set[int] | None = None
    offset_low: int = 0
    offset_high: int = 2**63 - 1
    start_ms: int | None = None
    end_ms: int | None = None

    def narrow(self, filters: Iterable[Filter]) -> None:
        for one in filters:
            column = getattr(one, "attribute", ())
            if column == ("topic",):
                self.topics = _intersection(self.topics, _values(one))
            elif column == ("partition",):
                self.partitions = _intersection(self.partitions, _values(one))
            elif column == ("offset",):
                self._offset(one)
            elif column in (("timestamp",), ("storeTimestamp",)):
                self._time(one)

    def _offset(self, one: Any) -> None:
        low, high = _interval(one, 1)
        if low is not None:
            self.offset_low = max(self.offset_low, low)
        if high is not None:
            self.offset_high = min(self.offset_high, high)

    def _time(self, one: Any) -> None:
        if not isinstance(getattr(one, "value", None), datetime) or one.value.tzinfo is None:
            return
        ms = round(one.value.timestamp() * 1000)
        if isinstance(one, (GreaterThan, GreaterThanOrEqual, EqualTo)):
            self.start_ms = max(self.start_ms or 0, ms - 1)  # a datetime may be rounded down
        if isinstance(one, (LessThan, LessThanOrEqual, EqualTo)):
            self.end_ms = min(self.end_ms if self.end_ms is not None else ms + 1, ms + 1)


def _values(one: Any) -> set[Any] | None:
    if isinstance(one, EqualTo):
        return {one.value}
    return set(one.value) - {None} if isinstance(one, In) else None  # nothing equals null


def _intersection(known: set[Any] | None, more: set[Any] | None) -> set[Any] | None:
    if more is None:
        return known
    return more if known is None else known & more


def _interval(one: Any, step: int) -> tuple[int | None, int | None]:
    """Included low and excluded high of a comparison with a whole number."""
    if isinstance(one, EqualTo):
        return one.value, one.value + step
    if isinstance(one, GreaterThanOrEqual):
        return one.value, None
    if isinstance(one, GreaterThan):
        return one.value + step, None
    if isinstance(one, LessThan):
        return None, one.value
    return (None, one.value + step) if isinstance(one, LessThanOrEqual) else (None, None)


class _Exact:
    """What both readers do with the filters that `row_filters` knows."""

    exact: tuple[Filter, ...] = ()

    def take(self, filters: list[Filter]) -> list[Filter]:
        """Keeps the filters that are exact here; returns the others, which Spark must check."""
        self.exact = tuple(one for one in filters if applies(one))
        return [one for one in filters if not applies(one)]

    def chosen(self, batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            rows = kept(batch, self.exact)
            if rows.num_rows:
                yield rows


class NarrowedPathReader(_Exact, PathReader):
    """Files outside the filters' times and records of other topics are not read."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        left = self.take(filters)
        limits = Limits(start_ms=self.selection.start_ms, end_ms=self.selection.end_ms)
        limits.narrow(filters)
        if limits.topics is not None:
            wanted = self.selection.wanted
            topics = [topic for topic in limits.topics if wanted(topic)]
            self.selection = replace(self.selection, wanted=topic_filter(topics, None))
        self.selection = replace(self.selection, start_ms=limits.start_ms, end_ms=limits.end_ms)
        return left

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield from self.chosen(super().read(partition))


class NarrowedTopicReader(_Exact, TopicReader):
    """Queues and offsets outside the filters are not pulled."""

    limits = Limits()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self.limits = Limits()
        self.limits.narrow(filters)
        return self.take(filters)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield from self.chosen(super().read(partition))

    def partitions(self) -> Sequence[InputPartition]:
        plan = plan_batch(self.options)
        ranges = [one for one in plan.ranges if self._covers(one.key)]
        ranges = self._by_time([self._clip(one) for one in ranges])
        kept = [one for one in ranges if one.start < one.end]
        low, high = self.limits.offset_low, self.limits.offset_high
        past = {
            key: (max(start, low), min(end, high))
            for key, (start, end) in plan.past.items()
            if self._covers(key) and max(start, low) < min(end, high)
        }
        return planned(replace(plan, ranges=kept, past=past)) or [NOTHING]

    def _covers(self, key: QueueKey) -> bool:
        topics, queues = self.limits.topics, self.limits.partitions
        return (topics is None or key.topic in topics) and (
            queues is None or key.queue_id in queues
        )

    def _clip(self, one: Range) -> Range:
        start = max(one.start, self.limits.offset_low)
        return replace(one, start=start, end=min(one.end, self.limits.offset_high))

    def _by_time(self, ranges: list[Range]) -> list[Range]:
        addresses = {one.key: one.address for one in ranges}
        if not addresses or (self.limits.start_ms is None and self.limits.end_ms is None):
            return ranges
        with Cluster(Access.of(self.options)) as cluster:
            if self.limits.start_ms is not None:
                low = by_time(cluster, addresses, dict.fromkeys(addresses, self.limits.start_ms))
                ranges = [replace(one, start=max(one.start, low[one.key])) for one in ranges]
            if self.limits.end_ms is not None:
                high = by_time(cluster, addresses, dict.fromkeys(addresses, self.limits.end_ms))
                ranges = [replace(one, end=min(one.end, high[one.key])) for one in ranges]
        return ranges
