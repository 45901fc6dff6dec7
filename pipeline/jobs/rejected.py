"""The table beside a typed one: rows whose value does not fit the schema, whole, with the reason.

Its commit comes before the main table's, so after a kill it may be ahead: what it has of a range is
not added again. Rows that are tried again go the other way, first into the main table and then out
of here; both count these moves, so that a kill in between is detected and repaired.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import pyarrow as pa

from aerobee.pipeline.columns import arrow_schema
from aerobee.pipeline.jobs.table_tasks import (
    NAMED_BY,
    Sorting,
    layout_of,
    names_of,
    retry_files,
)
from aerobee.pipeline.jobs.upkeep import compact
from aerobee.pipeline.lake.data_files import read_rows, table_schema, write_files
from aerobee.pipeline.lake.model import RETRIES, DataFile, Held, Numbers, Table, retries
from aerobee.pipeline.lake.opening import create_table, format_of, open_table, rejected_place
from aerobee.pipeline.source.history import History, Slices, read_part
from aerobee.pipeline.source.queues import Offsets, from_json, to_json
from aerobee.pipeline.typed.shape import Shape

REASON: Final = pa.field("reason", pa.string())
_KEY: Final = ("topic", "broker", "partition", "offset")


class Rejected:
    """The rejected rows of `main`."""

    def __init__(self, spark: Any, main: Table, shape: Shape) -> None:
        self._spark, self._main, self.shape = spark, main, shape
        where = rejected_place(main.where)
        if format_of(where) is None:
            days = tuple(name for name in main.partition_by if name == "date")
            create_table(where, main.table_format, table_schema(days, [REASON]), days)
        self.table = open_table(where, writing=True)
        self._held = Held()

    def sorting(self, queues: Sequence[tuple[str, str]], start: Offsets) -> Sorting:
        """How the tasks of a trigger sort rows that begin at `start`."""
        self.table.refresh()
        self._held = self.table.held([*queues, RETRIES])
        ahead = from_json(self._held.next)
        twice = {key: (at, ahead[key]) for key, at in start.items() if ahead.get(key, 0) > at}
        layouts = (layout_of(self._main), layout_of(self.table))
        return Sorting(self.shape, *layouts, self._names_in(twice))

    def _names_in(self, slices: Slices) -> frozenset[tuple[Any, ...]]:
        """The rows that are here of these ranges: whether they fit the schema of today or not, they
        are not sorted again."""
        if not slices:
            return frozenset()
        here = History(self.table.where)
        here.refresh(slices)
        schema = arrow_schema(NAMED_BY)
        return frozenset(
            name
            for part in here.parts(slices)
            for rows in read_part(part, NAMED_BY, None, schema)
            for name in names_of(rows)
        )

    def append(self, files: list[DataFile], main_held: Held) -> None:
        """Commits a trigger's rejected rows; nothing to do when there are none. What is here of a
        queue beyond the trigger's range, of one that was killed, stays known."""
        if files:
            ends = from_json(main_held.next)
            ahead = {k: at for k, at in from_json(self._held.next).items() if at > ends.get(k, at)}
            counted = {RETRIES[0]: {RETRIES[1]: retries(self._held)}}
            held = Held(main_held.first, to_json(ends | ahead) | counted)
            self.table.append(files, held, {"rows": sum(one.rows for one in files)})
            self._held = held

    def set_back(self, queues: Sequence[tuple[str, str]], offsets: Numbers) -> None:
        """What comes in these queues from there on is not here yet."""
        self.table.refresh()
        held = self.table.held([*queues, RETRIES]).set_back(offsets)
        self.table.append([], held, {})
        self._held = held

    def upkeep(self, small_files: int) -> None:
        compact(self._spark, self.table, self._held, small_files)

    def retry(self, queues: Sequence[tuple[str, str]]) -> tuple[int, int]:
        """Tries all rejected rows again: how many fit now, and how many do not."""
        self.settle(queues)
        old = self.table.files()
        layouts = (layout_of(self._main), layout_of(self.table))
        fits, rest = retry_files(self._spark, old, Sorting(self.shape, *layouts))
        moved, left = (sum(one.rows for one in files) for files in (fits, rest))
        if moved:
            held = self._main.held([*queues, RETRIES])
            count = retries(held) + 1
            self._main.append(fits, _counted(held, count), {"retried": moved})
            self.table.replace(old, rest, _counted(self._held, count))
        return moved, left

    def settle(self, queues: Sequence[tuple[str, str]]) -> None:
        """Finishes a retry that was killed after the main table had its rows."""
        self.table.refresh()
        self._held = self.table.held([*queues, RETRIES])
        count = retries(self._main.held([*queues, RETRIES]))
        if count == retries(self._held):
            return
        old = self.table.files()
        schema = self.table.schema()
        names = [name for name in schema.names if name not in self.table.partition_by]
        rows = [batch for one in old for batch in read_rows(one, names, schema)]
        moved = _keys_among(self._main, rows)
        kept = [part.filter(pa.array([key not in moved for key in _keys(part)])) for part in rows]
        new = write_files(kept, layout_of(self.table))
        self.table.replace(old, new, _counted(self._held, count))


def _counted(held: Held, count: int) -> Held:
    return Held(**asdict(held) | {"next": held.next | {RETRIES[0]: {RETRIES[1]: count}}})


def _keys(rows: Any) -> list[tuple[Any, ...]]:
    return list(zip(*(rows[name].to_pylist() for name in _KEY), strict=True))


def _keys_among(table: Table, rows: Sequence[Any]) -> set[tuple[Any, ...]]:
    """Which of the rows the table has."""
    wanted = {key for part in rows for key in _keys(part)}
    schema = table.schema()
    found: set[tuple[Any, ...]] = set()
    for one in table.files():
        for part in read_rows(one, _KEY, schema):
            found.update(wanted.intersection(_keys(part)))
    return found
