"""An Iceberg table, committed by the library `pyiceberg`: no jar, so it works with every Spark.

The offsets are in the summary of each snapshot, so a table that was rolled back resumes there.
A commit asserts the snapshot that it follows; the library's own retries, which would add the same
rows behind another's commit, are off.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.fs as pafs

from aerobee.pipeline.lake.data_files import file_system, text_of
from aerobee.pipeline.lake.model import NOTE, Cleaned, DataFile, Held, TableConflict, TableError

OFFSETS: Final = f"{NOTE}.offsets"
_PROPERTIES: Final = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "commit.manifest-merge.enabled": "true",  # else each commit's manifest is kept forever
    "write.metadata.previous-versions-max": "100",
}


class IcebergTable:
    """See the module. `table`: pyiceberg's, of any catalog."""

    table_format = "iceberg"

    def __init__(self, where: str, table: Any) -> None:
        self.where = where
        self._table = table
        names = {one.field_id: one.name for one in table.schema().fields}
        fields = table.spec().fields
        if any(str(one.transform) != "identity" for one in fields):
            raise TableError(
                f"{where} is partitioned by more than plain columns; use another table"
            )
        self.partition_by = tuple(names[one.source_id] for one in fields)

    @classmethod
    def create(
        cls, where: str, schema: Any, partition_by: Sequence[str], catalog: Any, name: Any
    ) -> "IcebergTable":
        from pyiceberg.partitioning import PartitionField, PartitionSpec
        from pyiceberg.schema import assign_fresh_schema_ids
        from pyiceberg.transforms import IdentityTransform

        columns = assign_fresh_schema_ids(catalog._convert_schema_if_needed(schema))
        fields = [
            PartitionField(
                columns.find_field(column).field_id, 1000 + at, IdentityTransform(), column
            )
            for at, column in enumerate(partition_by)
        ]
        table = catalog.create_table(
            name, columns, partition_spec=PartitionSpec(*fields), properties=_PROPERTIES
        )
        return cls(where, table)

    def refresh(self) -> None:
        self._table.refresh()

    def schema(self) -> Any:
        return _small(self.file_schema())

    def file_schema(self) -> Any:
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        return schema_to_pyarrow(
            self._table.schema()
        )  # with the ids by which Iceberg finds columns

    def held(self, queues: Iterable[tuple[str, str]]) -> Held:
        for summary in self._summaries():  # others', such as a compaction's, carry no offsets
            if OFFSETS in summary:
                return Held(**json.loads(summary[OFFSETS]))
        text = self._table.properties.get(OFFSETS)  # the snapshot that had them may have expired
        return Held() if text is None else Held(**json.loads(text))

    def batch_of_spark(self, query: str) -> int | None:
        """The last batch that Spark's own sink wrote for this query."""
        for summary in self._summaries():
            if summary.get("spark.sql.streaming.queryId") == query:
                return int(summary["spark.sql.streaming.epochId"])
        return None

    def _summaries(self) -> Iterator[Mapping[str, str]]:
        """The summaries of the current snapshot and of those before it."""
        snapshot = self._table.current_snapshot()
        while snapshot is not None:
            yield snapshot.summary.additional_properties if snapshot.summary else {}
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else self._table.snapshot_by_id(parent)

    def files(self) -> list[DataFile]:
        return [self._data_file(one) for one in self._iceberg_files()]

    def _iceberg_files(self) -> list[Any]:
        from pyiceberg.manifest import DataFileContent

        snapshot = self._table.current_snapshot()
        if snapshot is None:
            return []
        found = [
            entry.data_file
            for manifest in snapshot.manifests(self._table.io)
            for entry in manifest.fetch_manifest_entry(self._table.io, discard_deleted=True)
        ]
        if any(one.content != DataFileContent.DATA for one in found):
            raise TableError(f"{self.where} has files of deleted rows; rewrite it before")
        return found

    def _data_file(self, one: Any) -> DataFile:
        from pyiceberg.conversions import from_bytes

        schema = self._table.schema()
        field = schema.find_field("offset") if "offset" in schema.column_names else None
        low, high = (
            from_bytes(field.field_type, bounds[field.field_id])
            if field and bounds and field.field_id in bounds
            else None
            for bounds in (one.lower_bounds, one.upper_bounds)
        )
        values = {
            name: text_of(self._from_partition(name, one.partition[at]))
            for at, name in enumerate(self.partition_by)
        }
        return DataFile(one.file_path, one.record_count, one.file_size_in_bytes, values, low, high)

    def _from_partition(self, name: str, value: Any) -> Any:
        """Iceberg writes a day as a number of days."""
        if isinstance(value, int) and pa.types.is_date(self.schema().field(name).type):
            return datetime.fromtimestamp(value * 86_400, UTC).date()
        return value

    def data_folder(self) -> str:
        return f"{self._table.location()}/data"

    def append(self, files: Sequence[DataFile], held: Held, note: Mapping[str, Any]) -> None:
        self._commit([], files, held, note)

    def replace(self, old: Sequence[DataFile], new: Sequence[DataFile], held: Held) -> None:
        paths = {one.path for one in old}
        self._commit(
            [one for one in self._iceberg_files() if one.file_path in paths], new, held, {}
        )

    def _commit(
        self, old: list[Any], files: Sequence[DataFile], held: Held, note: Mapping[str, Any]
    ) -> None:
        from pyiceberg.exceptions import CommitFailedException, ValidationException
        from pyiceberg.io.pyarrow import parquet_file_to_data_file

        offsets = json.dumps(asdict(held))
        summary = {OFFSETS: offsets} | {f"{NOTE}.{name}": str(v) for name, v in note.items()}
        metadata = self._table.metadata
        once = metadata.properties | {"commit.retry.num-retries": "0"}
        self._table.metadata = metadata.model_copy(update={"properties": once})
        change = self._table.transaction()
        change.set_properties({OFFSETS: offsets})
        snapshot = change.update_snapshot(snapshot_properties=summary)
        with snapshot.overwrite() if old else snapshot.merge_append() as update:
            for one in old:
                update.delete_data_file(one)
            for file in files:
                data_file = parquet_file_to_data_file(self._table.io, metadata, file.path)
                update.append_data_file(data_file)
        try:
            change.commit_transaction()
        except (CommitFailedException, ValidationException) as error:
            raise TableConflict(f"{self.where} was changed by another: {error}") from None

    def add_columns(self, fields: Sequence[Any]) -> None:
        from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids

        more = _pyarrow_to_schema_without_ids(pa.schema(fields))
        with self._table.update_schema() as update:
            update.union_by_name(more)
        self.refresh()

    def clean(self, keep: timedelta) -> Cleaned:
        before = datetime.now(UTC) - keep
        count = len(self._table.snapshots())
        with self._table.maintenance.expire_snapshots() as expiry:
            expiry.older_than(before)
        self.refresh()
        gone = _remove_unnamed(self._table, before.timestamp())
        return Cleaned(count - len(self._table.snapshots()), gone)


