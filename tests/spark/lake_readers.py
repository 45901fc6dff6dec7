"""Reads kept tables with what people have: DuckDB, and the formats' own libraries."""

from __future__ import annotations

from pathlib import Path

import duckdb

from aerobee.pipeline.lake.opening import open_table

FORMATS = ("parquet", "delta", "iceberg")


def open_with_others(where: Path, table_format: str) -> dict[str, list[bytes]]:
    """The column `value` of every row, by reader."""
    return {name: read(where) for name, read in READERS[table_format].items()}


def _duckdb_files(where: Path) -> list[bytes]:
    if not any(where.rglob("part-*.parquet")):
        return []  # killed before its first rows; DuckDB takes that for an error
    return _values(duckdb.sql(f"select value from '{where}/**/part-*.parquet'"))


def _duckdb_committed(where: Path) -> list[bytes]:
    """Only what the newest commit has; after a kill the folder may be a moment behind it."""
    paths = [one.path for one in open_table(str(where), writing=True).files()]
    return _values(duckdb.sql(f"select value from read_parquet({paths!r})")) if paths else []


def _values(rows: duckdb.DuckDBPyRelation) -> list[bytes]:
    return [bytes(row[0]) for row in rows.fetchall()]


def _deltalake(where: Path) -> list[bytes]:
    from deltalake import DeltaTable

    return [bytes(v) for v in DeltaTable(str(where)).to_pyarrow_table()["value"].to_pylist()]


def _pyiceberg(where: Path) -> list[bytes]:
    from pyiceberg.table import StaticTable

    rows = StaticTable.from_metadata(str(where)).scan(selected_fields=("value",)).to_arrow()
    return [bytes(value) for value in rows["value"].to_pylist()]


def _polars_delta(where: Path) -> list[bytes]:
    import polars

    return polars.scan_delta(str(where)).select("value").collect()["value"].to_list()


READERS = {
    "parquet": {"DuckDB": _duckdb_files, "DuckDB by commit": _duckdb_committed},
    "delta": {"deltalake": _deltalake, "Polars": _polars_delta},
    "iceberg": {"pyiceberg": _pyiceberg},
}
