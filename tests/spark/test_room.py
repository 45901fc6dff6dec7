"""The memory that bodies of pulls share, and rows that outlive it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from peers.aerobee_broker import AerobeeBroker
from spark.helpers import create_topic, produce

from aerobee.pipeline.columns import DEFAULT_COLUMNS, arrow_schema
from aerobee.pipeline.options import source_options
from aerobee.pipeline.source import room as room_of
from aerobee.pipeline.source import topic_ranges
from aerobee.pipeline.source.room import Room


def filled(room: Room, text: bytes) -> memoryview:
    body = room(len(text))
    body[:] = text
    return body


def test_bodies_in_order_are_one_piece_whose_memory_is_used_again() -> None:
    room = Room()
    for text in (b"first", b"other"):
        bodies = [filled(room, text), filled(room, b" and second")]
        whole = room.joined(bodies)
        assert isinstance(whole, memoryview), "it was copied"
        assert bytes(whole) == text + b" and second"
        room.clear(bodies)
    assert bytes(whole[:5]) == b"other"
    assert bytes(filled(room, b"third")) == bytes(whole[:5]) == b"third"


def test_a_body_that_came_too_early_keeps_its_bytes_and_its_place() -> None:
    room = Room()
    second, first = filled(room, b"2"), filled(room, b"1")  # the order of the answers
    room.clear([first])
    third = filled(room, b"3")
    assert bytes(room.joined([second, third])) == b"23"
    assert bytes(room.joined([first, second])) == b"12"


def test_bodies_beyond_the_room_get_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room_of, "ROOM_MIN", 8)
    room = Room()
    bodies = [filled(room, text) for text in (b"12345", b"6789", b"x" * 30)]
    assert bytes(room.joined(bodies)) == b"123456789" + b"x" * 30


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for a few bodies, and batches of fewer."""
    monkeypatch.setattr(room_of, "ROOM_MIN", 1 << 16)
    monkeypatch.setattr(topic_ranges, "_BATCH_BYTES", 1 << 15)


def batches_of(broker: AerobeeBroker, topic: str) -> Iterator[Any]:
    """The one queue of the topic, as a task of Spark's reads it."""
    options = source_options({"namesrv": broker.namesrv, "subscribe": topic}, streaming=False)
    columns = tuple(name for name in DEFAULT_COLUMNS if name != "broker")
    plan = topic_ranges.TopicPlan.of(options, columns)
    (wanted,) = topic_ranges.plan_batch(options).ranges
    yield from topic_ranges.read_range(wanted, plan, arrow_schema(columns))


def texts(count: int) -> list[bytes]:
    chance = random.Random(3)
    return [chance.randbytes(chance.randint(1, 1500)).hex().encode() for _ in range(count)]


@pytest.mark.usefixtures("small")
def test_rows_of_a_read_stay_as_they_are_while_more_are_read(broker: AerobeeBroker) -> None:
    create_topic(broker.broker, "kept-rows", 1)
    bodies = texts(9000)
    produce(broker.namesrv, "kept-rows", bodies)
    batches = list(batches_of(broker, "kept-rows"))
    assert len(batches) > 2
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [row["value"] for row in rows] == bodies
    assert [row["key"] for row in rows] == [b"k" + body[:20] for body in bodies]
    assert [row["offset"] for row in rows] == list(range(len(bodies)))


@pytest.mark.usefixtures("small")
def test_rows_are_there_once_when_a_killed_broker_cuts_off_an_answer(
    own_broker: Callable[..., AerobeeBroker],
) -> None:
    broker = own_broker(maxTransferCountOnMessageInMemory="64")
    create_topic(broker.broker, "cut", 1)
    bodies = texts(3000)
    produce(broker.namesrv, "cut", bodies)
    batches = batches_of(broker, "cut")
    rows = []
    for _ in range(3):
        rows += next(batches)["value"].to_pylist()
        broker.kill()
        broker.start()
    rows += [value for batch in batches for value in batch["value"].to_pylist()]
    assert rows == bodies