def _remove_unnamed(table: Any, before: float) -> int:
    """Removes files older than that which no snapshot names; how many."""
    named = {table.metadata_location, *(one.metadata_file for one in table.metadata.metadata_log)}
    seen: set[str] = set()
    for snapshot in table.snapshots():
        named.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in seen:
                seen.add(manifest.manifest_path)
                entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                named.update(entry.data_file.file_path for entry in entries)
    kept = {file_system(path)[1] for path in named | seen}
    filesystem, root = file_system(table.location())
    gone = 0
    for one in filesystem.get_file_info(pafs.FileSelector(root, recursive=True)):
        name = os.path.basename(one.path)
        is_file = one.type == pafs.FileType.File and not name.startswith(("version-hint", "."))
        if is_file and one.path not in kept and one.mtime.timestamp() < before:
            filesystem.delete_file(one.path)
            gone += 1
    return gone


def _small(schema: Any) -> Any:
    """Arrow's usual types in the place of its large ones, and no ids."""

    def kind(one: Any) -> Any:
        if pa.types.is_large_string(one):
            return pa.string()
        if pa.types.is_large_binary(one):
            return pa.binary()
        if pa.types.is_map(one):
            return pa.map_(kind(one.key_type), kind(one.item_type))
        if pa.types.is_struct(one):
            return pa.struct([pa.field(field.name, kind(field.type)) for field in one])
        if pa.types.is_list(one) or pa.types.is_large_list(one):
            return pa.list_(pa.field("element", kind(one.value_type)))
        return one

    return pa.schema([pa.field(field.name, kind(field.type)) for field in schema])
