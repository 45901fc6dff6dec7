"""Retention: a file is removed, the pending timers, delayed and half messages in it are kept."""

from pathlib import Path

import pytest
from services.retention_world import (
    FILE_SIZE,
    HOUR_MS,
    clean,
    clean_step,
    end,
    fill,
    half,
    run_until,
    small_world,
    work,
)
from services.services_world import START_MS
from structlog.testing import capture_logs

from aerobee.broker.base.refused import Refused
from aerobee.broker.services.transactions.service import EndRequest
from aerobee.protocol.files import properties as props
from aerobee.protocol.files.record import StoredMessage
from aerobee.protocol.names import TRANSACTION_HALF_TOPIC

# --- delay levels


def test_a_delayed_message_outlives_the_file_that_holds_it(tmp_path: Path) -> None:
    world = small_world(tmp_path, message_delay_level="10s 48h")
    world.send("T", b"long", queue_id=1, DELAY="2", KEYS="k1", UNIQ_KEY="u1")
    fill(world)
    work(world)
    clean(world, FILE_SIZE)
    world.send("T", b"short", queue_id=1, DELAY="1")
    due_ms = START_MS + 48 * HOUR_MS
    assert run_until(world, due_ms + 60_000, 1000 * 10) == [
        (b"short", START_MS + 10_000),
        (b"long", due_ms),
    ]
    short, long = (message.property_map() for message in world.read("T", 1))
    assert (long["KEYS"], long["UNIQ_KEY"], long["DELAY"]) == ("k1", "u1", "2")
    assert long.keys() == short.keys() | {"KEYS", "UNIQ_KEY"}  # short came by its level
    assert world.read("T", 1)[1].born_timestamp == START_MS
    assert world.schedule.progress(2) == (1, 1)
    world.close_quietly()


def test_a_delayed_message_that_is_due_is_delivered_instead_of_carried(tmp_path: Path) -> None:
    world = small_world(tmp_path)
    world.send("T", b"due", queue_id=1, DELAY="1")
    fill(world)
    world.advance(60)  # the delay levels have not run
    clean(world, FILE_SIZE)
    assert world.bodies("T", 1) == [b"due"]
    world.run_schedule()
    assert world.bodies("T", 1) == [b"due"]
    world.close_quietly()


def test_delayed_messages_come_once_wherever_a_kill_interrupts(tmp_path: Path) -> None:
    bodies = [b"%d" % number for number in range(100)]
    for steps in range(8):
        world = small_world(tmp_path / str(steps))
        for body in bodies:
            world.send("T", body, queue_id=1, DELAY="18")
        fill(world)
        work(world)
        for _ in range(steps):
            clean_step(world)
        world.reopen_after_kill()
        clean(world, FILE_SIZE)
        came = run_until(world, START_MS + 3 * HOUR_MS)
        assert came == [(body, START_MS + 2 * HOUR_MS) for body in bodies], steps
        world.close_quietly()


def test_without_timers_the_file_of_a_delayed_message_stays(tmp_path: Path) -> None:
    world = small_world(tmp_path, timer_wheel_enable=False)
    world.send("T", b"kept", queue_id=1, DELAY="18")
    fill(world)
    with capture_logs() as lines:
        for _ in range(5):
            clean_step(world)
    assert world.store.min_physical_offset == 0
    (line,) = [line for line in lines if "an expired file is kept" in line["event"]]
    assert "timerWheelEnable" in line["reason"]
    world.advance(2 * 3600)
    world.run_schedule()
    assert world.bodies("T", 1) == [b"kept"]
    clean(world, FILE_SIZE)
    world.close_quietly()


@pytest.mark.parametrize("killed", [False, True])
def test_a_producer_ends_a_transaction_whose_file_has_gone(tmp_path: Path, killed: bool) -> None:
    world = small_world(tmp_path)
    first, second = half(world), half(world, b"other")
    fill(world)
    work(world)
    clean(world, FILE_SIZE)
    assert world.transactions.open_count == 2
    if killed:
        world.reopen_after_kill()
    with pytest.raises(Refused, match="no half message"):
        end(world, first, key=b"wrong")
    with pytest.raises(Refused, match="group"):
        world.transactions.end(EndRequest("another", *first, True, b"half".hex()))
    end(world, first)
    end(world, second, commit=False, key=b"other")
    assert world.bodies("T", 1) == [b"half"]
    with pytest.raises(Refused):
        end(world, first)
    (message,) = world.read("T", 1)
    assert message.property("KEYS") == "k1" and message.born_timestamp == START_MS
    assert world.transactions.open_count == 0
    world.reopen_after_kill()
    assert world.transactions.prepare() and world.transactions.open_count == 0
    world.close_quietly()


def test_the_record_of_a_copy_whose_file_is_gone_counts_too(tmp_path: Path) -> None:
    world = small_world(tmp_path)
    first = half(world)
    world.transactions.prepare()
    world.transactions.read_halves()
    found = world.transactions.half_at(first[0], first[0])
    assert found is not None
    copied = world.transactions.copy(first[0], found, 1)  # as a check does
    assert copied is not None
    known = (copied.queue_offset, copied.physical_offset)
    fill(world)
    work(world)
    clean(world, FILE_SIZE)
    end(world, known)
    assert world.bodies("T", 1) == [b"half"]
    world.close_quietly()


def test_transactions_stay_open_once_wherever_a_kill_interrupts(tmp_path: Path) -> None:
    for steps in range(6):
        world = small_world(tmp_path / str(steps))
        known = [half(world, b"%d" % number) for number in range(100)]
        fill(world)
        for _ in range(steps):
            clean_step(world)
        world.reopen_after_kill()
        clean(world, FILE_SIZE)
        assert world.transactions.prepare() and world.transactions.open_count == 100
        for number, place in enumerate(known):
            end(world, place, key=b"%d" % number)
        assert world.bodies("T", 1) == [b"%d" % number for number in range(100)], steps
        world.close_quietly()


def test_a_check_continues_counting_after_a_half_message_was_carried(tmp_path: Path) -> None:
    world = small_world(tmp_path)
    first = half(world)
    world.transactions.prepare()
    world.transactions.read_halves()
    found = world.transactions.half_at(first[0], first[0])
    assert found is not None
    world.transactions.copy(first[0], found, 7)
    fill(world)
    work(world)
    clean(world, FILE_SIZE)
    newest: StoredMessage = world.read(
        TRANSACTION_HALF_TOPIC, start=world.store.min_offset(TRANSACTION_HALF_TOPIC, 0)
    )[-1]
    assert newest.property(props.TRANSACTION_CHECK_TIMES) == "7"
    assert newest.property(props.TRAN_PREPARED_QUEUE_OFFSET) == str(first[0])
    world.close_quietly()
