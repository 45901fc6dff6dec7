"""A topic as a batch: the driver plans ranges of queues, each task pulls and decodes one."""

import logging
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from aerobee.pipeline.columns import COLUMNS, DEFAULT_COLUMNS
from aerobee.pipeline.options import OptionError, Options
from aerobee.pipeline.source.decode import Records
from aerobee.pipeline.source.history import History, Slices, read_part
from aerobee.pipeline.source.puller import PullPlan, Range, gap, lost, pull_range
from aerobee.pipeline.source.queues import (
    DEFAULT_GROUP,
    Addresses,
    DataLoss,
    Offsets,
    bound,
    check_available,
    check_starts,
    discover,
    edges,
    ends,
)
from aerobee.pipeline.source.readings import NAMES, Address, reported
from aerobee.pipeline.source.room import Room
from aerobee.pipeline.source.split_reader import BATCH_ROWS
from aerobee.pipeline.wire import Access, Cluster
from aerobee.protocol.files.record_columns import record_positions

log: Final = logging.getLogger("aerobee.pipeline")
# Known of a message by its place. Offsets of a queue have no gaps, so a count needs no more.
PLACE_COLUMNS: Final = frozenset(("topic", "partition", "offset", "broker"))


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """What every task of a read needs besides its range."""

    access: Access
    pull: PullPlan
    tags: frozenset[str] | None
    columns: tuple[str, ...]
    history: str | None = None  # a table that holds what retention removes
    report_to: Address | None = None  # where tasks report what they have read

    @classmethod
    def of(cls, options: Options, columns: tuple[str, ...]) -> "TopicPlan":
        lacking = [name for name in columns if name not in DEFAULT_COLUMNS]
        if lacking and options["history"]:
            text = f"the table of option history has no column {lacking[0]}"
            raise OptionError(f"{text}; leave out the column or the option")
        tags = tag_set(options["tags"])
        expression = ("SQL92", options["sql"]) if options["sql"] else ("TAG", _tag_text(tags))
        group = options["groupId"] or DEFAULT_GROUP
        pull = PullPlan(group, expression, options["failOnDataLoss"])
        return cls(Access.of(options), pull, tags, columns, options["history"])

    @property
    def needs_messages(self) -> bool:
        """False where offsets alone answer the query."""
        return self.pull.filtered or not PLACE_COLUMNS.issuperset(self.columns)


def tag_set(text: str | None) -> frozenset[str] | None:
    """The tags of "a || b"; None for all."""
    words = frozenset(word.strip() for word in (text or "*").split("||") if word.strip())
    return None if "*" in words or not words else words


def _tag_text(tags: frozenset[str] | None) -> str:
    return "*" if tags is None else " || ".join(sorted(tags))


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What a batch read takes from the brokers, and what from the table of its history."""

    ranges: list[Range]
    past: Slices
    history: History | None


def plan_batch(options: Options) -> BatchPlan:
    """A snapshot of the offsets as they are now."""
    history = History(options["history"]) if options["history"] else None
    with Cluster(Access.of(options).at_start()) as cluster:
        addresses = discover(cluster, options)
        if history:
            history.refresh(addresses)
        start = bound(cluster, options, addresses, "starting", history)
        end = bound(cluster, options, addresses, "ending", history)
        first, _ = edges(cluster, addresses)
    check_starts(start, end, options)
    start, past = split_past(start, end, first, history, options)
    return BatchPlan(cut(start, end, addresses, options), past, history)


def split_past(
    start: Offsets, end: Offsets, first: Offsets, history: History | None, options: Options
) -> tuple[Offsets, Slices]:
    """Where the brokers' part begins, and the table's part before it; DataLoss for a gap."""
    fail = options["failOnDataLoss"]
    if history is None:
        return check_available(start, end, first, fail, log.warning), {}
    earliest = history.earliest(first)
    start = check_available(start, end, earliest, fail, log.warning)
    past = history.slices(start, end)
    seams = start | {key: stop for key, (_, stop) in past.items()}
    return check_available(seams, end, first, fail, log.warning), past


def cut(start: Offsets, end: Offsets, addresses: Addresses, options: Options) -> list[Range]:
    """A range per queue; several when minPartitions or maxRecordsPerPartition ask for them."""
    ranges = [
        Range(key, addresses[key], start[key], end[key])
        for key in sorted(addresses)
        if key in start and end.get(key, 0) > start[key]
    ]
    total = sum(one.end - one.start for one in ranges)
    rows_max = options["maxRecordsPerPartition"] or total or 1
    if (wanted := options["minPartitions"]) and wanted > len(ranges):
        rows_max = min(rows_max, max(1, total // wanted))
    return [part for one in ranges for part in _parts(one, rows_max)]


def _parts(one: Range, rows_max: int) -> list[Range]:
    count = one.end - one.start
    parts = -(-count // rows_max)
    bounds = [one.start + count * n // parts for n in range(parts + 1)]
    return [Range(one.key, one.address, bounds[n], bounds[n + 1]) for n in range(parts)]


def read_range(wanted: Range, plan: TopicPlan, schema: Any) -> Iterator[Any]:
    """The range's messages as RecordBatches, some thousand rows each."""
    reading = dict.fromkeys(NAMES, 0)
    with reported(plan.report_to, reading), Cluster(plan.access) as cluster:
        try:
            if plan.needs_messages:
                yield from _pulled(cluster, wanted, plan, schema, reading)
            else:
                yield from _places(cluster, wanted, plan, schema)
        finally:
            reading["retries"] = cluster.retries
            reading["waited_ms"] = round(1000 * sum(cluster.waited.values()))


