"""The bulk decoder and the store reader, without Spark: the same values as the plain decoder."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from spark.hosts import BASE_MS
from spark.store_writer import StoreWriter, write_store

from aerobee.pipeline import arrow
from aerobee.pipeline.source.store_files import StoreError
from aerobee.pipeline.source.topic_filter import topic_filter
from aerobee.protocol.files.java_hash import index_hash
from aerobee.protocol.files.record import (
    TRANSACTION_PREPARED,
    Message,
    encode_record,
)


def small_message(number: int) -> Message:
    tag = f"TAGS\x01tag-{number % 2}\x02"
    return Message(f"topic-{number % 3}", number % 2, b"%06d" % number * 20, tag)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """3000 messages in 3 topics, a second apart, over a dozen log files."""
    rows = ((small_message(n), BASE_MS + n * 1000) for n in range(3000))
    return write_store(tmp_path / "store", rows, queue_entries=128)


def numbers(batches: object) -> list[int]:
    return [int(v[:6]) for batch in batches for v in batch.column("value").to_pylist()]  # type: ignore[attr-defined]


def test_a_store_is_read_in_log_order_across_files(store: Path) -> None:
    assert len(list((store / "commitlog").iterdir())) > 8
    assert numbers(arrow.read_store(str(store), batch_rows=100)) == list(range(3000))


def test_topics_tags_and_times_select_the_messages(store: Path) -> None:
    path = str(store)
    assert numbers(arrow.read_store(path, topics=["topic-1"])) == list(range(1, 3000, 3))
    assert numbers(arrow.read_store(path, topic_pattern="topic-[02]")) == [
        n for n in range(3000) if n % 3 != 1
    ]
    assert numbers(arrow.read_store(path, tags=["tag-1"])) == list(range(1, 3000, 2))
    start = datetime.fromtimestamp(BASE_MS / 1000 + 1000, UTC)
    assert numbers(arrow.read_store(path, start=start, end=BASE_MS + 1_500_000)) == list(
        range(1000, 1500)
    )


def test_files_outside_the_times_and_without_the_topic_are_not_read(store: Path) -> None:
    path = str(store)
    everything = arrow.store_splits(path)
    late = arrow.store_splits(path, start=BASE_MS + 2_900_000)
    assert 1 <= len(late) <= 2 < len(everything)
    assert arrow.store_splits(path, topics=["nobody"]) == []


def test_splits_of_any_size_hold_every_message_once(store: Path) -> None:
    from aerobee.pipeline.source.split_reader import Selection, read_split

    selection = Selection(("value",), topic_filter(None, None))
    for split_bytes in (1000, 10_000, 1 << 30):
        splits = arrow.store_splits(str(store), split_bytes=split_bytes)
        rows = [number for split in splits for number in numbers(read_split(split, selection))]
        assert rows == list(range(3000))


def test_a_log_without_consume_queues_is_walked(store: Path) -> None:
    log = str(store / "commitlog")
    assert numbers(arrow.read_store(log)) == list(range(3000))
    assert numbers(arrow.read_store(log, topics=["topic-2"])) == list(range(2, 3000, 3))


def test_records_that_no_queue_knows_yet_are_found_and_half_messages_are_not(
    tmp_path: Path,
) -> None:
    writer = StoreWriter(tmp_path / "store")
    for number in range(600):
        message = small_message(number)
        if number == 590:
            message.sys_flag = TRANSACTION_PREPARED
        writer.add(message, BASE_MS, dispatch=number < 580)
    found = numbers(arrow.read_store(str(writer.close())))
    assert found == [n for n in range(600) if n != 590]


@pytest.mark.parametrize("flushed", [None, 0, 300, 570, 599])
def test_after_a_crash_queues_that_lost_their_last_entries_cost_no_message(
    tmp_path: Path, flushed: int | None
) -> None:
    """Their files reach the disk one by one: what one has, another may have lost. Only the
    entries of records before the checkpoint's time are sure to be there."""
    writer = StoreWriter(tmp_path / "store")
    for number in range(600):
        lost = number > (flushed or 0) and number % 3 == 1
        writer.add(small_message(number), BASE_MS + number * 10, dispatch=not lost)
    store = writer.close()
    (store / "abort").touch()
    if flushed is not None:
        times = [BASE_MS + flushed * 10] * 3
        (store / "checkpoint").write_bytes(struct.pack(">qqq", *times).ljust(4096, b"\0"))
    assert numbers(arrow.read_store(str(store))) == list(range(600))
    assert numbers(arrow.read_store(str(store), topics=["topic-1"])) == list(range(1, 600, 3))


def test_damage_where_the_queues_end_is_an_error_unless_the_log_ends_there(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "store")
    places = [
        writer.add(small_message(number), BASE_MS, dispatch=number < 100) for number in range(600)
    ]
    store = writer.close()
    file = store / "commitlog" / f"{0:020d}"
    data = bytearray(file.read_bytes())
    data[places[100] + 4] ^= 0xFF
    file.write_bytes(data)
    with pytest.raises(StoreError, match=f"damaged at {places[100]}: "):
        numbers(arrow.read_store(str(store)))


def test_sealed_only_leaves_out_the_newest_file(store: Path) -> None:
    sealed = numbers(arrow.read_store(str(store), sealed_only=True))
    assert sealed == list(range(len(sealed))) and 2500 < len(sealed) < 3000


