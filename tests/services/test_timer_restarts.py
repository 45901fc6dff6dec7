"""Timers over stops, kills and lost files."""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from services.services_world import START_MS, World
from services.timer_world import cut_commitlog, deliver_at, run_until
from store.faulty_disk import Fault, FaultyDisk
from structlog.testing import capture_logs

from aerobee.broker.services.timers.timer_log import UNIT_SIZE
from aerobee.protocol.names import TIMER_TOPIC


@pytest.mark.parametrize("clean", [True, False])
def test_pending_timers_survive_a_stop_and_a_kill_and_fire_once(world: World, clean: bool) -> None:
    for number in range(200):
        deliver_at(world, START_MS + 50 * number + 10, b"%d" % number)
    before = run_until(world, START_MS + 4_250)
    if clean:
        world.stop()
        world.open()
    else:
        world.reopen_after_kill()
    assert world.timers.pending == 200 - len(before)
    after = run_until(world, START_MS + 12_000)
    assert len(before) + len(after) == 200 and not before.keys() & after.keys()


def test_a_start_after_a_stop_reads_no_log_for_copies(world: World) -> None:
    deliver_at(world, START_MS + 1_000, b"1")
    run_until(world, START_MS + 3_000)
    end = world.store.max_physical_offset
    world.stop()
    world.open()
    assert world.timers.checkpoints.mark == end


def test_a_stop_whose_last_sync_fails_counts_no_timer_as_delivered(tmp_path: Path) -> None:
    disk = FaultyDisk()
    world = World(tmp_path / "store", disk=disk)
    deliver_at(world, START_MS + 1_000, b"1")
    world.run_timers()
    world.store.flush.step()
    world.timers.checkpoints.step()
    end = world.store.flushed_offset
    assert list(run_until(world, START_MS + 3_000)) == [b"1"]
    disk.fail_sync_of = "commitlog"
    world.stop()
    disk.fail_sync_of = ""
    cut_commitlog(world.root, end)  # it was not on disk
    world.open()
    assert list(run_until(world, START_MS + 6_000)) == [b"1"]
    world.close_quietly()


def test_a_stop_goes_on_when_the_disk_cannot_say_how_far_timers_are(tmp_path: Path) -> None:
    disk = FaultyDisk()
    world = World(tmp_path / "store", disk=disk)
    deliver_at(world, START_MS + 1_000, b"1")
    run_until(world, START_MS + 3_000)
    deliver_at(world, START_MS + 60_000, b"2")  # it has not been read: the queue is asked
    disk.faults = [Fault("read", TIMER_TOPIC, times=1)]
    world.stop()
    assert disk.faults[0].raised == 1
    world.open()
    assert list(run_until(world, START_MS + 61_000)) == [b"2"]
    world.close_quietly()


def test_a_kill_after_any_step_neither_loses_nor_doubles_a_timer(world: World) -> None:
    chance = random.Random(3)
    times = {b"%d" % number: START_MS + chance.randint(1, 8_000) for number in range(300)}
    waiting = list(times)
    came: dict[bytes, int] = {}
    while world.clock.now_ms() < START_MS + 9_000:
        for body in waiting[:10]:
            deliver_at(world, times[body], body)
        del waiting[:10]
        came |= run_until(world, world.clock.now_ms() + chance.choice([30, 100, 270]), 90)
        if chance.random() < 0.5:
            world.timers.checkpoints.step()
        world.reopen_after_kill()
    assert sorted(world.bodies("T")) == sorted(times)