def _pulled(
    cluster: Cluster, wanted: Range, plan: TopicPlan, schema: Any, reading: dict[str, int]
) -> Iterator[Any]:
    pending: list[bytes | memoryview] = []
    size = 0
    missing: DataLoss | None = None
    room = Room()
    try:
        for body in pull_range(cluster, wanted, plan.pull, log.warning, room):
            pending.append(body)
            size += len(body)
            reading["bytes"] += len(body)
            if size >= _BATCH_BYTES:
                yield from _decode(room.joined(pending), wanted, plan, schema)
                room.clear(pending)
                pending, size = [], 0
    except DataLoss as error:
        missing = error
    if pending:
        yield from _decode(room.joined(pending), wanted, plan, schema)
    if missing is not None:  # after all that came before it
        raise missing


def _places(cluster: Cluster, wanted: Range, plan: TopicPlan, schema: Any) -> Iterator[Any]:
    """Only the places of the messages: the broker says which it has, and none is read."""
    key = wanted.key
    address = {key: wanted.address}
    first, behind = edges(cluster, address)[0], ends(cluster, address, {key: wanted.end})
    start, end = wanted.start, min(wanted.end, behind[key])
    if start < first[key]:
        upto = min(first[key], wanted.end)
        start = lost(gap(wanted, start, upto, "were deleted"), plan.pull, log.warning)
    same = {"topic": key.topic, "partition": key.queue_id, "broker": key.broker}
    for at in range(start, end, BATCH_ROWS):
        count = min(BATCH_ROWS, end - at)
        arrays = [
            pa.array(np.arange(at, at + count))
            if name == "offset"
            else pa.repeat(pa.scalar(same[name], COLUMNS[name][1]), count)
            for name in plan.columns
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
    if end < wanted.end:
        reason = f"are not there: the queue ends at {behind[key]}"
        missing = gap(wanted, max(start, end), wanted.end, reason)
        lost(missing, plan.pull, log.warning)


def read_joined(wanted: Range, plan: TopicPlan, schema: Any) -> Generator[Any, None, None]:
    """The same, and what retention has removed since the plan was made comes from the table."""
    if plan.history is None:
        yield from read_range(wanted, plan, schema)
        return
    strict = replace(plan, pull=replace(plan.pull, fail_on_data_loss=True))
    while wanted.start < wanted.end:
        try:
            yield from read_range(wanted, strict, schema)
            return
        except DataLoss as error:
            if error.at is None:
                raise
            history = History(plan.history)
            history.refresh([wanted.key])
            rest = replace(wanted, start=error.at)
            past = history.slices({wanted.key: rest.start}, {wanted.key: rest.end})
            if not past:
                if plan.pull.fail_on_data_loss:
                    raise
                yield from read_range(rest, plan, schema)
                return
            for part in history.parts(past):
                yield from read_part(part, plan.columns, plan.tags, schema)
            wanted = replace(rest, start=past[wanted.key][1])


_BATCH_BYTES: Final = 4 * 1024 * 1024


def _decode(data: bytes | memoryview, wanted: Range, plan: TopicPlan, schema: Any) -> Iterator[Any]:
    """The records inside the range and, if tags are selected, with exactly those."""
    positions = record_positions(data)
    array = np.frombuffer(data, np.uint8)
    for at in range(0, len(positions), BATCH_ROWS):
        records = Records(array, positions[at : at + BATCH_ROWS], wanted.key.broker)
        offsets = records.fields["queue_offset"]
        keep = (offsets >= wanted.start) & (offsets < wanted.end)
        if plan.tags is not None:  # a broker compares the tags' hashes only
            tags = records.column("tags").to_pylist()
            keep &= np.fromiter((tag in plan.tags for tag in tags), bool, len(tags))
        if not keep.all():
            records = records.select(keep)
        if records.count:
            yield from records.batches(plan.columns, schema)
