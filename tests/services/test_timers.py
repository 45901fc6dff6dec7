"""Timers on a real store: their times, crashes, recalls, rolls, lists, upstream's files."""

import random
from pathlib import Path
from typing import Any

import pytest
from services.services_world import START_MS, HandClock, World
from services.timer_world import deliver_at, run_until

from aerobee.broker.base.refused import Refused
from aerobee.protocol.files import properties as props
from aerobee.protocol.names import TIMER_TOPIC


def test_a_timer_fires_at_its_time_not_before(world: World) -> None:
    deliver_at(world, START_MS + 1234, b"one")
    world.run_timers()
    world.advance(1.233)
    world.run_timers()
    assert world.bodies("T") == [] and world.timers.pending == 1
    world.advance(0.001)
    world.run_timers()
    assert world.bodies("T") == [b"one"] and world.timers.pending == 0


def test_a_fired_timer_keeps_its_properties_and_birth(world: World) -> None:
    world.send("T", b"x", queue_id=3, TIMER_DELAY_SEC="2", KEYS="k1", TAGS="red")
    world.advance(2)
    world.run_timers()
    (message,) = world.read("T", 3)
    found = message.property_map()
    assert (found["KEYS"], found["TAGS"], found["REAL_QID"]) == ("k1", "red", "3")
    assert int(found["TIMER_DEQUEUE_MS"]) == START_MS + 2000
    assert message.born_timestamp == START_MS


@pytest.mark.parametrize(
    ("properties", "delay_ms"),
    [
        ({"TIMER_DELAY_MS": "1500"}, 1500),
        ({"TIMER_DELAY_SEC": "3"}, 3000),
        ({"TIMER_DELAY_SEC": "3", "TIMER_DELAY_MS": "9"}, 3000),
        ({"TIMER_DELAY_MS": "700", "TIMER_DELIVER_MS": "5"}, 700),
    ],
)
def test_relative_times_count_from_the_send(
    world: World, properties: dict[str, Any], delay_ms: int
) -> None:
    world.send("T", b"x", **properties)
    assert run_until(world, START_MS + 5000, 50) == {b"x": START_MS + delay_ms}


def test_a_time_that_has_passed_is_no_timer(world: World) -> None:
    deliver_at(world, START_MS, b"now")
    assert world.bodies("T") == [b"now"]


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({"TIMER_DELIVER_MS": "soon"}, "whole numbers"),
        ({"TIMER_DELAY_SEC": "99999999999"}, "timerMaxDelaySec"),
        ({"TIMER_DELIVER_MS": "5", "TIMER_DEL_UNIQKEY": "T+1"}, "has passed"),
    ],
)
def test_an_impossible_time_is_refused_with_a_reason(
    world: World, properties: dict[str, Any], text: str
) -> None:
    with pytest.raises(Refused, match=text) as caught:
        world.hooks.apply(world.message("T", **properties))
    assert caught.value.code == 13


def test_a_thousand_timers_at_random_times_fire_once_each_within_a_tick(world: World) -> None:
    chance = random.Random(7)
    times = {b"%d" % number: START_MS + chance.randint(1, 60_000) for number in range(1000)}
    for body, at_ms in times.items():
        deliver_at(world, at_ms, body)
    came = run_until(world, START_MS + 61_000)
    assert came.keys() == times.keys()
    assert all(0 <= came[body] - at_ms < 100 for body, at_ms in times.items())
    assert world.timers.pending == 0


def test_timers_of_one_second_fire_in_the_order_of_their_times(world: World) -> None:
    for number in (5, 1, 4, 2, 3):
        deliver_at(world, START_MS + 1000 + number, b"%d" % number)
    world.advance(3)
    world.run_timers()
    assert world.bodies("T") == [b"1", b"2", b"3", b"4", b"5"]


def test_a_timer_set_within_its_own_second_fires_in_it(world: World) -> None:
    deliver_at(world, START_MS + 100, b"first")
    world.run_timers()
    world.advance(0.2)
    world.run_timers()
    deliver_at(world, START_MS + 600, b"second")
    world.run_timers()
    world.advance(0.4)
    world.run_timers()
    assert world.bodies("T") == [b"first", b"second"]


