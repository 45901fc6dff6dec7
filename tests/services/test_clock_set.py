"""The time of day is set, forward and back: when a delayed message is due is decided by the clock
at its acceptance, whatever the store times of others are."""

from pathlib import Path

import pytest
from services.services_world import START_MS, HandClock, World
from services.test_retry import RETRY, send_back

from aerobee.broker.services.names_check import SCHEDULE_TOPIC, TIMER_TOPIC

HOUR_MS = 3_600_000
TWO_HOURS = "18"  # the level


def set_by(world: World, ms: int) -> None:
    assert isinstance(world.clock, HandClock)
    world.clock.set_by_ms = ms


def send_an_hour_ahead(world: World) -> None:
    """What a clock that is wrong for a moment leaves behind: store times from then on stand still
    until the clock catches up."""
    set_by(world, HOUR_MS)
    world.send("Other", b"ahead")
    set_by(world, 0)


def restart(world: World, how: str) -> None:
    if how == "stop":
        world.stop()
        world.open()
    elif how == "kill":
        world.reopen_after_kill()
    elif how == "rebuild":
        world.kill()
        for file in (world.root / "consumequeue").rglob("0*"):
            if file.is_file():
                file.unlink()
        (world.root / "checkpoint").unlink(missing_ok=True)
        world.open()


def came_at(world: World, body: bytes, limit_s: float, step_s: float = 1.0) -> int:
    """When a message came to topic T, by the test's own time; fails when it does not."""
    assert isinstance(world.clock, HandClock)
    end_ms = world.clock.at_ms + round(limit_s * 1000)
    while True:
        world.run_schedule()
        world.run_timers()
        if body in world.bodies("T"):
            return world.clock.at_ms - START_MS
        assert world.clock.at_ms < end_ms, f"{body!r} did not come"
        world.advance(step_s)


@pytest.mark.parametrize("how", ["on", "stop", "kill", "rebuild"])
@pytest.mark.parametrize("again", ["on", "stop", "kill", "rebuild"])
def test_one_send_while_the_clock_was_an_hour_ahead_changes_no_delay(
    world: World, how: str, again: str
) -> None:
    world.send("T", b"before", DELAY=TWO_HOURS)
    send_an_hour_ahead(world)
    restart(world, how)
    world.send("T", b"x", DELAY=TWO_HOURS)
    world.send("T", b"short", DELAY="1")
    restart(world, again)
    assert came_at(world, b"short", 5, 0.1) == 1000
    world.advance(7000 - 1)
    assert came_at(world, b"before", 3600) == 7_200_000
    assert came_at(world, b"x", 3600) == 7_200_000


def test_store_times_do_not_go_back_but_for_messages_that_wait(world: World) -> None:
    send_an_hour_ahead(world)
    world.send("T", b"plain")
    world.send("T", b"level", DELAY=TWO_HOURS)
    world.send("T", b"timer", TIMER_DELAY_SEC="5")
    world.send("T", b"plain")
    assert [m.store_timestamp - START_MS for m in world.read("T")] == [HOUR_MS, HOUR_MS]
    (level,) = world.read(SCHEDULE_TOPIC, 17)
    (timer,) = world.read(TIMER_TOPIC)
    assert level.store_timestamp == timer.store_timestamp == START_MS
    entry = world.store.queue_entry(SCHEDULE_TOPIC, 17, 0)
    assert entry is not None and entry[2] == level.store_timestamp + 2 * HOUR_MS  # as Apache's
    assert world.store.offset_by_time("T", 0, START_MS + 1) == 0


def test_a_retry_comes_after_its_own_time_though_a_send_was_stored_ahead(world: World) -> None:
    send_an_hour_ahead(world)
    world.send("T", b"x")
    (failed,) = world.read("T")
    send_back(world, failed)  # 10 s
    for _ in range(99):
        world.run_schedule()
        assert world.store.max_offset(RETRY, 0) == 0
        world.advance(0.1)
    world.advance(0.1)
    world.run_schedule()
    assert world.bodies(RETRY) == [b"x"]


def test_what_a_clock_ahead_accepted_waits_its_time_and_keeps_nobody_back(world: World) -> None:
    world.send("T", b"first", DELAY=TWO_HOURS)
    set_by(world, HOUR_MS)
    world.send("T", b"ahead", DELAY=TWO_HOURS)
    world.run_schedule()
    set_by(world, 0)
    world.run_schedule()
    world.advance(600)
    world.send("T", b"later", DELAY=TWO_HOURS)
    world.advance(6500)
    assert came_at(world, b"first", 600) == 7_200_000
    assert came_at(world, b"ahead", 10) == 7_200_000
    assert came_at(world, b"later", 1200) == 7_800_000
    assert len(world.bodies("T")) == 3


@pytest.mark.parametrize("how", ["on", "stop", "kill", "rebuild"])
def test_a_level_that_a_clock_ten_years_ahead_accepted_waits_no_longer_than_its_time(
    world: World, how: str
) -> None:
    set_by(world, 10 * 365 * 24 * HOUR_MS)
    for number in range(5):
        world.send("T", b"%d" % number, DELAY="3")  # 10 s
        world.advance(1)
    world.run_schedule()
    set_by(world, 0)
    restart(world, how)
    world.run_schedule()
    assert world.bodies("T") == []
    assert came_at(world, b"0", 20, 0.1) == 5_000 + 6_000  # as far behind the last as it was sent
    assert came_at(world, b"4", 20, 0.1) == 5_000 + 10_000


def test_a_clock_that_is_behind_for_a_minute_makes_nothing_early(world: World) -> None:
    world.send("T", b"x", DELAY=TWO_HOURS)
    world.advance(60)
    set_by(world, -HOUR_MS)
    for _ in range(60):
        world.run_schedule()
        world.advance(1)
    set_by(world, 0)
    world.advance(7000)
    assert came_at(world, b"x", 600) == 7_200_000


def test_a_level_whose_time_was_shortened_delivers_nothing_before_its_new_time(
    tmp_path: Path,
) -> None:
    world = World(tmp_path / "store", message_delay_level="1s 2h")
    world.send("T", b"x", DELAY="2")
    world.stop()
    world = World(tmp_path / "store", world.clock, message_delay_level="1s 10m")
    assert came_at(world, b"x", 3600) == 600_000
    world.close_quietly()
