"""Reads one split of a store as record batches: pick the entries, decode, filter, hand out."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from aerobee.pipeline.source.decode import Ints, Records
from aerobee.pipeline.source.queue_files import QueueReader
from aerobee.pipeline.source.store_files import Split, damaged, map_file, walk
from aerobee.protocol.files.java_hash import tags_code
from aerobee.protocol.files.record_layout import CorruptRecord

BATCH_ROWS: Final = 8192


@dataclass(frozen=True, slots=True)
class Selection:
    """Which columns of which messages."""

    columns: tuple[str, ...]
    wanted: Callable[[str], bool]
    tags: frozenset[str] | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    batch_rows: int = BATCH_ROWS
    broker: str | None = None


def read_split(split: Split, selection: Selection, schema: Any = None) -> Iterator[Any]:
    """The split's messages as RecordBatches of `selection.columns`."""
    base = split.start
    data = map_file(split.segment)[split.start - split.segment.start :]
    if split.queues is None:
        positions = np.array(walk(data, 0, base, last_file=split.last), np.int64)
    else:
        positions = _entries(split, selection) - base
    for at in range(0, len(positions), selection.batch_rows):
        some = positions[at : at + selection.batch_rows]
        try:
            records = Records(data, some, selection.broker)
            records = filtered(records, selection, split.queues is None)
            if records.count:
                yield from records.batches(selection.columns, schema)
        except CorruptRecord as error:
            raise damaged(base + error.position, error.reason) from None


def _entries(split: Split, selection: Selection) -> Ints:
    """The log offsets of the split's wanted records, ascending."""
    found = []
    codes = None if selection.tags is None else [tags_code(tag) for tag in selection.tags]
    for queue in split.queues or ():
        offsets, tag_codes = QueueReader(queue.folder).between(split.start, split.end)
        found.append(offsets if codes is None else offsets[np.isin(tag_codes, codes)])
    # A stable sort merges the queues' ascending runs: a tenth of the time of the default.
    return np.sort(np.concatenate(found), kind="stable") if found else np.zeros(0, np.int64)


def filtered(records: Records, selection: Selection, by_topic: bool) -> Records:
    """`records` without those that the selection does not want."""
    keep = np.ones(records.count, bool)
    times = records.fields["store_timestamp"]
    if selection.start_ms is not None:
        keep &= times >= selection.start_ms
    if selection.end_ms is not None:
        keep &= times < selection.end_ms
    if by_topic:
        topics = records.column("topic").to_pylist()
        keep &= np.fromiter((selection.wanted(topic) for topic in topics), bool, len(topics))
    if selection.tags is not None:
        tags = records.column("tags").to_pylist()
        keep &= np.fromiter((tag in selection.tags for tag in tags), bool, len(tags))
    return records if keep.all() else records.select(keep)
