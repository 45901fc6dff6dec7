"""Files of a kept table become as large as they should be on disk, not in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from spark.lake_readers import FORMATS

from aerobee.pipeline.columns import DEFAULT_COLUMNS, arrow_schema
from aerobee.pipeline.jobs.table_tasks import layout_of
from aerobee.pipeline.jobs.upkeep import mergeable
from aerobee.pipeline.lake import data_files
from aerobee.pipeline.lake.data_files import TIMES, read_rows, table_schema, write_files
from aerobee.pipeline.lake.model import DataFile, Held, Table
from aerobee.pipeline.lake.opening import create_table

LONG_AGO = datetime(2026, 1, 31, 8, tzinfo=UTC)


def messages(first: int, count: int, tags: int = 1) -> Any:
    """Messages of 1 KB that take little of a file, with so many tags in turn."""
    offsets = range(first, first + count)
    known: dict[str, list[Any]] = {
        "topic": ["orders"] * count,
        "broker": ["broker-a"] * count,
        "partition": [0] * count,
        "offset": list(offsets),
        "timestamp": [LONG_AGO] * count,
        "tags": [f"t{n % tags}" for n in offsets],
        "value": [b"." * 1000] * count,
    }
    columns = [
        pa.array(known.get(one.name, [None] * count), one.type)
        for one in arrow_schema(DEFAULT_COLUMNS)
    ]
    return pa.table(columns, names=list(DEFAULT_COLUMNS))


def made(folder: Path, table_format: str, by: tuple[str, ...] = ("date",)) -> Table:
    return create_table(str(folder / "t"), table_format, table_schema(by), by)


def offsets(table: Table, files: list[DataFile]) -> list[int]:
    schema = table.schema()
    parts = (part for one in files for part in read_rows(one, ("offset",), schema))
    return sorted(offset for part in parts for offset in part["offset"].to_pylist())


@pytest.mark.parametrize("table_format", FORMATS)
def test_small_files_whose_rows_are_large_in_memory_become_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table_format: str
) -> None:
    monkeypatch.setattr(data_files, "BUFFER_BYTES", 100_000)
    table = made(tmp_path, table_format)
    for first in range(0, 1000, 500):
        files = write_files([messages(first, 500)], layout_of(table))
        table.append(files, Held(), {})
    [old] = mergeable(table.files(), 16)  # of a day that is over
    columns = [name for name in table.schema().names if name not in TIMES]

    def rows() -> Iterator[Any]:
        for one in old:
            for part in read_rows(one, columns, table.schema()):
                yield from (part.slice(at, 50) for at in range(0, part.num_rows, 50))

    new = write_files(rows(), layout_of(table))
    table.replace(old, new, Held())
    [one] = table.files()
    assert (one.rows, one.offset_min, one.offset_max) == (1000, 0, 999)
    assert new[0].oldest_ms == round(LONG_AGO.timestamp() * 1000)
    assert not mergeable(table.files(), 16)
    assert offsets(table, table.files()) == list(range(1000))


def test_a_file_ends_when_it_is_large_enough_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_files, "BUFFER_BYTES", 100_000)
    monkeypatch.setattr(data_files, "TARGET_BYTES", 1_000_000)
    table = made(tmp_path, "parquet")

    def rows() -> Iterator[Any]:
        for first in range(0, 4000, 100):
            part = messages(first, 100)
            bodies = [hashlib.shake_128(b"%d" % n).digest(1000) for n in range(first, first + 100)]
            at = part.schema.get_field_index("value")
            yield part.set_column(at, "value", pa.array(bodies, pa.binary()))

    files = write_files(rows(), layout_of(table))
    assert len(files) > 2 and all(one.size > 1_000_000 for one in files[:-1])
    assert max(one.size for one in files) < 1_300_000
    assert offsets(table, files) == list(range(4000))
    assert [one.rows for one in files] == [pq.read_metadata(one.path).num_rows for one in files]


def test_a_task_keeps_some_files_open_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "BUFFER_BYTES", 100_000)
    monkeypatch.setattr(data_files, "OPEN_MAX", 5)
    table = made(tmp_path, "parquet", ("tags",))
    rows = [messages(first, 100, tags=8) for first in range(0, 400, 100)]
    files = write_files(rows, layout_of(table))
    assert len(files) == 4 * 8
    assert sum(one.rows for one in files) == 400
