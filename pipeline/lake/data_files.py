"""Parquet files of a table: rows cut by their partition values, written, and read again."""

import os
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from aerobee.pipeline.columns import DEFAULT_COLUMNS, arrow_schema
from aerobee.pipeline.lake.model import (
    ASIDE,
    OWN,
    REMOVED,
    TARGET_BYTES,
    DataFile,
    TableError,
)

BUFFER_BYTES: Final = TARGET_BYTES  # in memory; files on disk are smaller by their compression
OPEN_MAX: Final = 64  # files that a task writes at once
NAME_MAX: Final = 255  # bytes of a folder's name
NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
# Columns made of `timestamp`, by which tables are partitioned.
TIMES: Final[dict[str, Any]] = {"date": pa.date32(), "hour": pa.int32()}


@dataclass(frozen=True, slots=True)
class Layout:
    """How a task writes: pickled to it, so plain values only."""

    folder: str
    schema: bytes  # Arrow's schema of a file, serialised
    partition_by: tuple[str, ...]
    readable_paths: bool = True  # Hive's column=value; else only where the value is plain text
    suffix: str = ""  # of files that no reader of the folder should take for its own yet


def table_schema(partition_by: Sequence[str], typed: Sequence[Any] = ()) -> Any:
    """The columns of a message, those of its value, then those that only partitions need."""
    schema = arrow_schema(DEFAULT_COLUMNS)
    for one in typed:
        schema = schema.append(one)
    for name in partition_by:
        if name in TIMES:
            schema = schema.append(pa.field(name, TIMES[name]))
    check_partitions(schema, partition_by)
    return schema


def check_partitions(schema: Any, partition_by: Sequence[str]) -> None:
    """TableError where a table with this schema cannot be cut by these columns."""
    for name in partition_by:
        if name not in schema.names:
            raise TableError(
                f"there is no column {name} to partition by; {', '.join(schema.names)}"
            )
        if not _is_plain(schema.field(name).type):
            raise TableError(f"{name} is a {schema.field(name).type}: partition by text or numbers")
        if re.search(r"[/=%\x00-\x1f]", name):
            raise TableError(f"a folder's name cannot hold the column's, {name!r}")


def _is_plain(kind: Any) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_date(kind)
        or pa.types.is_boolean(kind)
    )


def with_times(batch: Any, names: Iterable[str]) -> Any:
    """The batch with the wanted ones of `date` and `hour`, in UTC."""
    for name in names:
        if name in batch.schema.names:
            continue
        if name == "date":
            batch = batch.append_column(name, batch["timestamp"].cast(pa.date32()))
        elif name == "hour":
            batch = batch.append_column(name, pc.hour(batch["timestamp"]).cast(pa.int32()))
    return batch


class FileWriter:
    """Collects rows and writes them as files of their partitions; nothing of it belongs to the
    table yet."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._schema = pa.ipc.read_schema(pa.py_buffer(layout.schema))
        self._pending: list[Any] = []
        self._size = 0
        self._open: dict[tuple[str | None, ...], _OpenFile] = {}  # by partition values
        self.files: list[DataFile] = []

    def add(self, rows: Any) -> None:
        whole = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        self._pending.append(whole)
        self._size += whole.nbytes
        if self._size >= BUFFER_BYTES:
            self._write()

    def finish(self) -> list[DataFile]:
        """Writes what is left; all files so far."""
        self._write()
        self._close(self._open)
        return self.files

    def _write(self) -> None:
        """What is pending to the open files. Those are closed once they are large enough on disk:
        in memory rows may take many times that."""
        if self._pending and any(rows.num_rows for rows in self._pending):
            names = self._layout.partition_by
            rows = with_times(pa.concat_tables(self._pending), names)
            for field in self._schema:
                if field.name not in rows.schema.names:  # of a schema before this one
                    rows = rows.append_column(field.name, pa.nulls(rows.num_rows, field.type))
            for values, part in _parts(rows, names):
                key = tuple(values.values())
                if key not in self._open:
                    self._open[key] = _OpenFile(values, self._layout, self._schema)
                self._open[key].add(part)
            full = [key for key, one in self._open.items() if one.size >= TARGET_BYTES]
            self._close(full if len(self._open) <= OPEN_MAX else self._open)
        self._pending, self._size = [], 0

    def _close(self, keys: Iterable[tuple[str | None, ...]]) -> None:
        self.files += [self._open.pop(key).close() for key in list(keys)]


class _OpenFile:
    """A file of one partition that gets more rows."""

    def __init__(self, values: dict[str, str | None], layout: Layout, schema: Any) -> None:
        folders = [_folder(name, text, layout.readable_paths) for name, text in values.items()]
        folder = "/".join([layout.folder, *folders])
        self._values, self._schema = values, schema
        self._path = f"{folder}/part-{uuid.uuid4()}.parquet{layout.suffix}"
        self._filesystem, self._inner = file_system(self._path)
        self._filesystem.create_dir(self._inner.rpartition("/")[0], recursive=True)
        self._sink = self._filesystem.open_output_stream(self._inner)
        self._writer = pq.ParquetWriter(self._sink, schema, compression="zstd")
        self._rows = 0
        self._extents: list[tuple[int | None, int | None, int | None]] = []

    @property
    def size(self) -> int:
        return int(self._sink.tell())

    def add(self, rows: Any) -> None:
        self._writer.write_table(rows.select(self._schema.names).cast(self._schema), 1 << 20)
        self._rows += rows.num_rows
        self._extents.append(_extent(rows))

    def close(self) -> DataFile:
        self._writer.close()
        self._sink.close()
        if isinstance(self._filesystem, pafs.LocalFileSystem):
            sync(self._inner)  # before a commit names it
        size = self._filesystem.get_file_info(self._inner).size
        lows, highs, oldest = (
            [number for number in column if number is not None]
            for column in zip(*self._extents, strict=True)
        )
        ends = (min(lows, default=None), max(highs, default=None), min(oldest, default=None))
        return DataFile(self._path, self._rows, size, self._values, *ends)


def write_files(batches: Iterable[Any], layout: Layout) -> list[DataFile]:
    """All the rows as files."""
    writer = FileWriter(layout)
    for batch in batches:
        writer.add(batch)
    return writer.finish()


def _parts(rows: Any, names: tuple[str, ...]) -> Iterator[tuple[dict[str, str | None], Any]]:
    """The rows of each combination of partition values, in the order they came."""
    if not names:
        yield {}, rows
        return
    keys = rows.select(names)
    for row in keys.group_by(list(names), use_threads=False).aggregate([]).to_pylist():
        mask = None
        for name in names:
            value = pa.scalar(row[name], keys.schema.field(name).type)
            same = pc.is_null(keys[name]) if row[name] is None else pc.equal(keys[name], value)
            same = pc.fill_null(same, False)
            mask = same if mask is None else pc.and_(mask, same)
        yield {name: text_of(row[name]) for name in names}, rows.filter(mask)


def text_of(value: Any) -> str | None:
    """A partition value as Delta and Hive write it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, date) else str(value)


