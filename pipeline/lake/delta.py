"""A Delta table, committed by the library `deltalake`: no jar, so it works with every Spark.

Each queue is one of Delta's application transactions (`txn`): its id names the queue, its version
is the next offset. They live in the table's checkpoints too, so no cleaning of the log loses them,
and Delta refuses a commit whose transaction another commit has moved since.
"""

import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa

from aerobee.pipeline.lake.data_files import text_of
from aerobee.pipeline.lake.model import NOTE, Cleaned, DataFile, Held, TableConflict

FIRST: Final = "aerobee/first"
NEXT: Final = "aerobee/next"


class DeltaFolder:
    """See the module."""

    table_format = "delta"

    def __init__(self, where: str) -> None:
        from deltalake import DeltaTable

        self.where = where
        self._table = DeltaTable(where)
        self.partition_by = tuple(self._table.metadata().partition_columns)

    @classmethod
    def create(cls, where: str, schema: Any, partition_by: Sequence[str]) -> "DeltaFolder":
        from deltalake import DeltaTable, Schema

        DeltaTable.create(where, Schema.from_arrow(schema), partition_by=list(partition_by))
        return cls(where)

    def refresh(self) -> None:
        self._table.update_incremental()

    def schema(self) -> Any:
        return pa.schema(self._table.schema().to_arrow())

    def file_schema(self) -> Any:
        """Delta keeps partition values in its log, not in the files."""
        return pa.schema([one for one in self.schema() if one.name not in self.partition_by])

    def held(self, queues: Iterable[tuple[str, str]]) -> Held:
        held = Held()
        for topic, queue in queues:
            for kind, numbers in ((FIRST, held.first), (NEXT, held.next)):
                offset = self._table.transaction_version(f"{kind}/{topic}/{queue}")
                if offset is not None:
                    numbers.setdefault(topic, {})[queue] = offset
        return held

    def batch_of_spark(self, query: str) -> int | None:
        """The last batch that Spark's own sink wrote for this query."""
        found: int | None = self._table.transaction_version(query)
        return found

    def files(self) -> list[DataFile]:
        found = []
        for row in pa.table(self._table.get_add_actions(flatten=True)).to_pylist():
            values = {name: text_of(row[f"partition.{name}"]) for name in self.partition_by}
            ends = (row.get("min.offset"), row.get("max.offset"))
            path = f"{self.where}/{unquote(row['path'])}"  # escaped in the log, as part of a URI
            found.append(DataFile(path, row["num_records"], row["size_bytes"], values, *ends))
        return found

    def data_folder(self) -> str:
        return self.where

    def append(self, files: Sequence[DataFile], held: Held, note: Mapping[str, Any]) -> None:
        actions = [self._add(one, data_change=True) for one in files]
        self._commit(actions, held, dict(note) | asdict(held))

    def replace(self, old: Sequence[DataFile], new: Sequence[DataFile], held: Held) -> None:
        from deltalake.transaction import RemoveAction

        now = round(time.time() * 1000)
        gone = [
            RemoveAction(self._relative(one), False, now, one.size, one.partition) for one in old
        ]
        self._commit([*gone, *(self._add(one, data_change=False) for one in new)], held, {})

    def add_columns(self, fields: Sequence[Any]) -> None:
        from deltalake import Schema

        self._table.alter.add_columns(Schema.from_arrow(pa.schema(fields)).fields)
        self.refresh()

    def clean(self, keep: timedelta) -> Cleaned:
        hours = math.ceil(keep / timedelta(hours=1))  # vacuum takes whole ones
        gone = self._table.vacuum(
            retention_hours=hours, dry_run=False, enforce_retention_duration=False, full=True
        )
        self._table.create_checkpoint()
        self._table.cleanup_metadata()
        self.refresh()
        return Cleaned(0, len(gone))

    def _relative(self, one: DataFile) -> str:
        return one.path.removeprefix(f"{self.where}/")

    def _add(self, one: DataFile, *, data_change: bool) -> Any:
        from deltalake.transaction import AddAction

        stats: dict[str, Any] = {"numRecords": one.rows}
        if one.offset_min is not None:
            stats["minValues"] = {"offset": one.offset_min}
            stats["maxValues"] = {"offset": one.offset_max}
            stats["nullCount"] = {"offset": 0}
        now = round(time.time() * 1000)
        path = self._relative(one)
        return AddAction(path, one.size, one.partition, now, data_change, json.dumps(stats))

    def _commit(self, actions: list[Any], held: Held, note: Mapping[str, Any]) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError

        transactions = [
            Transaction(f"{kind}/{topic}/{queue}", offset)
            for kind, numbers in ((FIRST, held.first), (NEXT, held.next))
            for topic, queues in numbers.items()
            for queue, offset in queues.items()
        ]
        properties = CommitProperties(
            custom_metadata={NOTE: dict(note)}, max_commit_retries=0, app_transactions=transactions
        )
        try:
            self._table.create_write_transaction(
                actions,
                "append",
                self._table.schema(),
                list(self.partition_by),
                commit_properties=properties,
            )
        except CommitFailedError as error:
            raise TableConflict(f"{self.where} was changed by another: {error}") from None
        self.refresh()
