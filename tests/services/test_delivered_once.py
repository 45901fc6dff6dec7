"""Crashes between deliveries: what was delivered is not redelivered, the rest is not lost."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from effort import examples
from services.services_world import START_MS, World

from aerobee.broker.services.redelivery import origins
from aerobee.protocol.files.record import decode_record
from aerobee.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC


def copies(world: World) -> Counter[bytes]:
    return Counter(world.bodies("T"))


def record_ends(world: World, start: int) -> list[int]:
    """Where the log could end after a power cut: behind each record from `start` on."""
    ends, at = [start], start
    while (record := world.store.record_at(at)) is not None:
        at += len(record)
        ends.append(at)
    return ends


def cut_power(world: World, chance: random.Random) -> None:
    """The log keeps part of its unflushed tail; config/ is as last synced."""
    end = chance.choice(record_ends(world, world.store.flushed_offset))
    world.kill()
    with (world.root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(end)
        file.write(bytes(256 << 10))
    world.open()
    assert world.store.max_physical_offset == end


def run(world: World, chance: random.Random) -> None:
    world.advance(chance.choice([0.01, 0.3, 1.1]))
    world.run_schedule()
    world.run_timers()
    if chance.random() < 0.3:
        world.store.flush.step()
    if chance.random() < 0.3:
        world.schedule.file.save()
    if chance.random() < 0.3:
        world.timers.checkpoints.step()


@pytest.mark.parametrize("how", ["kill", "power"])
@pytest.mark.parametrize("seed", range(examples(3, share=2)))
def test_a_crash_at_any_moment_neither_doubles_nor_loses(world: World, how: str, seed: int) -> None:
    chance = random.Random(seed)
    number = 0
    for _ in range(25):
        for _ in range(chance.randint(0, 30)):
            number += 1
            kind = chance.choice(["level", "level", "timer", "timer due at once", "plain"])
            if kind == "level":
                world.send("T", b"%d" % number, DELAY=str(chance.randint(1, 2)))
            elif kind == "timer":
                at_ms = world.clock.now_ms() + chance.randint(1, 4000)
                world.send("T", b"%d" % number, TIMER_DELIVER_MS=str(at_ms))
            elif kind == "timer due at once":
                at_ms = world.clock.now_ms() + 1
                world.send("T", b"%d" % number, TIMER_DELIVER_MS=str(at_ms))
                world.advance(0.002)
            else:
                world.send("Other", b"%d" % number)
        run(world, chance)
        if chance.random() < 0.4:
            if how == "kill":
                world.reopen_after_kill()
            else:
                cut_power(world, chance)
    accepted = [
        *world.bodies(SCHEDULE_TOPIC, 0),
        *world.bodies(SCHEDULE_TOPIC, 1),
        *world.bodies(TIMER_TOPIC),
    ]
    for _ in range(20):
        world.advance(1)
        world.run_schedule()
        world.run_timers()
    assert len(accepted) > 50
    assert copies(world) == Counter(accepted)
    assert world.timers.pending == 0


def test_the_crashes_would_show_without_the_origins(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(origins, "_read_file", lambda *_: None)
    with pytest.raises(AssertionError):
        test_a_crash_at_any_moment_neither_doubles_nor_loses(world, "kill", 0)


def test_a_rolled_timer_is_not_rolled_twice_after_a_kill(world: World) -> None:
    at_ms = START_MS + 60 * 3600 * 1000
    world.send("T", b"far", TIMER_DELIVER_MS=str(at_ms), UNIQ_KEY="u")
    world.run_timers()
    world.timers.checkpoints.step()
    while len(world.read(TIMER_TOPIC)) == 1:
        world.advance(3600)
        world.run_timers()
    world.reopen_after_kill()
    world.run_timers()
    assert len(world.read(TIMER_TOPIC)) == 2 and world.timers.pending == 1
    while world.clock.now_ms() < at_ms + 5000:
        world.advance(1800)
        world.run_timers()
    assert world.bodies("T") == [b"far"]


def test_a_checkpoint_before_the_first_round_forgets_nothing_that_has_fired(world: World) -> None:
    for number in range(3):
        world.send("T", b"%d" % number, TIMER_DELIVER_MS=str(START_MS + 1_000 + number))
    world.run_timers()
    world.timers.checkpoints.step()
    world.advance(1.5)
    world.run_timers()
    assert len(world.bodies("T")) == 3
    for _ in range(2):
        world.reopen_after_kill()
        world.store.flush.step()
        world.timers.checkpoints.step()
    world.run_timers()
    assert len(world.bodies("T")) == 3


def test_the_first_record_of_a_store_is_known_too(world: World) -> None:
    world.send("T", b"x", DELAY="1")
    world.advance(1)
    world.run_schedule()
    world.reopen_after_kill()
    world.run_schedule()
    assert world.bodies("T") == [b"x"]
    (copy,) = world.read("T")
    assert copy.prepared_transaction_offset == -1


def test_a_store_that_fills_fast_and_is_killed_before_its_first_save_delivers_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(origins, "MARK_BYTES", 10_000)
    world.send("T", b"x", DELAY="1")
    world.advance(1)
    world.run_schedule()
    world.send("Other", bytes(20_000))
    world.reopen_after_kill()
    world.run_schedule()
    assert world.bodies("T") == [b"x"]


def test_a_progress_that_a_lost_log_had_counts_no_more_when_the_log_has_grown_again(
    world: World,
) -> None:
    world.send("T", b"first", DELAY="1")
    world.store.flush.step()
    world.schedule.file.save()
    end = world.store.max_physical_offset
    world.advance(1)
    world.run_schedule()
    world.kill()
    with (world.root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(end)
        file.write(bytes(64 << 10))  # the delivered copy never reached the disk
    world.open()
    for _ in range(20):
        world.send("Other", bytes(1000))
    world.reopen_after_kill()
    world.run_schedule()
    assert world.bodies("T") == [b"first"]


def test_a_delivered_copy_of_a_java_broker_is_none_of_ours(world: World) -> None:
    """Its file has no mark, its copies no origin: what it says counts."""
    for number in range(4):
        world.send("T", b"%d" % number, DELAY="1")
    world.stop()
    path = world.root / "config" / "delayOffset.json"
    path.write_text('{"offsetTable":{1:2}}')
    world.open()
    world.advance(1)
    world.run_schedule()
    assert world.bodies("T") == [b"2", b"3"]


def test_copies_are_found_among_records_of_every_kind_and_behind_damage(world: World) -> None:
    chance = random.Random(1)
    expected = set()
    for number in range(300):
        message = world.message("T" if number % 7 else "L" * 200, bytes(chance.randint(0, 300)))
        if number % 3 == 0:
            message.prepared_transaction_offset = origins.origin_field(number)
            expected.add(number)
        if number % 5 == 0:
            message.born_host = message.store_host = bytes(15) + b"\1\0\0\0\1"
            message.sys_flag |= 0x30
        if number % 11 == 0:
            message.sys_flag |= 8
            if number % 3:
                message.prepared_transaction_offset = number  # a committed transaction's
        assert world.store.put([message])[0].ok
    assert origins.origins_since(world.store, 0) == expected
    assert origins.origins_since(world.store, None) == expected
    end = world.store.max_physical_offset
    assert origins.origins_since(world.store, end) == set()
    middle = record_ends(world, 0)[150]
    record = world.store.record_at(middle)
    assert record is not None and decode_record(record).physical_offset == middle
    late = origins.origins_since(world.store, middle)
    assert late == {number for number in expected if number >= 150}
    world.damage(middle, 0, b"\xff\xff\xff\xff")
    assert origins.origins_since(world.store, 0) >= expected - {150}


def test_a_unit_that_a_power_failure_tore_is_rewritten(world: World) -> None:
    """Units are not of whole sectors; each ends with its record's size and its time."""
    for number in range(25):
        at_ms = START_MS + 10_000 + number
        world.send("T", b"%d" % number, TIMER_DELIVER_MS=str(at_ms), UNIQ_KEY=f"u{number}")
    world.run_timers()
    path = world.root / "timerlog" / f"{0:020d}"
    for boundary in range(988 + 1, 988 + 52):
        world.kill()
        with path.open("r+b") as file:
            file.seek(boundary)
            file.write(bytes(512))
        world.open()
        world.run_timers()
        assert world.timers.pending == 25
    world.advance(11)
    world.run_timers()
    assert sorted(map(int, world.bodies("T"))) == list(range(25))