def value_of(text: str | None, kind: Any) -> Any:
    """What `text_of` was given."""
    if text is None or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return text
    if pa.types.is_boolean(kind):
        return text == "true"
    return date.fromisoformat(text) if pa.types.is_date(kind) else int(text)


def _extent(rows: Any) -> tuple[int | None, int | None, int | None]:
    """First and last offset and the oldest store time, of rows that still have them."""
    low, high, oldest = None, None, None
    if "offset" in rows.column_names and rows["offset"].type == pa.int64():
        ends = pc.min_max(rows["offset"]).as_py()
        low, high = ends["min"], ends["max"]
    if "timestamp" in rows.column_names and pa.types.is_timestamp(rows["timestamp"].type):
        oldest = pc.min(rows["timestamp"]).as_py()
    return low, high, None if oldest is None else round(oldest.timestamp() * 1000)


def sync(path: str) -> None:
    """What was written to the file or the folder survives a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _folder(name: str, text: str | None, readable: bool) -> str:
    """The folder of a partition value. As in Hive an empty text has none of its own."""
    if text is None or (readable and not text):
        return f"{name}={NULL_PARTITION}"
    folder = f"{name}={quote(text, safe='')}"
    is_short = len(os.fsencode(folder)) <= NAME_MAX
    if readable and not is_short:
        raise TableError(
            f"{name} has a value that is too long for a folder's name, {text[:40]}...: partition "
            "by another column, or use Iceberg"
        )
    if not readable and not (is_short and re.fullmatch(r"[A-Za-z0-9_.-]+", text)):
        return f"{name}-{uuid.uuid5(uuid.NAMESPACE_URL, text)}"
    return folder


def hive_values(relative: str, names: Iterable[str]) -> dict[str, str | None]:
    """The partition values in a path."""
    found = dict(part.split("=", 1) for part in relative.split("/")[:-1] if "=" in part)
    texts = {name: found.get(name, NULL_PARTITION) for name in names}
    return {name: None if text == NULL_PARTITION else unquote(text) for name, text in texts.items()}


def file_system(path: str) -> tuple[Any, str]:
    """Arrow's file system of a path or URI, and the path in it."""
    parts = urlsplit(path)
    if len(parts.scheme) > 1 and parts.scheme != "file":
        filesystem, inner = pafs.FileSystem.from_uri(path)
        return filesystem, inner
    return pafs.LocalFileSystem(), unquote(parts.path) if parts.scheme == "file" else path


def read_rows(
    one: DataFile, columns: Sequence[str], schema: Any, where: Any = None
) -> Iterator[Any]:
    """The file's rows as batches of these columns; those it lacks come from its partition values,
    or are null in a file that is older than the column."""
    with pq.ParquetFile(_open(one.path)) as file:
        there = set(file.schema_arrow.names)
        for batch in file.iter_batches(columns=[name for name in columns if name in there]):
            arrays = []
            for name in columns:
                kind = schema.field(name).type
                if name in there:
                    arrays.append(batch[name].cast(kind))
                elif name in one.partition:
                    value = value_of(one.partition[name], kind)
                    arrays.append(pa.repeat(pa.scalar(value, kind), batch.num_rows))
                else:
                    arrays.append(pa.nulls(batch.num_rows, kind))
            rows = pa.table(arrays, names=list(columns))
            yield rows if where is None else rows.filter(where(rows))


def _open(path: str) -> Any:
    """The file, which a commit may just be moving: from aside to its place, or out of it."""
    filesystem, inner = file_system(path)
    for attempt in range(5):
        for place in (inner, *_other_places(Path(inner))):
            try:
                return filesystem.open_input_file(place)
            except FileNotFoundError:
                continue
        time.sleep(0.05 * attempt)
    raise TableError(f"{path} of the table is gone; was it removed while it was read (--keep)?")


def _other_places(file: Path) -> Iterator[str]:
    for parent in file.parents:
        if (parent / OWN).is_dir():
            yield str(parent / OWN / "aside" / file.relative_to(parent)) + ASIDE
            yield str(parent / OWN / "removed" / file.name) + REMOVED