def test_a_far_timer_rolls_and_fires_at_its_time(tmp_path: Path) -> None:
    world = World(tmp_path / "store", timer_roll_window_slot=60)
    deliver_at(world, START_MS + 400_000, b"far")
    came = run_until(world, START_MS + 401_000, 1000)
    assert came == {b"far": START_MS + 400_000}
    rolls = [message.property(props.TIMER_ROLL_TIMES) for message in world.read(TIMER_TOPIC)]
    assert rolls[0] is None and rolls[1:] == [str(n) for n in range(1, len(rolls))]
    assert world.read("T")[0].born_timestamp == START_MS
    world.close_quietly()


def test_a_year_ahead_is_possible_with_records_kept_for_three_days(world: World) -> None:
    deliver_at(world, START_MS + 365 * 86_400_000, b"year")
    world.run_timers()
    came = run_until(world, START_MS + 366 * 86_400_000, 3_600_000)
    assert list(came) == [b"year"]


def test_the_wheel_file_has_upstreams_length_and_takes_little_disk(world: World) -> None:
    deliver_at(world, START_MS + 5_000, b"x")
    world.run_timers()
    state = (world.root / "timerwheel").stat()
    assert state.st_size == 38_707_200 and state.st_blocks * 512 < 1 << 20
    assert (world.root / "timerlog" / "00000000000000000000").stat().st_size == 104_857_600


def unchain(root: Path, count: int) -> None:
    """As a Java broker of another precision would have chained them."""
    with (root / "timerlog" / "00000000000000000000").open("r+b") as file:
        for number in range(count):
            file.seek(number * 52 + 4)
            file.write((-1).to_bytes(8, "big", signed=True))
            file.seek(number * 52 + 44)
            file.write(bytes(8))


def test_chains_of_another_precision_are_rewritten_once(world: World) -> None:
    for number in range(50):
        deliver_at(world, START_MS + 60_000 + 40 * number, b"%d" % number)
    world.run_timers()
    world.stop()
    unchain(world.root, 50)
    world.open()
    end = world.timers.log.end
    assert world.timers.pending == 50 and end == 100 * 52
    world.stop()
    world.open()
    assert world.timers.pending == 50 and world.timers.log.end == end
    assert len(run_until(world, START_MS + 63_000)) == 50


def test_the_timer_log_continues_in_a_next_file_and_drops_the_first_when_its_records_are_gone(
    tmp_path: Path,
) -> None:
    world = World(tmp_path / "store", mapped_file_size_timer_log=4096)
    for number in range(200):
        deliver_at(world, START_MS + 1_000 + 10 * number, b"%d" % number)
    world.run_timers()
    folder = world.root / "timerlog"
    names = sorted(path.name for path in folder.iterdir())
    assert names[:2] == ["00000000000000000000", "00000000000000004096"] and len(names) == 3
    assert (folder / names[0]).read_bytes()[78 * 52 + 12 : 78 * 52 + 16].hex() == "cbd43194"
    world.reopen_after_kill()
    assert world.timers.pending == 200
    assert len(run_until(world, START_MS + 4_000)) == 200
    assert world.timers.log.drop_before(world.store.max_physical_offset, 2**40) == 2
    assert sorted(path.name for path in folder.iterdir()) == names[2:]
    world.close_quietly()


@pytest.mark.parametrize("key", ["{unique}", "T+{unique}"])  # of 5.5 and of versions before it
@pytest.mark.parametrize("late", [False, True])
def test_a_recall_takes_back_its_timer_and_no_other(world: World, key: str, late: bool) -> None:
    at_ms = START_MS + 1_700
    for body in (b"gone", b"stays"):
        deliver_at(world, at_ms, body)
        deliver_at(world, at_ms, body, topic="U")
    if late:  # within the second of the timer, which is read already
        world.run_timers()
        world.advance(1.2)
        world.run_timers()
    recalled = key.format(unique=b"gone".hex())
    world.send("T", b"0", TIMER_DEL_UNIQKEY=recalled, TIMER_DELIVER_MS=str(at_ms))
    came = run_until(world, START_MS + 3_000)
    assert list(came) == [b"stays"] and world.timers.pending == 0
    assert sorted(world.bodies("U")) == [b"gone", b"stays"]


