"""The time of day is set, forward and back: when a delayed message is due is decided by the clock
at its acceptance, whatever the store times of others are."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from services.services_world import START_MS, HandClock, World
from services.test_retry import RETRY, send_back

from aerobee.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC

HOUR_MS = 3_600_000
TWO_HOURS = "18"  # the level


def set_by(world: World, ms: int) -> None:
    assert isinstance(world.clock, HandClock)
    world.clock.set_by_ms = ms


def send_an_hour_ahead(world: World) -> None:
    """The effect of a clock that is briefly ahead: later store times stand still until the clock
    catches up."""
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
    """When a message was delivered to topic T, in the test's time; fails on timeout."""
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
    assert came_at(world, b"0", 20, 0.1) == 5_000 + 6_000  # spaced from the last as when sent
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


TEN_YEARS_MS = 10 * 365 * 24 * HOUR_MS
ROUND_MS = 14 * 24 * HOUR_MS  # of the timer wheel


@pytest.mark.parametrize("how", ["on", "stop", "kill", "no timer log"])
@pytest.mark.parametrize("kind", ["delay", "time"])
@pytest.mark.parametrize("ahead_ms", [TEN_YEARS_MS, 40 * ROUND_MS])
def test_a_timer_set_by_a_clock_years_ahead_comes_after_its_delay(
    world: World, how: str, kind: str, ahead_ms: int
) -> None:
    set_by(world, ahead_ms)
    at_ms = world.clock.now_ms() + 5_000
    for number in range(3):
        told: dict[str, Any]
        told = {"TIMER_DELAY_SEC": "5"} if kind == "delay" else {"TIMER_DELIVER_MS": str(at_ms)}
        world.send("T", b"%d" % number, UNIQ_KEY=str(number), **told)
    world.send("T", b"recalled", UNIQ_KEY="r", TIMER_DELIVER_MS=str(at_ms))
    world.send("T", b"", TIMER_DEL_UNIQKEY="T+r", TIMER_DELIVER_MS=str(at_ms))
    if how != "kill":
        world.run_timers()
    set_by(world, 0)
    if how == "no timer log":
        world.stop()
        shutil.rmtree(world.root / "timerlog")
        world.open()
    else:
        restart(world, how)
    # In the same place of the wheel, and others.
    for body, wait_ms in ((b"near", 5_000), (b"next", 6_000), (b"soon", 600)):
        world.send("T", body, TIMER_DELIVER_MS=str(START_MS + wait_ms))
    world.run_timers()
    assert world.bodies("T") == []
    assert came_at(world, b"soon", 2, 0.1) == 600
    for number in range(3):
        assert 5_000 <= came_at(world, b"%d" % number, 10, 0.1) <= 6_100
    assert came_at(world, b"near", 0) <= came_at(world, b"next", 10, 0.1) == 6_000
    restart(world, "kill")
    for _ in range(100):
        world.advance(1)
        world.run_timers()
    assert sorted(world.bodies("T")) == sorted([b"0", b"1", b"2", b"near", b"next", b"soon"])


def test_a_far_timer_set_by_a_clock_years_ahead_comes_after_its_delay(world: World) -> None:
    set_by(world, TEN_YEARS_MS)
    days = 9
    world.send("T", b"x", TIMER_DELAY_SEC=str(days * 86_400))
    world.run_timers()
    set_by(world, 0)
    for step in range(days * 48):
        world.run_timers()
        assert world.bodies("T") == [], step
        if step % 100 == 50:
            world.store.flush.step()
            world.timers.checkpoints.step()
            restart(world, "kill" if step % 200 == 50 else "stop")
        world.advance(1800)
    assert came_at(world, b"x", 3600, 600) >= days * 86_400_000


def test_a_time_of_day_is_waited_for_though_the_clock_was_days_ahead(world: World) -> None:
    """A clock eight days ahead, a client whose clock is right: its time is in nine days."""
    set_by(world, 20 * 24 * HOUR_MS)
    world.send("T", b"x", TIMER_DELIVER_MS=str(START_MS + 21 * 24 * HOUR_MS))
    world.run_timers()
    set_by(world, 0)
    world.run_timers()
    for hour in range(21 * 24):
        world.run_timers()
        assert world.bodies("T") == [], hour
        world.advance(3600)
    world.run_timers()
    assert world.bodies("T") == [b"x"]


def test_a_machine_that_begins_in_1970_makes_no_timer_early_and_loses_none(world: World) -> None:
    for number in range(50):
        world.send("T", b"%d" % number, TIMER_DELIVER_MS=str(START_MS + 3_600_000 + number * 1000))
    world.send("T", b"delay", TIMER_DELAY_SEC="3600")
    world.send("T", b"soon", TIMER_DELAY_SEC="20")
    world.run_timers()
    world.stop()
    set_by(world, 1_000_000 - START_MS)
    world.open()
    for _ in range(10):  # until NTP sets the clock
        world.run_timers()
        world.advance(1)
    world.send("T", b"early bird", TIMER_DELAY_SEC="60")
    world.run_timers()
    assert world.bodies("T") == []
    set_by(world, 0)
    world.run_timers()
    restart(world, "kill")
    world.run_timers()
    assert world.bodies("T") == [b"early bird"]  # by a clock that says that its time has passed
    assert came_at(world, b"soon", 30) == 20_000
    world.advance(3_570)
    assert world.bodies("T") == [b"early bird", b"soon"]
    assert came_at(world, b"delay", 30) == 3_600_000
    assert came_at(world, b"49", 60) == 3_600_000 + 49_000
    assert len(world.bodies("T")) == 53 and world.timers.pending == 0


