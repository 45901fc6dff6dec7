"""A topic as a batch: the driver plans ranges of queues, each task pulls and decodes one."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from aerobee.pipeline.options import Options
from aerobee.pipeline.source.decode import Records
from aerobee.pipeline.source.puller import PullPlan, Range, pull_range
from aerobee.pipeline.source.queues import (
    DEFAULT_GROUP,
    Addresses,
    Offsets,
    bound,
    check_available,
    check_starts,
    discover,
    edges,
)
from aerobee.pipeline.source.split_reader import BATCH_ROWS
from aerobee.pipeline.wire import Access, Cluster
from aerobee.protocol.files.record_columns import record_positions

log: Final = logging.getLogger("aerobee.pipeline")


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """What every task of a read needs besides its range."""

    access: Access
    pull: PullPlan
    tags: frozenset[str] | None
    columns: tuple[str, ...]

    @classmethod
    def of(cls, options: Options, columns: tuple[str, ...]) -> "TopicPlan":
        tags = tag_set(options["tags"])
        expression = ("SQL92", options["sql"]) if options["sql"] else ("TAG", _tag_text(tags))
        group = options["groupId"] or DEFAULT_GROUP
        pull = PullPlan(group, expression, options["failOnDataLoss"])
        return cls(Access.of(options), pull, tags, columns)


def tag_set(text: str | None) -> frozenset[str] | None:
    """The tags of "a || b"; None for all."""
    words = frozenset(word.strip() for word in (text or "*").split("||") if word.strip())
    return None if "*" in words or not words else words


def _tag_text(tags: frozenset[str] | None) -> str:
    return "*" if tags is None else " || ".join(sorted(tags))


def plan_batch(options: Options) -> list[Range]:
    """The ranges of a batch read: a snapshot of the offsets as they are now."""
    with Cluster(Access.of(options).at_start()) as cluster:
        addresses = discover(cluster, options)
        start = bound(cluster, options, addresses, "starting")
        end = bound(cluster, options, addresses, "ending")
        first, _ = edges(cluster, addresses)
    check_starts(start, end, options)
    start = check_available(start, end, first, options["failOnDataLoss"], log.warning)
    return cut(start, end, addresses, options)


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
    with Cluster(plan.access) as cluster:
        pending: list[bytes | memoryview] = []
        rows = 0
        for body in pull_range(cluster, wanted, plan.pull, log.warning):
            pending.append(body)
            rows += len(body)
            if rows >= _BATCH_BYTES:
                yield from _decode(pending, wanted, plan, schema)
                pending, rows = [], 0
        yield from _decode(pending, wanted, plan, schema)


_BATCH_BYTES: Final = 4 * 1024 * 1024


def _decode(
    bodies: list[bytes | memoryview], wanted: Range, plan: TopicPlan, schema: Any
) -> Iterator[Any]:
    """The bodies' records inside the range and, where tags are asked for, with exactly those."""
    data = bodies[0] if len(bodies) == 1 else b"".join(bodies)
    if not len(data):
        return
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
