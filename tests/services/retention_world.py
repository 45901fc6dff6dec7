"""A store with small files, and its cleaning step by step."""

import os
from pathlib import Path
from typing import Any

from services.services_world import HandClock, World
from store.faulty_disk import FaultyDisk

from aerobee.broker.services.transactions.service import EndRequest
from aerobee.broker.store.files.disk import DiskSpace

HOUR_MS = 3_600_000
FILE_SIZE = 256 << 10
GB = 1 << 30


def small_world(root: Path, **more: Any) -> World:
    return World(root / "store", log_file_size=FILE_SIZE, file_reserved_time=24, **more)


def fill(world: World, files: int = 1) -> None:
    """Append `files` more files of the log."""
    end = (world.store.max_physical_offset // FILE_SIZE + files) * FILE_SIZE
    while world.store.max_physical_offset <= end:
        world.send("filler", bytes(8 << 10))


def work(world: World) -> None:
    """The background work beside the cleaning."""
    world.store.flush.step()
    world.store.queue_flush.step(thorough=True)
    world.run_timers()
    world.timers.checkpoints.step()


def clean_step(world: World) -> None:
    world.store.clean.trigger()
    world.store.clean.step()
    work(world)


def clean(world: World, below: int) -> None:
    """Remove the files that end at or before an offset: all are old, by the clock's time."""
    for _ in range(200):
        if world.store.min_physical_offset >= below:
            return
        clean_step(world)
    raise AssertionError(f"{world.store.min_physical_offset} and not {below}")


def deliver_at(world: World, at_ms: int, body: bytes, **more: str) -> None:
    world.send("T", body, queue_id=1, TIMER_DELIVER_MS=str(at_ms), UNIQ_KEY=body.hex(), **more)


def run_until(world: World, end_ms: int, step_ms: int = 60_000) -> list[tuple[bytes, int]]:
    """Let time pass; what was delivered to topic T, queue 1, and when."""
    assert isinstance(world.clock, HandClock)
    came: list[tuple[bytes, int]] = []
    while world.clock.at_ms < end_ms:
        world.clock.at_ms = min(end_ms, world.clock.at_ms + step_ms)
        before = world.store.max_offset("T", 1)
        world.run_timers()
        world.run_schedule()
        for message in world.read("T", 1, start=before):
            came.append((bytes(message.body), world.clock.at_ms))
    return came


# --- transactions


def half(world: World, body: bytes = b"half") -> tuple[int, int]:
    """A half message; its queue offset and physical offset, as its producer knows them."""
    result = world.send(
        "T", body, queue_id=1, TRAN_MSG="true", PGROUP="g", UNIQ_KEY=body.hex(), KEYS="k1"
    )
    return result.queue_offset, result.physical_offset


def end(world: World, known: tuple[int, int], commit: bool = True, key: bytes = b"half") -> None:
    assert world.transactions.end(EndRequest("g", *known, commit, key.hex())).ok
    world.dispatch()


# --- a disk that is nearly full


def full_world(root: Path) -> tuple[World, FaultyDisk]:
    disk = FaultyDisk()
    disk.reported = DiskSpace(100 * GB, 50 * GB)
    return small_world(root, disk=disk, disk_reserved_bytes=0), disk


def used(world: World, disk: FaultyDisk, percent: int) -> None:
    """All files are new, the disk is `percent` full."""
    disk.reported = DiskSpace(100 * GB, (100 - percent) * GB)
    now_s = world.clock.now_ms() / 1000
    for file in world.store.commit_log.files.files:
        os.utime(file.path, (now_s, now_s))


def forced_steps(world: World, count: int) -> None:
    for _ in range(count):
        world.store.clean.step()
        work(world)
