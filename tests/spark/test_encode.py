"""Rows encoded in bulk: the same messages as an encoder that goes row by row."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from aerobee.pipeline.columns import HEADERS
from aerobee.pipeline.errors import OptionError
from aerobee.pipeline.sink.encode import BulkIds, RowNames, encode_rows
from aerobee.pipeline.sink.places import key_hashes
from aerobee.pipeline.sink.sender import Pile, Piles
from aerobee.protocol.files.batch import decode_batch
from aerobee.protocol.files.java_hash import java_hash
from aerobee.protocol.files.properties import parse

MAP = pa.map_(pa.string(), pa.string())
NAMES = ("KEYS", "TAGS", "UNIQ_KEY", "WAIT", "CLUSTER", "x", "color")


def random_batch(rng: random.Random, count: int) -> Any:
    def some(make: Any) -> list[Any]:
        return [make() if rng.random() < 0.8 else None for _ in range(count)]

    def pairs() -> list[tuple[str, str]]:
        return [(n, rng.choice(("", "v", "é中"))) for n in rng.sample(NAMES, rng.randrange(6))]

    return pa.record_batch(
        {
            "value": pa.array([rng.randbytes(rng.randrange(40)) for _ in range(count)]),
            "key": pa.array(some(lambda: rng.choice((b"", b"k1", b"k1 k2"))), pa.binary()),
            "tags": pa.array(some(lambda: rng.choice(("a", "b"))), pa.string()),
            "properties": pa.array(some(pairs), MAP),
            "partition": pa.array(some(lambda: rng.randrange(3)), pa.int32()),
            "flag": pa.array(some(lambda: rng.randrange(9)), pa.int32()),
            "topic": pa.array([rng.choice("ab") for _ in range(count)]),
        }
    )


def row_by_row(batch: Any) -> dict[Any, list[Any]]:
    expected: dict[Any, list[Any]] = {}
    for row in batch.to_pylist():
        dropped = ("WAIT", "CLUSTER")
        table = {k: v for k, v in (row.get("properties") or ()) if v and k not in dropped}
        for header in row.get("headers") or ():
            if header["value"] and header["key"] not in dropped:
                table[header["key"]] = header["value"].decode()
        if row.get("key"):
            table["KEYS"] = row["key"].decode()
        if row.get("tags"):
            table["TAGS"] = row["tags"]
        place = row["topic"], row.get("partition")
        message = (row.get("flag") or 0, row["value"], table)
        expected.setdefault(place, []).append(message)
    return expected


def encoded(batch: Any) -> dict[Any, list[Any]]:
    """What is sent; ids that the encoder made itself are checked and left out."""
    found: dict[Any, list[Any]] = {}
    for group in encode_rows(batch, None, BulkIds()):
        for flag, body, text in decode_batch(group.slice(0, len(group))):
            table = parse(text)
            if len(table["UNIQ_KEY"]) == 32:
                del table["UNIQ_KEY"]
            found.setdefault((group.target.topic, group.target.queue_id), []).append(
                (flag, body, table)
            )
    return found


@pytest.mark.parametrize("seed", range(6))
def test_rows_are_encoded_as_an_encoder_of_single_rows_would(seed: int) -> None:
    rng = random.Random(seed)
    batch = random_batch(rng, rng.choice((1, 7, 400)))
    for part in (batch, batch.slice(batch.num_rows // 3), batch.select(["value", "topic"])):
        assert encoded(part) == row_by_row(part)


def test_headers_become_properties() -> None:
    headers = [[("a", b"1"), ("WAIT", b"x")], None, [], [("UNIQ_KEY", b"mine")]]
    values = [None if row is None else [{"key": k, "value": v} for k, v in row] for row in headers]
    batch = pa.record_batch(
        {
            "value": [b"1", b"2", b"3", b"4"],
            "topic": ["t"] * 4,
            "headers": pa.array(values, HEADERS),
        }
    )
    assert encoded(batch) == row_by_row(batch)


def test_a_header_without_a_name_is_left_out() -> None:
    rows = [[{"key": None, "value": b"1"}, {"key": "a", "value": b"2"}], [None]]
    columns = {
        "value": [b"1", b"2"],
        "key": [b"k", b"k"],
        "topic": ["t"] * 2,
        "headers": pa.array(rows, HEADERS),
    }
    found = encoded(pa.record_batch(columns))
    assert found == {("t", None): [(0, b"1", {"KEYS": "k", "a": "2"}), (0, b"2", {"KEYS": "k"})]}


def test_rows_bring_their_names_first_and_the_same_ones_when_a_task_is_run_again() -> None:
    def run() -> list[bytes]:
        names = RowNames("q/7/3")
        found = []
        for start in (0, 2):
            columns = {"value": [b"%d" % (start + n) for n in range(2)], "key": [b"b", b"a"]}
            batch = pa.record_batch(columns)
            for group in encode_rows(batch, "t", BulkIds(), lambda topic: 4, names):
                found += decode_batch(group.slice(0, len(group)))
        return [
            body
            for number, (_flag, body, text) in enumerate(sorted(found, key=lambda one: one[1]))
            if text.startswith(f"SPARK_ROW\x01q/7/3/{number}\x02KEYS\x01")
        ]

    assert run() == run() == [b"0", b"1", b"2", b"3"]


def test_ids_are_unique_however_many_are_taken() -> None:
    ids = BulkIds()
    taken = [one for count in (1, 10, 70_000, 3) for one in map(bytes, ids.take(count))]
    assert len(set(taken)) == len(taken) == 70_014


@pytest.mark.parametrize("batch_bytes", [1, 200, 5000, 1 << 20])
def test_piles_hold_every_row_once_in_order_and_keep_to_their_size(batch_bytes: int) -> None:
    sent: list[Pile] = []
    piles = Piles(batch_bytes, sent.append)
    bodies = [b"%05d" % n * (n % 7 + 1) for n in range(9000)]
    for start in range(0, 9000, 1000):
        batch = pa.record_batch({"value": bodies[start : start + 1000]})
        piles.add(encode_rows(batch, "t", BulkIds()))
    piles.finish()
    rows = [body for pile in sent for _, body, _ in decode_batch(pile.body())]
    assert rows == bodies and sum(pile.rows for pile in sent) == 9000
    assert all(pile.size <= batch_bytes or pile.rows == 1 for pile in sent)
    assert all(pile.rows <= 4096 for pile in sent)


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"value": [None]}, "a row's value is null"),
        ({"value": [b"x"], "tags": ["a\x02b"]}, "which separate properties"),
        ({"value": [b"x"], "properties": [[("a\x01", "b")]]}, "which separate properties"),
        ({"value": [b"x"], "properties": [[("a", "b" * 40_000)]]}, "at most 32767 fit"),
        ({"value": [b"x", b"y"], "partition": [0, -1]}, "a row's partition is -1"),
    ],
)
def test_rows_that_no_message_can_hold_are_refused(columns: Any, complaint: str) -> None:
    kinds = {"value": pa.binary(), "tags": pa.string(), "properties": MAP, "partition": pa.int32()}
    batch = pa.record_batch({name: pa.array(rows, kinds[name]) for name, rows in columns.items()})
    with pytest.raises(OptionError, match=complaint):
        list(encode_rows(batch, "t", BulkIds()))


def test_keys_have_the_hashes_that_java_and_the_sdk_choose_queues_by() -> None:
    rng = random.Random(3)
    texts = ["", "a", "o-42", "polygenelubricants", "é中", "\U0001f600", "x" * 300]
    texts += ["".join(rng.choices("0123456789abcdef-é", k=rng.randrange(40))) for _ in range(500)]
    keys = pa.array([None, *(text.encode() for text in texts)], pa.binary())
    expected = [-1, *(abs(java_hash(text)) if text else -1 for text in texts)]
    assert abs(java_hash("polygenelubricants")) == 2**31  # the one without a positive twin
    assert key_hashes(keys).tolist() == expected
    assert key_hashes(keys.slice(7, 90)).tolist() == expected[7:97]


def test_rows_go_by_their_keys_and_those_without_one_stay_together() -> None:
    rng = random.Random(4)
    batch = random_batch(rng, 500)
    found: dict[bytes, set[Any]] = {}
    for part, topic in ((batch, None), (batch.drop_columns(["partition", "topic"]), "t")):
        for group in encode_rows(part, topic, BulkIds(), lambda topic: 3):
            if group.target.queue_id is None:
                for _flag, _body, text in decode_batch(group.slice(0, len(group))):
                    key = parse(text).get("KEYS") if group.target.lane is not None else None
                    found.setdefault((key or "").encode(), set()).add(group.target.lane)
    assert found[b"k1"] == {abs(java_hash("k1")) % 3}
    assert found[b"k1 k2"] == {abs(java_hash("k1 k2")) % 3}
    assert found[b""] == {None}
