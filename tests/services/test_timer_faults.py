"""Timers on a disk that refuses or damages something."""

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest
from services.services_world import START_MS, World
from services.timer_world import deliver_at, run_until
from store.faulty_disk import Fault, FaultyDisk
from structlog.testing import capture_logs
from waiting import until

from aerobee.broker.services.redelivery.rounds import cancelled
from aerobee.broker.services.timers.timer_log import UNIT_SIZE, Unit
from aerobee.broker.services.timers.wheel import SLOT, SLOTS, Slot
from aerobee.broker.store.files.disk import DiskFile
from aerobee.broker.store.files.real_disk import RealFile
from aerobee.broker.store.results import PutStatus, RefusedPut
from aerobee.protocol.names import TIMER_TOPIC


def test_a_full_disk_delays_a_timer_and_loses_none(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        deliver_at(world, START_MS + 1_000, b"%d" % number)
    world.run_timers()
    put = world.store.put_accepted
    refused = RefusedPut(PutStatus.SERVICE_NOT_AVAILABLE, "the disk is full")
    monkeypatch.setattr(world.store, "put_accepted", lambda messages: [refused for _ in messages])
    world.advance(1)
    assert world.timers.step(world.clock.now_ms()) == world.clock.now_ms() + 100
    monkeypatch.setattr(
        world.store,
        "put_accepted",
        lambda messages: put(messages[:5]) + [refused for _ in messages[5:]],
    )
    world.timers.step(world.clock.now_ms())
    monkeypatch.undo()
    world.advance(0.1)
    world.run_timers()
    assert sorted(world.bodies("T")) == sorted(b"%d" % number for number in range(20))


def test_overdue_timers_that_cannot_be_stored_are_read_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        deliver_at(world, START_MS + 1_000 + 1_000 * (number % 2), b"%d" % number)
    world.advance(1.5)  # half of them are due before they are read
    refused = RefusedPut(PutStatus.SERVICE_NOT_AVAILABLE, "the disk is full")
    monkeypatch.setattr(world.store, "put_accepted", lambda messages: [refused for _ in messages])
    assert world.timers.step(world.clock.now_ms()) == world.clock.now_ms() + 100
    monkeypatch.undo()
    world.reopen_after_kill()
    world.run_timers()
    assert world.bodies("T") == [b"0", b"2", b"4"]
    world.advance(1)
    world.run_timers()
    assert world.bodies("T") == [b"0", b"2", b"4", b"1", b"3", b"5"]


def test_slots_of_the_wheel_that_a_disk_has_refused_are_as_before(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when all later writes fail, until the disk recovers."""
    wheel = world.timers.wheel
    now_s = START_MS // 1000
    wheel.put_all({now_s + 1: Slot(0, 0, 1), now_s + 2: Slot(52, 52, 1)})
    before = [wheel.get(now_s + number) for number in range(1, 5)]
    writes = [0]
    kind = type(wheel._file)
    write = kind.write

    def refuse_all_but_the_first(file: DiskFile, position: int, data: bytes) -> None:
        writes[0] += 1
        if writes[0] > 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        write(file, position, data)

    with monkeypatch.context() as patch:
        patch.setattr(kind, "write", refuse_all_but_the_first)
        with pytest.raises(OSError):
            wheel.put_all({now_s + number: Slot(0, 104, 9) for number in range(1, 5)})
        assert [wheel.get(now_s + number) for number in range(1, 5)] == before
    assert writes[0] == 2, "nothing is written while slots are taken back"
    wheel.sync()
    assert not wheel._unwritten
    assert [wheel.get(now_s + number) for number in range(1, 5)] == before


def test_a_sync_does_not_write_an_older_slot_over_a_newer_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync runs in a thread, while timers arrive."""
    wheel, now_s = world.timers.wheel, START_MS // 1000
    real = wheel._write
    old, new = Slot(0, 0, 1), Slot(0, 52, 2)
    seconds = (now_s + 1, now_s + 2)
    for second in seconds:
        wheel._unwritten[second % SLOTS] = SLOT.pack(second, *old, 0)
        wheel._marks[second % SLOTS] = 1
    putting: list[threading.Thread] = []

    def write(index: int, content: bytes) -> None:
        if not putting:
            putting.append(threading.Thread(target=wheel.put, args=(seconds[1], new)))
            putting[0].start()
            putting[0].join(0.2)  # it blocks on this write, or writes at once
        real(index, content)

    monkeypatch.setattr(wheel, "_write", write)
    wheel.sync()
    putting[0].join()
    assert [wheel.get(second) for second in seconds] == [old, new]


def test_a_sync_does_not_wait_for_what_is_written_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With new timers during each sync there would be no checkpoint, and no file could go."""
    syncs = []
    sync = RealFile.sync

    def set_one_more(file: RealFile) -> None:
        syncs.append(file.path)
        sync(file)
        if len(syncs) < 50:
            deliver_at(world, START_MS + 60_000, b"%d" % len(syncs))
            world.timers.step(world.clock.now_ms())

    deliver_at(world, START_MS + 60_000, b"0")
    world.run_timers()
    monkeypatch.setattr(RealFile, "sync", set_one_more)
    world.timers.log.sync()
    assert len(syncs) == 1
    world.timers.log.sync()
    assert len(syncs) == 2


def test_a_timer_is_noted_once_when_the_disk_refuses_a_part_of_the_wheel(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = START_MS + 5_500, START_MS + 65_500
    deliver_at(world, near, b"near")
    deliver_at(world, far, b"far")
    put = world.timers.wheel.put

    def refuse_far(second: int, slot: Slot) -> None:
        if second == far // 1000:
            raise OSError(errno.ENOSPC, "No space left on device")
        put(second, slot)

    monkeypatch.setattr(world.timers.wheel, "put", refuse_far)
    log_end = world.timers.log.end
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            world.timers.step(world.clock.now_ms())
        assert (world.timers.pending, world.timers.log.end) == (0, log_end)
    monkeypatch.undo()
    world.run_timers()
    assert world.timers.pending == 2
    assert run_until(world, START_MS + 70_000) == {b"near": near, b"far": far}
    assert world.timers.pending == 0


def test_an_overdue_timer_is_delivered_once_while_the_disk_refuses_those_that_wait(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver_at(world, START_MS + 1_000, b"due")
    deliver_at(world, START_MS + 3_000, b"soon")
    deliver_at(world, START_MS + 60_000, b"later")

    def refuse() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(world.timers.log, "write", refuse)
    for _ in range(3):  # "soon" becomes due meanwhile
        world.advance(1)
        with pytest.raises(OSError, match="No space"):
            world.timers.step(world.clock.now_ms())
    monkeypatch.undo()
    assert run_until(world, START_MS + 61_000)[b"later"] == START_MS + 60_000
    assert world.bodies("T") == [b"due", b"soon", b"later"]


def test_overdue_timers_that_were_stored_are_not_stored_again_with_those_that_were_not(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver_at(world, START_MS + 2_000, b"read first")
    deliver_at(world, START_MS + 1_000, b"due first")
    world.advance(3)
    put = world.store.put_accepted
    refused = RefusedPut(PutStatus.CREATE_MAPEDFILE_FAILED, "the log's file is full")
    monkeypatch.setattr(world.store, "put_accepted", lambda messages: [*put(messages[:1]), refused])
    world.timers.step(world.clock.now_ms())
    monkeypatch.undo()
    world.run_timers()
    assert world.bodies("T") == [b"due first", b"read first"]


def test_timers_whose_turn_ends_in_an_error_have_it_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        deliver_at(world, START_MS + 1_000 + number, b"%d" % number)
    world.run_timers()
    world.advance(2)
    read, calls = world.timers.log.read, []

    def fail_once(position: int) -> Unit | None:
        calls.append(position)
        if len(calls) == 8:  # five for the slot, then while they fire
            raise OSError(errno.EIO, "Input/output error")
        return read(position)

    monkeypatch.setattr(world.timers.log, "read", fail_once)
    with pytest.raises(OSError, match="Input/output"):
        world.run_timers()
    world.run_timers()
    assert world.bodies("T") == [b"%d" % number for number in range(5)]
    assert world.timers.pending == 0


@pytest.mark.parametrize("at", [0, 4])  # its size, its magic number
def test_a_damaged_record_keeps_no_other_timer_from_its_time(world: World, at: int) -> None:
    for number in range(5):
        deliver_at(world, START_MS + 1_000 + number, b"%d" % number)
    entry = world.store.queue_entry(TIMER_TOPIC, 0, 2)
    assert entry is not None
    world.damage(entry[0], at, b"\xff\xff\xff\xff")
    with capture_logs() as logs:
        came = run_until(world, START_MS + 3_000)
    assert set(came) == {b"0", b"1", b"3", b"4"}
    assert any(log["log_level"] == "error" for log in logs)


@pytest.mark.parametrize("clean", [False, True])
def test_timers_behind_a_damaged_unit_of_the_timer_log_are_read_again(
    world: World, clean: bool
) -> None:
    deliver_at(world, START_MS + 500, b"fired")
    for number in range(10):
        deliver_at(world, START_MS + 5_000 + 700 * number, b"%d" % number)
    run_until(world, START_MS + 2_500)
    world.store.flush.step()
    world.timers.checkpoints.step()
    if clean:
        world.stop()
    else:
        world.kill()
    with (world.root / "timerlog" / f"{0:020d}").open("r+b") as file:
        file.seek(4 * UNIT_SIZE)
        file.write(b"\xff\xff")
    world.open()
    came = run_until(world, START_MS + 15_000)
    assert came == {b"%d" % n: START_MS + 5_000 + 700 * n for n in range(10)}
    assert world.timers.pending == 0


async def test_a_queue_that_cannot_be_read_for_a_moment_does_not_end_the_checkpoints(
    tmp_path: Path,
) -> None:
    disk = FaultyDisk()
    world = World(tmp_path / "store", disk=disk)
    deliver_at(world, START_MS + 1_000, b"1")
    run_until(world, START_MS + 3_000)
    deliver_at(world, START_MS + 60_000, b"2")  # it has not been read: the queue is asked
    world.store.flush.step()
    disk.faults = [Fault("read", TIMER_TOPIC, times=1)]
    checkpoints = world.timers.checkpoints
    running = asyncio.create_task(checkpoints.run(0))
    checkpoints.dirty.set()
    await until(lambda: checkpoints.point.read_ms > START_MS or running.done())
    assert disk.faults[0].raised == 1 and not running.done()
    await cancelled([running])
    world.close_quietly()


async def test_a_task_that_has_failed_keeps_no_stop_from_going_on() -> None:
    async def fail() -> None:
        raise ValueError("a mistake")

    async def wait() -> None:
        await asyncio.Event().wait()

    tasks = [asyncio.create_task(fail(), name="one"), asyncio.create_task(wait())]
    await asyncio.sleep(0)
    with capture_logs() as lines:
        await cancelled(tasks)
    assert [(line["part"], line["log_level"]) for line in lines] == [("one", "error")]
    assert not tasks