def test_damage_in_a_walked_file_is_an_error_that_names_the_place(store: Path) -> None:
    file = sorted((store / "commitlog").iterdir())[2]
    data = bytearray(file.read_bytes())
    (size,) = struct.unpack_from(">i", data)
    data[size + 90] ^= 0xFF  # in the second record's body
    file.write_bytes(data)
    with pytest.raises(
        StoreError, match=f"damaged at {int(file.name) + size}: the record does not"
    ):
        numbers(arrow.read_store(str(store / "commitlog")))


@pytest.mark.parametrize("folder", ["", "commitlog"])
def test_a_file_whose_first_record_is_damaged_is_an_error_and_not_left_out(
    store: Path, folder: str
) -> None:
    file = sorted((store / "commitlog").iterdir())[2]
    data = bytearray(file.read_bytes())
    data[4] ^= 0xFF  # its magic
    file.write_bytes(data)
    some: dict[str, Any] = {"start": BASE_MS + 100_000, "end": BASE_MS + 1_000_000}
    for times in ({}, some):
        with pytest.raises(StoreError, match=f"damaged at {int(file.name)}: "):
            numbers(arrow.read_store(str(store / folder), **times))


def test_the_newest_file_damaged_at_its_start_is_an_error_when_queues_know_of_it(
    store: Path,
) -> None:
    file = max((store / "commitlog").iterdir())
    file.write_bytes(b"\xff" * 8 + file.read_bytes()[8:])
    with pytest.raises(StoreError, match=f"damaged at {int(file.name)}: "):
        numbers(arrow.read_store(str(store)))
    sealed = numbers(arrow.read_store(str(store), sealed_only=True))
    assert sealed == list(range(len(sealed))) and 2500 < len(sealed) < 3000


def test_damage_of_a_record_that_a_queue_knows_is_reported_by_its_place_in_the_log(
    store: Path,
) -> None:
    file = sorted((store / "commitlog").iterdir())[2]
    data = bytearray(file.read_bytes())
    (size,) = struct.unpack_from(">i", data)
    data[size + 4] ^= 0xFF
    file.write_bytes(data)
    with pytest.raises(StoreError, match=f"damaged at {int(file.name) + size}: its magic"):
        numbers(arrow.read_store(str(store)))


def test_a_time_that_no_timestamp_holds_is_null() -> None:
    """Times come from clients: one in nanoseconds must not turn up as a day in another century."""
    last = 253_402_300_799_999  # of the year 9999, the last that SQL and Python know
    times = [BASE_MS, BASE_MS * 1_000_000, 2**63 - 1, -(2**63), -1, last, last + 1]
    body = b"".join(
        encode_record(Message("t", 0, b"", born_timestamp=ms), n, 0, BASE_MS)
        for n, ms in enumerate(times)
    )
    column = arrow.decode(body, ["bornTimestamp"]).column(0).cast(pa.int64())
    assert column.to_pylist() == [BASE_MS * 1000, None, None, None, -1000, last * 1000, None]


def test_an_audit_tells_of_a_queue_file_that_was_cut_inside_an_entry(store: Path) -> None:
    from aerobee.pipeline.jobs.store_audit import audit_parts, check_part

    file = sorted((store / "consumequeue" / "topic-1" / "1").iterdir())[1]
    with file.open("r+b") as opened:
        opened.truncate(20 * 5 + 7)
    findings = [one for part in audit_parts(str(store)) for one in check_part(part).findings]
    queue = [one for one in findings if one.file == str(file)]
    assert [one.problem for one in queue if "107 bytes" in one.problem]
    lost = [one.problem for one in findings if one not in queue]
    assert "the record has no entry 133 in queue topic-1/1" in lost


def test_an_audit_knows_the_tags_that_rocketmq_5_5_keeps_in_the_index(store: Path) -> None:
    from aerobee.pipeline.jobs.store_audit import audit_parts, check_part

    hashes = [index_hash("topic-0", key) for key in ("T#tag-0", "T#tag-1")]
    chained = zip((0, *hashes), (0, 0, 1), strict=True)
    entries = b"".join(struct.pack(">iqii", key_hash, 0, 0, prev) for key_hash, prev in chained)
    header = struct.pack(">qqqqii", BASE_MS, BASE_MS, 0, 0, 1, 3)
    data = header + struct.pack(">i", 2) + entries + bytes(20)
    (store / "index").mkdir()
    (store / "index" / "20260101000000000").write_bytes(data)
    tasks = [task for task in audit_parts(str(store)) if task.part.kind == "index"]
    report = check_part(tasks[0])
    assert report.checked == 2
    (finding,) = report.findings
    assert finding.problem.startswith("index entry 2: no record at 0 has")  # it has tag-0


def test_a_reader_for_duckdb_and_polars_has_the_schema_before_the_first_row(store: Path) -> None:
    reader = arrow.open_store(str(store), columns=["topic", "offset"], topics=["topic-0"])
    assert reader.schema.names == ["topic", "offset"]
    assert reader.read_all().num_rows == 1000


def test_a_folder_that_is_no_store_is_refused_with_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds no commitlog file"):
        list(arrow.read_store(str(tmp_path)))
    with pytest.raises(StoreError, match="is not a folder"):
        list(arrow.read_store(str(tmp_path / "missing")))


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="has no time zone"):
        list(arrow.read_store("/", start=datetime(2026, 1, 1)))