def test_a_recall_counts_also_if_it_is_read_with_its_timer_after_their_time(world: World) -> None:
    at_ms = START_MS + 1_700
    for body in (b"gone", b"stays"):
        deliver_at(world, at_ms, body)
    deliver_at(world, at_ms + 1000, b"gone", topic="U")
    for topic in ("T", "U"):  # that of U names another second: it is of no timer
        world.send(topic, b"0", TIMER_DEL_UNIQKEY=b"gone".hex(), TIMER_DELIVER_MS=str(at_ms))
    world.reopen_after_kill()  # before any of them is on the wheel
    world.advance(5)
    assert list(run_until(world, START_MS + 6_000)) == [b"stays"]
    assert world.bodies("U") == [b"gone"] and world.timers.pending == 0


def test_a_far_timer_can_be_recalled(tmp_path: Path) -> None:
    world = World(tmp_path / "store", timer_roll_window_slot=60)
    at_ms = START_MS + 300_000
    deliver_at(world, at_ms, b"gone")
    run_until(world, START_MS + 20_000, 1000)
    world.send("T", b"0", TIMER_DEL_UNIQKEY=b"gone".hex(), TIMER_DELIVER_MS=str(at_ms))
    assert run_until(world, START_MS + 310_000, 1000) == {} and world.timers.pending == 0
    world.close_quietly()


@pytest.mark.parametrize(
    "back_ms", [400, 3_600_000, 10 * 24 * 3_600_000, 10 * 365 * 24 * 3_600_000]
)
@pytest.mark.parametrize("kill", [False, True])
def test_a_clock_set_back_keeps_no_timer_from_its_time(
    world: World, back_ms: int, kill: bool
) -> None:
    clock = world.clock
    assert isinstance(clock, HandClock)
    for wait_ms in (1_200, 1_900, 5_000, 600_000):
        deliver_at(world, START_MS + wait_ms, b"%d" % wait_ms)
    world.run_timers()
    world.advance(1.5)
    world.run_timers()
    assert world.bodies("T") == [b"1200"]
    clock.set_by_ms = -back_ms
    now_ms = clock.now_ms()
    world.run_timers()
    for wait_ms in (50, 150, 2_000, 30_000):
        deliver_at(world, now_ms + wait_ms, b"new %d" % wait_ms)
    world.run_timers()
    if kill:
        world.timers.checkpoints.step()
        world.reopen_after_kill()
    for wait_ms in (50, 150, 2_000, 30_000):
        clock.at_ms = now_ms + back_ms + wait_ms - 1
        world.run_timers()
        assert b"new %d" % wait_ms not in world.bodies("T")
        clock.at_ms += 1
        world.run_timers()
        assert b"new %d" % wait_ms in world.bodies("T")
    clock.at_ms = START_MS + back_ms + 700_000
    world.run_timers()
    came = world.bodies("T")
    old = {b"1200", b"1900", b"5000", b"600000"}
    assert set(came) == old | {b"new 50", b"new 150", b"new 2000", b"new 30000"}
    if not kill:
        assert len(came) == len(set(came))
        assert world.timers.pending == 0


def test_many_large_timers_of_one_moment_fire_in_pieces(world: World) -> None:
    body = bytes(1 << 20)
    for _ in range(20):
        world.send("T", body, TIMER_DELIVER_MS=str(START_MS + 5000))
    world.run_timers()
    world.advance(5)
    steps = 0
    while world.timers.step(world.clock.now_ms()) == world.clock.now_ms():
        steps += 1
    assert steps >= 4 and world.store.max_offset("T", 0) == 20


def test_overdue_timers_of_many_seconds_fire_in_pieces(world: World) -> None:
    for second in range(600):
        world.send("T", b"x", TIMER_DELIVER_MS=str(START_MS + 5000 + second * 1000))
    world.run_timers()
    world.advance(3000)
    assert world.timers.step(world.clock.now_ms()) == world.clock.now_ms()
    assert 0 < world.store.max_offset("T", 0) <= 256
    world.run_timers()
    assert world.store.max_offset("T", 0) == 600
