"""Batches cut for Spark."""

from __future__ import annotations

import io

import pyarrow as pa
import pytest

from aerobee.pipeline.source import slices as slicing
from aerobee.pipeline.source.slices import slices


def batch_of(rows: int, size: int) -> pa.RecordBatch:
    numbers = pa.array(range(rows), pa.int64())
    pairs = pa.array([[("number", str(row))] for row in range(rows)], pa.map_("string", "string"))
    bodies = pa.array([bytes([row % 256]) * size for row in range(rows)], pa.binary())
    return pa.record_batch({"offset": numbers, "properties": pairs, "value": bodies})


@pytest.mark.parametrize("rows", [1, 100, 1001, 8192])
def test_the_slices_have_all_rows_in_their_order(rows: int) -> None:
    batch = batch_of(rows, 1000)
    parts = list(slices([batch]))
    assert pa.Table.from_batches(parts) == pa.Table.from_batches([batch])
    assert all(part.num_rows for part in parts)


def test_slices_are_of_a_megabyte_or_so() -> None:
    parts = list(slices([batch_of(8192, 1000)]))
    sizes = [part.nbytes for part in parts]
    assert min(sizes) > slicing.SLICE_BYTES / 2
    assert max(sizes) < slicing.SLICE_BYTES * 2


def test_what_is_small_stays_whole() -> None:
    assert [part.num_rows for part in slices([batch_of(8192, 10)])] == [8192]


def test_only_its_rows_are_sent_of_a_slice() -> None:
    batch = batch_of(8192, 1000)
    sent = []
    for part in slices([batch]):
        out = io.BytesIO()
        with pa.RecordBatchStreamWriter(out, part.schema) as writer:
            writer.write_batch(part)
        sent.append(out.tell())
    assert sum(sent) < batch.nbytes * 1.01 + 10_000
