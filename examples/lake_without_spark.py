"""A store's files and a kept table without Spark: Arrow, DuckDB and Polars.

    pip install '.[lake]' duckdb polars
    python examples/lake_without_spark.py /var/lib/aerobee/store orders lake/orders

The second is a topic of the store; the third, which may be left out, a Delta table that
`aerobee pipeline table orders --to lake/orders --format delta` keeps.
"""

import sys

import duckdb
import polars

from aerobee.pipeline import arrow


def read_store(store: str, topic: str) -> None:
    """Batch by batch, so that a store larger than the memory can be read."""
    rows = sum(batch.num_rows for batch in arrow.read_store(store, topics=[topic]))
    print(f"Arrow: {rows} messages in {topic}")

    columns = ["tags", "offset", "timestamp", "value"]
    messages = arrow.open_store(store, topics=[topic], columns=columns)  # noqa: F841, by its name
    print(duckdb.sql("SELECT tags, count(*), max(timestamp) FROM messages GROUP BY tags"))

    frame = polars.from_arrow(arrow.open_store(store, topics=[topic], columns=columns).read_all())
    print(frame.group_by("tags").agg(polars.len(), polars.col("timestamp").max()).sort("tags"))


def read_table(where: str) -> None:
    from deltalake import DeltaTable

    kept = duckdb.read_parquet(DeltaTable(where).file_uris())  # noqa: F841, by its name
    print(duckdb.sql("SELECT tags, count(*) AS kept FROM kept GROUP BY tags ORDER BY tags"))
    print(polars.scan_delta(where).select(polars.len().alias("kept")).collect())


if __name__ == "__main__":
    read_store(sys.argv[1], sys.argv[2])
    if len(sys.argv) > 3:
        read_table(sys.argv[3])
