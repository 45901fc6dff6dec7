"""Timers whose messages stand on a bad sector: they stay pending, and all others are on time."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from services.services_world import START_MS, HandClock, World
from services.timer_world import deliver_at, run_until
from store.faulty_disk import SECTOR, FaultyDisk
from structlog.testing import capture_logs

from aerobee.broker.services.timers.timer_log import UNIT_SIZE
from aerobee.broker.services.timers.unread import RETRY_MAX_MS
from aerobee.protocol.names import TIMER_TOPIC

BIG = b"." * 3 * SECTOR  # so that no two messages share a sector


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def world(tmp_path: Path, disk: FaultyDisk) -> Iterator[World]:
    world = World(tmp_path / "store", HandClock(), disk=disk)
    yield world
    world.close_quietly()


def spoil(world: World, disk: FaultyDisk, number: int) -> None:
    """The sector under the middle of a message of the timer topic."""
    entry = world.store.queue_entry(TIMER_TOPIC, 0, number)
    assert entry is not None
    disk.bad_sectors.add((f"commitlog/{0:020d}", (entry[0] + entry[1] // 2) // SECTOR))


def set_timers(world: World, count: int) -> list[bytes]:
    """One in each second from the second one on."""
    bodies = [b"%d" % number + BIG for number in range(count)]
    for number, body in enumerate(bodies):
        deliver_at(world, START_MS + 2000 + 1000 * number, body)
    world.run_timers()
    return bodies


def test_others_are_in_time_and_one_comes_when_it_can_be_read_again(
    world: World, disk: FaultyDisk
) -> None:
    bodies = set_timers(world, 5)
    spoil(world, disk, 1)
    with capture_logs() as lines:
        came = run_until(world, START_MS + 90_000)
    assert came == {body: START_MS + 2000 + 1000 * n for n, body in enumerate(bodies) if n != 1}
    assert (world.timers.pending, world.timers.unread.count) == (1, 1)
    said = [line for line in lines if line["log_level"] == "error"]
    assert 1 <= len(said) <= 2, "once a minute"
    assert "cannot be read" in said[0]["event"] and "Input/output error" in said[0]["reason"]
    assert said[0]["path"].endswith(f"{0:020d}")
    disk.bad_sectors.clear()
    assert list(run_until(world, START_MS + 90_000 + RETRY_MAX_MS)) == [bodies[1]]
    assert (world.timers.pending, world.timers.unread.count) == (0, 0)


def test_it_is_tried_less_and_less_often(world: World, disk: FaultyDisk) -> None:
    set_timers(world, 1)
    spoil(world, disk, 0)
    end = world.timers.log.end
    run_until(world, START_MS + 600_000)
    tries = (world.timers.log.end - end) // 52
    assert 10 <= tries <= 17


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_start_knows_it(world: World, disk: FaultyDisk, end: str) -> None:
    bodies = set_timers(world, 3)
    spoil(world, disk, 1)
    assert set(run_until(world, START_MS + 30_000)) == {bodies[0], bodies[2]}
    for _ in range(2):
        if end == "stop":
            world.stop()
        else:
            world.timers.checkpoints.step()
            world.kill()
        world.open()
        assert world.timers.pending == 1
        assert run_until(world, world.clock.now_ms() + 10_000) == {}
    disk.bad_sectors.clear()
    assert set(run_until(world, world.clock.now_ms() + RETRY_MAX_MS)) == {bodies[1]}
    assert len(world.bodies("T")) == 3


def test_a_start_after_a_kill_without_a_checkpoint_delivers_each_once(
    world: World, disk: FaultyDisk
) -> None:
    bodies = set_timers(world, 3)
    spoil(world, disk, 1)
    run_until(world, START_MS + 30_000)
    world.reopen_after_kill()
    disk.bad_sectors.clear()
    run_until(world, START_MS + 30_000 + RETRY_MAX_MS)
    assert sorted(world.bodies("T")) == bodies


def recall(world: World, at_ms: int, body: bytes) -> None:
    key = f"T+{body.hex()}"
    world.send("T", BIG, TIMER_DELIVER_MS=str(at_ms), TIMER_DEL_UNIQKEY=key, UNIQ_KEY="recall")


def test_a_recalled_one_does_not_come_when_it_can_be_read_again(
    world: World, disk: FaultyDisk
) -> None:
    bodies = set_timers(world, 3)
    recall(world, START_MS + 3000, bodies[1])
    world.run_timers()
    spoil(world, disk, 1)
    run_until(world, START_MS + 30_000)
    world.reopen_after_kill()
    disk.bad_sectors.clear()
    run_until(world, START_MS + 30_000 + RETRY_MAX_MS)
    assert world.bodies("T") == [bodies[0], bodies[2]]
    assert world.timers.unread.count == 0


def test_timers_of_a_second_whose_recall_cannot_be_read_wait_for_that(
    world: World, disk: FaultyDisk
) -> None:
    bodies = set_timers(world, 3)
    deliver_at(world, START_MS + 2999, b"same second")
    recall(world, START_MS + 3000, bodies[1])
    world.run_timers()
    spoil(world, disk, 4)
    assert set(run_until(world, START_MS + 30_000)) == {bodies[0], bodies[2]}
    disk.bad_sectors.clear()
    assert set(run_until(world, START_MS + 30_000 + RETRY_MAX_MS)) == {b"same second"}


def test_timers_fire_while_new_ones_cannot_be_read(world: World, disk: FaultyDisk) -> None:
    bodies = set_timers(world, 3)
    deliver_at(world, START_MS + 60_000, b"new" + BIG)
    spoil(world, disk, 3)
    world.store.reports.device_failed = True  # nothing is read through the map
    came: set[bytes] = set()
    for _ in range(8):
        world.advance(1)
        with pytest.raises(OSError, match="Input/output"):
            world.run_timers()
        world.dispatch()
        came = set(world.bodies("T"))
    assert came == set(bodies)
    disk.bad_sectors.clear()
    assert set(run_until(world, START_MS + 61_000)) == {b"new" + BIG}


def test_the_list_shows_the_others(world: World, disk: FaultyDisk) -> None:
    set_timers(world, 3)
    spoil(world, disk, 1)
    entries, _ = world.timers.page("", 10)
    assert len(entries) == 2


def test_a_timer_that_was_due_before_it_could_be_read_fires_where_the_timer_log_is_not(
    world: World, disk: FaultyDisk
) -> None:
    """On a replica that takes over from a broker with a bad sector, for example."""
    [body] = set_timers(world, 1)
    world.advance(0.1)
    deliver_at(world, START_MS + 3000, b"later" + BIG)
    spoil(world, disk, 1)
    while world.clock.now_ms() < START_MS + 8000:
        world.advance(0.1)
        with pytest.raises(OSError, match="Input/output"):
            world.timers.step(world.clock.now_ms())
        world.dispatch()
    assert world.bodies("T") == [body]
    world.store.flush.step()
    world.timers.checkpoints.step()
    assert world.timers.checkpoints.point.read_ms > START_MS + 3000
    world.kill()
    disk.bad_sectors.clear()
    shutil.rmtree(world.root / "timerlog")
    world.open()
    world.run_timers()
    assert world.bodies("T") == [body, b"later" + BIG]


def test_a_file_of_the_timer_log_whose_end_cannot_be_read_holds_up_no_timer(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    world = World(tmp_path / "files", disk=disk, mapped_file_size_timer_log=4096)
    for number in range(100):
        deliver_at(world, START_MS + 1000, b"%d" % number)
    assert len(run_until(world, START_MS + 4000)) == 100
    last = UNIT_SIZE * ((4096 - 16) // UNIT_SIZE - 1)  # whether the file may go is asked of it
    disk.bad_sectors.add((f"timerlog/{0:020d}", last // SECTOR))
    deliver_at(world, START_MS + 6000, b"later")
    assert run_until(world, START_MS + 7000) == {b"later": START_MS + 6000}
    world.close_quietly()