def test_a_kill_while_a_start_cuts_the_timer_log_takes_nothing_from_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cut truncates the last file and extends it again: in between it is short."""

    class Killed(BaseException):
        pass

    for number in range(300):
        deliver_at(world, START_MS + 20_000 + 50 * number, b"%d" % number)
    world.run_timers()
    world.store.flush.step()
    world.timers.checkpoints.step()
    real, cuts = os.ftruncate, 0

    def stop_at_the_second(descriptor: int, length: int) -> None:
        nonlocal cuts
        if "timerlog" in os.readlink(f"/proc/self/fd/{descriptor}"):
            cuts += 1
            if cuts == 2:
                raise Killed
        real(descriptor, length)

    world.kill()
    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", stop_at_the_second)
        with pytest.raises(Killed):
            world.open()
    world.kill()
    (file,) = (world.root / "timerlog").iterdir()
    assert file.stat().st_size == 300 * UNIT_SIZE
    with capture_logs() as logs:
        world.open()
    assert not any("gone or damaged" in entry["event"] for entry in logs)
    assert world.timers.pending == 300
    assert len(run_until(world, START_MS + 36_000)) == 300


def test_timers_that_came_due_while_the_broker_was_down_fire_at_once(world: World) -> None:
    deliver_at(world, START_MS + 2_000, b"due")
    deliver_at(world, START_MS + 90_000_000, b"later")
    world.run_timers()
    world.kill()
    world.advance(86_400)
    world.open()
    world.run_timers()
    assert world.bodies("T") == [b"due"] and world.timers.pending == 1


def test_a_message_that_was_not_read_before_the_kill_is_read_after(world: World) -> None:
    deliver_at(world, START_MS + 2_000, b"unread")  # no step: it is only in the topic
    world.reopen_after_kill()
    assert run_until(world, START_MS + 3_000) == {b"unread": START_MS + 2_000}


def test_a_lost_timer_log_is_read_again_from_the_topic(world: World) -> None:
    deliver_at(world, START_MS + 1_000, b"fired")
    deliver_at(world, START_MS + 50_000, b"pending")
    run_until(world, START_MS + 2_000)
    world.stop()
    for path in (world.root / "timerlog").iterdir():
        path.unlink()
    world.open()
    assert run_until(world, START_MS + 51_000) == {b"pending": START_MS + 50_000}


@pytest.mark.parametrize("end", [World.stop, World.kill])
def test_a_far_timer_that_has_rolled_fires_once_though_the_timer_log_is_lost(
    tmp_path: Path, end: Callable[[World], None]
) -> None:
    world = World(tmp_path / "store", timer_roll_window_slot=60)
    deliver_at(world, START_MS + 400_000, b"far")
    deliver_at(world, START_MS + 410_000, b"recalled")
    recall: dict[str, Any] = {"TIMER_DEL_UNIQKEY": f"T+{b'recalled'.hex()}", "UNIQ_KEY": "r"}
    world.send("T", b"", TIMER_DELIVER_MS=str(START_MS + 410_000), **recall)
    assert run_until(world, START_MS + 130_000, 1000) == {}
    assert len(world.read(TIMER_TOPIC)) > 6, "each has rolled twice"
    world.timers.checkpoints.save(world.timers._point_now())
    end(world)
    for path in (world.root / "timerlog").iterdir():
        path.unlink()
    world.open()
    run_until(world, START_MS + 420_000, 1000)
    assert world.bodies("T") == [b"far"]
    world.close_quietly()


def test_units_whose_records_the_store_has_lost_are_cut_away(world: World) -> None:
    deliver_at(world, START_MS + 5_000, b"kept")
    world.run_timers()
    end = world.store.max_physical_offset
    deliver_at(world, START_MS + 5_000, b"lost")
    world.run_timers()
    unit_end = world.timers.log.end
    world.kill()
    cut_commitlog(world.root, end)
    world.open()
    assert world.store.max_physical_offset == end
    assert world.timers.log.end == unit_end - 52 and world.timers.pending == 1
    deliver_at(world, START_MS + 5_500, b"new")  # where the lost one was
    came = run_until(world, START_MS + 7_000)
    assert came == {b"kept": START_MS + 5_000, b"new": START_MS + 5_500}


def test_what_fired_and_was_lost_with_the_logs_end_fires_again(world: World) -> None:
    deliver_at(world, START_MS + 1_000, b"x")
    world.run_timers()
    world.timers.checkpoints.step()
    end = world.store.max_physical_offset
    run_until(world, START_MS + 1_500)
    world.kill()
    cut_commitlog(world.root, end)  # the delivered message never reached the disk
    world.open()
    world.run_timers()
    assert world.bodies("T") == [b"x"]


def test_a_timer_set_right_after_a_restart_is_not_late(world: World) -> None:
    deliver_at(world, START_MS + 100, b"before")
    world.run_timers()
    world.advance(0.15)
    world.run_timers()
    world.stop()
    world.open()
    deliver_at(world, START_MS + 300, b"after")
    assert run_until(world, START_MS + 400, 10) == {b"after": START_MS + 300}