@pytest.mark.parametrize("how", ["on", "kill"])
def test_a_timer_set_after_the_clock_was_set_back_survives_a_kill(world: World, how: str) -> None:
    """The last checkpoint is of a time that is still to come."""
    world.advance(7200)
    world.send("T", b"x", TIMER_DELAY_SEC="1")
    world.run_timers()
    world.advance(5)
    world.run_timers()
    world.store.flush.step()
    world.timers.checkpoints.step()
    set_by(world, -HOUR_MS)
    if how == "kill":
        restart(world, "kill")
    world.send("T", b"after", TIMER_DELAY_SEC="5")
    world.run_timers()
    restart(world, "kill")
    for _ in range(8):
        world.advance(1)
        world.run_timers()
    assert world.bodies("T") == [b"x", b"after"]


def test_a_legal_timer_is_not_taken_for_one_of_a_clock_that_was_ahead(world: World) -> None:
    set_by(world, TEN_YEARS_MS)
    world.send("T", b"old", TIMER_DELAY_SEC="5")
    world.run_timers()
    set_by(world, 0)
    world.run_timers()
    days = {b"delay": 20, b"time": 300}
    world.send("T", b"delay", TIMER_DELAY_SEC=str(20 * 86_400))
    world.send("T", b"time", TIMER_DELIVER_MS=str(START_MS + 300 * 86_400_000))
    came: dict[bytes, int] = {}
    for day in range(302):
        for _ in range(4):
            world.run_timers()
            for body in set(world.bodies("T")) - came.keys():
                came[body] = day
            world.advance(6 * 3600)
    assert came == {b"old": 0, **days}
    assert len(world.bodies("T")) == 3


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("ahead_ms", [HOUR_MS, TEN_YEARS_MS])
def test_what_fired_while_the_clock_was_ahead_does_not_fire_again_when_it_is_set_right(
    world: World, ahead_ms: int, how: str
) -> None:
    set_by(world, ahead_ms)
    for number in range(20):
        at_ms = world.clock.now_ms() + 300 + number * 100
        world.send("T", b"%d" % number, TIMER_DELIVER_MS=str(at_ms))
    for _ in range(14):
        world.run_timers()
        world.advance(0.1)
    world.store.flush.step()
    world.timers.checkpoints.step()
    fired = len(world.bodies("T"))
    assert 5 < fired < 15
    set_by(world, 0)
    world.run_timers()
    for _ in range(5):
        restart(world, how)
        world.run_timers()
        world.advance(1)
        world.send("Other", bytes(1000))
    end_ms = START_MS + HOUR_MS + 60_000
    world.advance((end_ms - world.clock.now_ms()) / 1000)
    world.run_timers()
    restart(world, how)
    world.advance(1)
    world.run_timers()
    assert sorted(world.bodies("T")) == sorted(b"%d" % number for number in range(20))


@pytest.mark.parametrize("how", ["on", "stop", "kill"])
def test_a_second_that_the_old_clock_has_begun_fires_once_when_the_time_of_day_reaches_it(
    world: World, how: str
) -> None:
    set_by(world, TEN_YEARS_MS)
    for number in range(4):
        world.send("T", b"%d" % number, TIMER_DELAY_SEC="5")
        world.advance(0.2)
    world.run_timers()
    set_by(world, 0)
    world.run_timers()
    while len(world.bodies("T")) < 2:  # the old clock is half-way through
        world.advance(0.1)
        world.run_timers()
    set_by(world, TEN_YEARS_MS + HOUR_MS)
    restart(world, how)
    for _ in range(30):
        world.run_timers()
        world.advance(0.1)
    restart(world, "kill")
    set_by(world, 0)
    for _ in range(30):
        world.run_timers()
        world.advance(0.5)
    assert sorted(world.bodies("T")) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("times", [12, 60])
def test_a_clock_that_is_set_back_many_times_delivers_nothing_twice(
    world: World, times: int, how: str
) -> None:
    sent = [b"%02d" % number for number in range(times)]
    for number, body in enumerate(sent):
        set_by(world, (times - number) * HOUR_MS)
        world.run_timers()
        world.send("T", body, TIMER_DELAY_SEC="1")
        for _ in range(3):
            world.run_timers()
            world.advance(0.5)
    assert world.bodies("T") == sent
    for _ in range(4):
        world.store.flush.step()
        world.timers.checkpoints.step()
        restart(world, how)
        world.run_timers()
        world.advance(1)
        world.send("Other", bytes(1000))
    for _ in range(times + 1):
        world.advance(3600)
        world.run_timers()
    assert world.bodies("T") == sent
