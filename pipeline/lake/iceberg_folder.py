"""An Iceberg table in a folder, without a catalog: Spark (`load(path)` or a `hadoop` catalog),
DuckDB, Polars and pyiceberg's `StaticTable` open it by its path.

The layout is the one that those know: `metadata/v12.metadata.json`, and its number in
`metadata/version-hint.text`. A version is made under another name and linked, which only one can
do. The hint may be one behind after a kill, so a writer looks for later versions.
"""

import os
import uuid
from pathlib import Path
from typing import Any

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io import load_file_io
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, assign_fresh_partition_spec_ids
from pyiceberg.schema import assign_fresh_schema_ids
from pyiceberg.serializers import FromInputFile, ToOutputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import update_table_metadata


class FolderCatalog(NoopCatalog):  # type: ignore[misc]
    """A catalog of one table; its identifier is the folder."""

    def create_table(
        self,
        identifier: Any,
        schema: Any,
        location: str | None = None,
        partition_spec: Any = UNPARTITIONED_PARTITION_SPEC,
        sort_order: Any = UNSORTED_SORT_ORDER,
        properties: Any = None,
    ) -> Table:
        fresh = assign_fresh_schema_ids(schema)
        spec = assign_fresh_partition_spec_ids(partition_spec, schema, fresh)
        metadata = new_table_metadata(fresh, spec, sort_order, identifier, properties or {})
        (Path(identifier) / "metadata").mkdir(parents=True, exist_ok=True)
        _publish(Path(identifier), 1, metadata)
        return self.load_table(identifier)

    def load_table(self, identifier: Any) -> Table:
        folder = identifier if isinstance(identifier, str) else identifier[0]
        location = str(_file(Path(folder), newest(Path(folder))))
        io = load_file_io({}, location)
        metadata = FromInputFile.table_metadata(io.new_input(location))
        return Table((folder,), metadata, location, load_file_io({}, location), self)

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        folder = Path(table.name()[0])
        version = newest(folder)
        now = self.load_table(str(folder))
        for requirement in requirements:
            requirement.validate(now.metadata)
        changed = update_table_metadata(
            now.metadata, updates, enforce_validation=False, metadata_location=now.metadata_location
        )
        location = _publish(folder, version + 1, changed)
        return CommitTableResponse(metadata=changed, metadata_location=location)


def newest(folder: Path) -> int:
    """The number of the table's newest version."""
    versions = [
        int(file.name[1:].split(".")[0]) for file in (folder / "metadata").glob("v*.metadata.json")
    ]
    if not versions:
        raise NoSuchTableError(f"{folder} is not an Iceberg table: it has no metadata")
    return max(versions)


def _file(folder: Path, version: int) -> Path:
    return folder / "metadata" / f"v{version}.metadata.json"


def _publish(folder: Path, version: int, metadata: Any) -> str:
    aside = folder / "metadata" / f".{uuid.uuid4()}.metadata.json"
    final = _file(folder, version)
    ToOutputFile.table_metadata(metadata, load_file_io({}, str(aside)).new_output(str(aside)))
    try:
        os.link(aside, final)
    except FileExistsError:
        raise CommitFailedException(f"version {version} of {folder} was made by another") from None
    finally:
        aside.unlink()
    hint = folder / "metadata" / f".{uuid.uuid4()}.hint"
    hint.write_text(str(version))
    hint.rename(folder / "metadata" / "version-hint.text")
    return str(final)
