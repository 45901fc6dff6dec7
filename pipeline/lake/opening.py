"""Opens or makes the table that a user names: a folder, a URI, or a name in an Iceberg catalog."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from aerobee.pipeline.lake.model import OWN, Table, TableError
from aerobee.pipeline.lake.parquet_folder import ParquetFolder

# The first commit: a folder alone may be what a kill has left of a table that was to be made.
_MARKS: Final = {
    "parquet": f"{OWN}/commits/*.json",
    "delta": "_delta_log/*.json",
    "iceberg": "metadata/v*.metadata.json",
}


def place(where: str) -> str:
    """The folder as an absolute path; URIs and names as they are."""
    if "://" in where or is_name(where):
        return where.rstrip("/")
    return str(Path(where).expanduser().absolute())


def rejected_place(where: str) -> str:
    """Where the rows of a typed table are that do not fit its schema."""
    return f"{place(where)}__rejected"


def is_name(where: str) -> bool:
    """Whether it is a table of a catalog (lake.orders), not a path."""
    return "/" not in where and "." in where.strip(".") and not Path(where).exists()


def format_of(where: str) -> str | None:
    """The format of a table that is there; None when there is none."""
    if is_name(where):
        return "iceberg" if _named_exists(where) else None
    if "://" in where:
        from deltalake import DeltaTable

        return "delta" if DeltaTable.is_deltatable(where) else None
    found = [name for name, mark in _MARKS.items() if any(Path(where).glob(mark))]
    return found[0] if found else None


def open_table(where: str, *, writing: bool = False) -> Table:
    """The table that is there; TableError when there is none."""
    where = place(where)
    table_format = format_of(where)
    if table_format is None:
        raise TableError(f"there is no table at {where} (Parquet of ours, Delta or Iceberg)")
    try:
        if table_format == "parquet":
            return ParquetFolder(where, writing=writing)
        if table_format == "delta":
            from aerobee.pipeline.lake.delta import DeltaFolder

            return DeltaFolder(where)
        return _open_iceberg(where)
    except ImportError as error:
        raise TableError(f"{error}; pip install 'aerobee[lake]'") from None


def create_table(where: str, table_format: str, schema: Any, partition_by: Sequence[str]) -> Table:
    """A new, empty table."""
    where = place(where)
    if is_name(where) and table_format != "iceberg":
        raise TableError(f"{where} is a name in a catalog, which only Iceberg has; give a folder")
    if "://" in where and table_format != "delta":
        raise TableError(
            f"a {table_format} table at {where} is not possible: a URI works with delta; Iceberg "
            "in an object store needs a catalog (--to namespace.table)"
        )
    try:
        if table_format == "parquet":
            return ParquetFolder.create(where, schema, partition_by)
        if table_format == "delta":
            from aerobee.pipeline.lake.delta import DeltaFolder

            return DeltaFolder.create(where, schema, partition_by)
        from aerobee.pipeline.lake.iceberg import IcebergTable

        catalog, name = _catalog(where)
        if is_name(where):
            catalog.create_namespace_if_not_exists(name[:-1])
        return IcebergTable.create(where, schema, partition_by, catalog, name)
    except ImportError as error:
        raise TableError(f"{error}; pip install 'aerobee[lake]'") from None


def _catalog(where: str) -> tuple[Any, Any]:
    """pyiceberg's catalog and the name in it: namespace.table of the default one, or
    catalog.namespace.table; a folder is a catalog of its own."""
    if not is_name(where):
        from aerobee.pipeline.lake.iceberg_folder import FolderCatalog

        return FolderCatalog("folder"), where
    from pyiceberg.catalog import load_catalog

    parts = tuple(where.split("."))
    catalog = parts[0] if len(parts) > 2 else None
    try:
        return load_catalog(catalog), parts[1:] if catalog else parts
    except ValueError as error:
        raise TableError(
            f"{where}: {error}. Configure pyiceberg's catalog in ~/.pyiceberg.yaml or by "
            "PYICEBERG_CATALOG__DEFAULT__URI; or give a folder, as in --to ./orders"
        ) from None


def _named_exists(where: str) -> bool:
    catalog, name = _catalog(where)
    return bool(catalog.table_exists(name))


def _open_iceberg(where: str) -> Table:
    from aerobee.pipeline.lake.iceberg import IcebergTable

    catalog, name = _catalog(where)
    return IcebergTable(where, catalog.load_table(name))
