"""Messages cut into batches by queue and offset, so that a job which was killed knows the rest.

One pass counts the messages in short ranges of each queue. A batch takes ranges in the order of
their time, of each queue one range without a gap to the batch before.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from aerobee.pipeline.source.queues import QueueKey

RANGES_PER_BATCH: Final = 8
COUNTED: Final = ("topic", "broker", "partition", "offset", "timestamp")


@dataclass(frozen=True, slots=True)
class Slice:
    """start <= offset < end of one queue; `broker` is empty where the source does not have it."""

    topic: str
    broker: str
    partition: int
    start: int
    end: int

    @property
    def key(self) -> QueueKey:
        return QueueKey(self.topic, self.broker, self.partition)


@dataclass(frozen=True, slots=True)
class Batch:
    """What is sent or written in one step."""

    slices: tuple[Slice, ...]
    rows: int
    first_ms: int
    last_ms: int  # store times of its messages, both included

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_json(cls, table: Mapping[str, Any]) -> "Batch":
        return cls(**dict(table) | {"slices": tuple(Slice(**one) for one in table["slices"])})


@dataclass(frozen=True, slots=True)
class _Counted:
    """A short range of a queue."""

    slice: Slice
    rows: int
    first_ms: int
    last_ms: int


def cut_batches(
    messages: Any, rows_per_batch: int | None, done: Mapping[QueueKey, int]
) -> list[Batch]:
    """Batches of the messages at or above `done`; a single one without `rows_per_batch`."""
    width = max(1, (rows_per_batch or 1 << 20) // RANGES_PER_BATCH)
    counted = [one for one in _count(messages, width, done) if one.rows]
    return list(_gathered(_in_time(counted), rows_per_batch))


def _count(messages: Any, width: int, done: Mapping[QueueKey, int]) -> Iterator[_Counted]:
    from pyspark.sql import functions as f

    if done:
        messages = messages.where(~_below(done))
    queue = (f.col("topic"), f.coalesce("broker", f.lit("")).alias("broker"), f.col("partition"))
    number = f.floor(f.col("offset") / f.lit(width)).alias("number")
    time_ms = f.unix_millis("timestamp")
    found = messages.groupBy(*queue, number).agg(
        f.min("offset").alias("first"),
        f.max("offset").alias("last"),
        f.count(f.lit(1)).alias("rows"),
        f.coalesce(f.min(time_ms), f.lit(0)).alias("first_ms"),
        f.coalesce(f.max(time_ms), f.lit(0)).alias("last_ms"),
    )
    for row in found.collect():
        place = Slice(row.topic, row.broker, row.partition, row["first"], row["last"] + 1)
        yield _Counted(place, row.rows, row.first_ms, row.last_ms)


def _below(ends: Mapping[QueueKey, int]) -> Any:
    from pyspark.sql import functions as f

    within = condition(Slice(*key, 0, end) for key, end in ends.items())
    return f.coalesce(within, f.lit(False))


def _in_time(counted: list[_Counted]) -> list[_Counted]:
    """In the order of time, and of each queue in that of its offsets, whatever its clock did."""
    latest: dict[QueueKey, int] = {}
    ordered = []
    for one in sorted(counted, key=lambda one: (one.slice.key, one.slice.start)):
        key = one.slice.key
        latest[key] = max(latest.get(key, 0), one.first_ms)
        ordered.append((latest[key], one))
    ordered.sort(key=lambda pair: pair[0])  # stable
    return [one for _, one in ordered]


def _gathered(counted: Iterable[_Counted], rows_max: int | None) -> Iterator[Batch]:
    some: list[_Counted] = []
    rows = 0
    for one in counted:
        if some and rows_max and rows + one.rows > rows_max:
            yield _batch(some)
            some, rows = [], 0
        some.append(one)
        rows += one.rows
    if some:
        yield _batch(some)


def _batch(counted: list[_Counted]) -> Batch:
    joined: dict[QueueKey, Slice] = {}
    for one in counted:
        known = joined.get(one.slice.key, one.slice)
        start, end = min(known.start, one.slice.start), max(known.end, one.slice.end)
        joined[one.slice.key] = Slice(*one.slice.key, start, end)
    rows = sum(one.rows for one in counted)
    times = (min(one.first_ms for one in counted), max(one.last_ms for one in counted))
    return Batch(tuple(joined.values()), rows, *times)


def condition(slices: Iterable[Slice]) -> Any:
    """The slices as a filter that Parquet's and our own sources understand."""
    from pyspark.sql import functions as f

    any_of = f.lit(False)
    for one in slices:
        broker = f.col("broker")
        any_of = any_of | (
            (f.col("topic") == one.topic)
            & ((broker == one.broker) if one.broker else broker.isNull())
            & (f.col("partition") == one.partition)
            & (f.col("offset") >= one.start)
            & (f.col("offset") < one.end)
        )
    return any_of


def ends_of(batches: Iterable[Batch]) -> dict[QueueKey, int]:
    """Up to where the batches reach in each queue."""
    ends: dict[QueueKey, int] = {}
    for batch in batches:
        for one in batch.slices:
            ends[one.key] = max(ends.get(one.key, 0), one.end)
    return ends
