"""A table kept from topics, read as their past: what retention has removed comes from there.

The table says which offsets of each queue it holds, so the seam is exact: below it the rows of the
table, from it on those of the broker. The table is read as far as it goes, because a broker
may remove its part meanwhile.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from aerobee.pipeline.columns import DEFAULT_COLUMNS, arrow_schema
from aerobee.pipeline.lake.data_files import read_rows
from aerobee.pipeline.lake.model import (
    RETRIES,
    TARGET_BYTES,
    DataFile,
    Held,
    Table,
    TableError,
    retries,
)
from aerobee.pipeline.lake.opening import format_of, open_table, rejected_place
from aerobee.pipeline.source.queues import Offsets, QueueKey, from_json

Slices = dict[QueueKey, tuple[int, int]]  # start <= offset < end
_READS_MAX: Final = 8
_KEY: Final = ("topic", "broker", "partition", "offset")


@dataclass(frozen=True, slots=True)
class Part:
    """One task's files, and what of them is wanted."""

    files: tuple[DataFile, ...]
    slices: Slices


class History:
    """A snapshot of the table; `refresh` takes a new one."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.first: Offsets = {}
        self.next: Offsets = {}
        self._files: list[DataFile] = []

    def refresh(self, keys: Iterable[QueueKey]) -> None:
        wanted = list(keys)
        table = open_table(self.where)
        names = [(key.topic, f"{key.broker}:{key.queue_id}") for key in wanted]
        held = table.held([*names, RETRIES])
        self._files = table.files()
        if format_of(rejected_place(self.where)) is not None:
            held = self._with_rejected(table, held, names)
        first, following = from_json(held.first), from_json(held.next)
        self.first = {key: first[key] for key in wanted if key in first}
        self.next = {key: following[key] for key in wanted if key in following}
        missing = [name for name in DEFAULT_COLUMNS if name not in table.schema().names]
        if missing:
            raise TableError(f"{self.where} cannot be a history: it lacks {', '.join(missing)}")

    def _with_rejected(self, table: Table, held: Held, names: list[tuple[str, str]]) -> Held:
        """Rows that do not fit a typed table's schema are messages too. Rows may go from the one
        table to the other, so both are read until they agree."""
        for attempt in range(_READS_MAX):
            beside = open_table(rejected_place(self.where))
            again = open_table(self.where)
            seen = again.held([*names, RETRIES])
            agree = retries(seen) == retries(beside.held([RETRIES]))
            if agree and seen == held and again.files() == self._files:
                self._files = [*self._files, *beside.files()]
                return held
            held, self._files = seen, again.files()
            time.sleep(0.1 * attempt)
        raise TableError(
            f"{self.where} and its rejected rows do not agree: a retry of rejected rows runs, or "
            "was killed; starting its table job finishes it"
        )

    def earliest(self, first: Offsets) -> Offsets:
        """The first offsets that there are, in the table or else in the brokers."""
        return first | {
            key: min(begin, first.get(key, begin))
            for key, begin in self.first.items()
            if begin < self.next[key]
        }

    def slices(self, start: Offsets, end: Offsets) -> Slices:
        """What of these ranges the table holds, from their beginning on."""
        found = {}
        for key, begin in start.items():
            stop = min(self.next.get(key, 0), end.get(key, begin))
            if self.first.get(key, begin) <= begin < stop:
                found[key] = (begin, stop)
        return found

    def by_time(self, found: Offsets, first: Offsets, times: Mapping[QueueKey, int]) -> Offsets:
        """The first offsets at these times, from the table where the broker's first message is late
        enough that an earlier one may be there."""
        open_keys = {key for key, offset in found.items() if offset <= first[key]}
        since = min((times[key] for key in open_keys), default=0)
        day = datetime.fromtimestamp(since / 1000, UTC).date()
        earlier: Offsets = {}
        for one in self._files:
            text = one.partition.get("date")
            if open_keys and (text is None or date.fromisoformat(text) >= day):
                _first_at(one, times, open_keys, earlier)
        return found | {key: min(found[key], offset) for key, offset in earlier.items()}

    def stored(self, key: QueueKey, offset: int) -> set[int]:
        """When the table's message at this offset was stored, in milliseconds; of a queue that was
        recreated there may be several."""
        schema = arrow_schema(("timestamp",))
        found: set[int] = set()
        for part in self.parts({key: (offset, offset + 1)}):
            for rows in read_part(part, ("timestamp",), None, schema):
                found.update(round(at.timestamp() * 1000) for at in rows[0].to_pylist())
        return found

    def parts(self, slices: Slices) -> list[Part]:
        """The files that may hold the slices, some together where they are small."""
        parts: list[list[DataFile]] = []
        size = TARGET_BYTES
        for one in sorted(self._files, key=lambda one: (one.offset_min or 0, one.path)):
            if not _may_hold(one, slices):
                continue
            if size + one.size > TARGET_BYTES:
                parts.append([])
                size = 0
            parts[-1].append(one)
            size += one.size
        return [Part(tuple(files), slices) for files in parts]


def _may_hold(one: DataFile, slices: Slices) -> bool:
    low, high = one.offset_min, one.offset_max
    return any(
        one.partition.get("topic", key.topic) == key.topic
        and (low is None or high is None or (low < end and high >= start))
        for key, (start, end) in slices.items()
    )


def _first_at(
    one: DataFile, times: Mapping[QueueKey, int], keys: set[QueueKey], earlier: Offsets
) -> None:
    schema = arrow_schema((*_KEY, "timestamp"))
    for rows in read_rows(one, schema.names, schema):
        for key in keys:
            at = pa.scalar(times[key] * 1000, pa.int64()).cast(schema.field("timestamp").type)
            late = pc.and_(of_queue(rows, key), pc.greater_equal(rows["timestamp"], at))
            offset = pc.min(rows["offset"].filter(late)).as_py()
            if offset is not None:
                earlier[key] = min(offset, earlier.get(key, offset))


def of_queue(rows: Any, key: QueueKey) -> Any:
    """Which rows are of the queue."""
    return pc.and_(
        pc.and_(pc.equal(rows["topic"], key.topic), pc.equal(rows["broker"], key.broker)),
        pc.equal(rows["partition"], key.queue_id),
    )


def read_part(
    part: Part, columns: tuple[str, ...], tags: frozenset[str] | None, schema: Any
) -> Iterator[Any]:
    """The part's rows as RecordBatches of these columns."""
    wanted = tuple(dict.fromkeys((*columns, *_KEY, "tags")))
    own = arrow_schema(wanted)

    def chosen(rows: Any) -> Any:
        mask = None
        for key, (start, end) in part.slices.items():
            inside = pc.and_(pc.greater_equal(rows["offset"], start), pc.less(rows["offset"], end))
            one = pc.and_(of_queue(rows, key), inside)
            mask = one if mask is None else pc.or_(mask, one)
        if tags is not None:
            among = pc.is_in(rows["tags"], value_set=pa.array(sorted(tags), pa.string()))
            mask = pc.and_(mask, among)
        return mask

    for one in part.files:
        for rows in read_rows(one, wanted, own, chosen):
            for batch in rows.select(list(columns)).cast(schema).to_batches():
                if batch.num_rows:
                    yield batch
