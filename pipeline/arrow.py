"""Messages as Arrow record batches, without Spark and without a broker.

    from aerobee.pipeline import arrow

    for batch in arrow.read_store("/var/lib/aerobee/store", topics=["orders"]):
        print(batch.num_rows, batch.schema.names)

    duckdb.from_arrow(arrow.open_store("/var/lib/aerobee/store", topics=["orders"]))

`read_store` reads a store directory straight from disk; `decode` reads the body of a pull or query
answer. `schema()` names the columns.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa

from aerobee.pipeline.columns import DEFAULT_COLUMNS, arrow_schema, check_columns
from aerobee.pipeline.source.decode import Records
from aerobee.pipeline.source.split_reader import BATCH_ROWS, Selection, read_split
from aerobee.pipeline.source.store_files import SPLIT_BYTES, Split, StoreFiles
from aerobee.pipeline.source.topic_filter import topic_filter
from aerobee.protocol.files.record_columns import record_positions
from aerobee.protocol.files.record_layout import Buffer

__all__ = ["decode", "open_store", "read_store", "schema", "store_splits"]

schema: Final = arrow_schema


def decode(
    body: Buffer, columns: Sequence[str] = DEFAULT_COLUMNS, *, broker: str | None = None
) -> Any:
    """The records of a pull's, view's or query's body as one RecordBatch."""
    positions = record_positions(body)
    records = Records(np.frombuffer(body, np.uint8), positions, broker)
    return records.batch(check_columns(columns))


def store_splits(
    path: str,
    *,
    topics: Sequence[str] | None = None,
    topic_pattern: str | None = None,
    start: datetime | int | None = None,
    end: datetime | int | None = None,
    split_bytes: int = SPLIT_BYTES,
    sealed_only: bool = False,
) -> list[Split]:
    """The parts that can be read on their own, in parallel, each by `read_split`."""
    return StoreFiles(path).splits(
        wanted=topic_filter(topics, topic_pattern),
        start_ms=to_ms(start),
        end_ms=to_ms(end),
        split_bytes=split_bytes,
        sealed_only=sealed_only,
    )


def read_store(
    path: str,
    *,
    topics: Sequence[str] | None = None,
    topic_pattern: str | None = None,
    tags: Sequence[str] | None = None,
    start: datetime | int | None = None,
    end: datetime | int | None = None,
    columns: Sequence[str] = DEFAULT_COLUMNS,
    batch_rows: int = BATCH_ROWS,
    sealed_only: bool = False,
) -> Iterator[Any]:
    """The messages of a store in log order, as RecordBatches of up to `batch_rows`.

    Without `topics` or `topic_pattern` every topic but the broker's own is read. `start` (included)
    and `end` (excluded) are store times: datetimes with a zone, or milliseconds. `sealed_only`
    leaves out the newest log file, into which a running broker still writes.
    """
    selection = Selection(
        check_columns(columns),
        topic_filter(topics, topic_pattern),
        tags=frozenset(tags) if tags else None,
        start_ms=to_ms(start),
        end_ms=to_ms(end),
        batch_rows=batch_rows,
    )
    for split in store_splits(
        path,
        topics=topics,
        topic_pattern=topic_pattern,
        start=start,
        end=end,
        sealed_only=sealed_only,
    ):
        yield from read_split(split, selection)


def open_store(path: str, *, columns: Sequence[str] = DEFAULT_COLUMNS, **options: Any) -> Any:
    """`read_store` as a pyarrow RecordBatchReader, which DuckDB, Polars and pandas take."""
    batches = read_store(path, columns=columns, **options)
    return pa.RecordBatchReader.from_batches(arrow_schema(columns), batches)


def to_ms(time: datetime | int | None) -> int | None:
    """Milliseconds since 1970; a datetime must say its zone."""
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise ValueError(f"{time} has no time zone; give one, e.g. tzinfo=timezone.utc")
        return round(time.timestamp() * 1000)
    return time
