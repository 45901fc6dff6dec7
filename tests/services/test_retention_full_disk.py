"""Retention on a disk that is nearly full."""

from pathlib import Path

import pytest
from services.retention_world import (
    FILE_SIZE,
    HOUR_MS,
    deliver_at,
    end,
    fill,
    forced_steps,
    full_world,
    half,
    run_until,
    used,
    work,
)
from services.services_world import START_MS, World
from store.faulty_disk import SECTOR
from structlog.testing import capture_logs

from aerobee.broker.store.refusals import Cause


@pytest.mark.parametrize("percent", [86, 91])
def test_forced_cleaning_carries_what_waits(tmp_path: Path, percent: int) -> None:
    world, disk = full_world(tmp_path)
    due_ms = START_MS + 2 * HOUR_MS
    deliver_at(world, due_ms, b"timer")
    world.send("T", b"level", queue_id=1, DELAY="18")
    known = half(world)
    fill(world)
    work(world)
    used(world, disk, percent)
    forced_steps(world, 15)
    assert world.store.min_physical_offset > 0
    assert (Cause.DISK_FULL in world.store.refusals) == (percent > 90)
    keepers = world.store.clean.keepers
    assert keepers.carried == {"delayed": 1, "half": 1, "timer": 1}
    assert set(keepers.lost.values()) == {0}
    used(world, disk, 50)
    world.store.clean.measure()
    end(world, known)
    came = run_until(world, due_ms + 60_000)
    assert sorted(came) == [(b"level", due_ms), (b"timer", due_ms)]
    world.close_quietly()


def fill_with_timers(world: World, files: int) -> int:
    count = 0
    end = files * FILE_SIZE + 1000
    while world.store.max_physical_offset < end:
        body = b"%06d" % count + bytes(4000)
        due_ms = START_MS + 2 * HOUR_MS
        key = f"k{count}"
        world.send("T", body, queue_id=1, TIMER_DELIVER_MS=str(due_ms), UNIQ_KEY=key, KEYS=key)
        count += 1
    return count


def test_a_log_full_of_timers_is_not_written_round_and_round(tmp_path: Path) -> None:
    world, disk = full_world(tmp_path)
    count = fill_with_timers(world, 6)
    work(world)
    used(world, disk, 86)
    with capture_logs() as lines:
        forced_steps(world, 200)
    kept = [line for line in lines if "an expired file is kept" in line["event"]]
    assert kept and "too little would be freed" in kept[0]["reason"]
    assert world.timers.keeper.carried < count
    assert world.store.clean.keepers.lost["timer"] == 0
    assert len(run_until(world, START_MS + 3 * HOUR_MS)) == count
    world.close_quietly()


def test_what_the_disk_forces_out_is_named_after_sends_are_refused(tmp_path: Path) -> None:
    world, disk = full_world(tmp_path)
    count = fill_with_timers(world, 6)
    work(world)
    used(world, disk, 86)
    forced_steps(world, 200)
    before = world.store.min_physical_offset
    assert world.store.clean.keepers.lost["timer"] == 0
    used(world, disk, 91)
    with capture_logs() as lines:
        while world.store.min_physical_offset == before:
            forced_steps(world, 1)
    used(world, disk, 50)
    refused = [at for at, line in enumerate(lines) if "puts are refused" in line["event"]]
    named = [at for at, line in enumerate(lines) if "is removed with its file" in line["event"]]
    assert refused and named and refused[0] < named[0]
    lost = world.store.clean.keepers.lost["timer"]
    assert lost == len(named) > 0
    for at in named:
        line = lines[at]
        assert line["topic"] == "T" and line["keys"] == line["unique_key"] != ""
        assert len(line["message_id"]) == 32
    world.store.clean.measure()
    came = {body[:6] for body, _ in run_until(world, START_MS + 3 * HOUR_MS)}
    gone = {b"%06d" % int(lines[at]["keys"][1:]) for at in named}
    assert not came & gone and len(came) + len(gone) == count
    assert world.timers.pending == 0
    world.close_quietly()


@pytest.mark.parametrize("kind", ["half", "delayed", "timer"])
def test_a_pending_message_on_a_bad_sector_does_not_keep_the_disk_full(
    tmp_path: Path, kind: str
) -> None:
    world, disk = full_world(tmp_path)
    world.send("filler", bytes(SECTOR))
    place = world.store.max_physical_offset
    body = b"unreadable" + bytes(3 * SECTOR)
    if kind == "half":
        half(world, body)
    elif kind == "delayed":
        world.send("T", body, queue_id=1, DELAY="18")
    else:
        deliver_at(world, START_MS + 2 * HOUR_MS, body)
    fill(world)
    work(world)
    world.transactions.read_halves()
    disk.bad_sectors.add((f"commitlog/{0:020d}", place // SECTOR + 2))
    used(world, disk, 86)
    forced_steps(world, 50)
    assert world.store.min_physical_offset == 0, "the disk is not full yet"
    used(world, disk, 91)
    forced_steps(world, 50)
    assert world.store.min_physical_offset > 0
    world.close_quietly()


def test_a_put_that_fails_keeps_the_file(tmp_path: Path) -> None:
    world, disk = full_world(tmp_path)
    deliver_at(world, START_MS + 2 * HOUR_MS, b"kept")
    fill(world)
    work(world)
    world.store.refusals.set(Cause.SYNC_FAILED, "the disk has failed")
    used(world, disk, 86)
    with capture_logs() as lines:
        forced_steps(world, 5)
    assert world.store.min_physical_offset == 0
    assert [line["reason"] for line in lines if "an expired file is kept" in line["event"]] == [
        "the disk has failed"
    ]
    world.store.refusals.clear(Cause.SYNC_FAILED)
    forced_steps(world, 15)
    assert world.store.min_physical_offset == FILE_SIZE
    world.close_quietly()
