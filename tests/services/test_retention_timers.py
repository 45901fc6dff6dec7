"""Timers whose record is in a file that retention removes are carried to a newer one."""

from pathlib import Path

import pytest
from services.retention_world import (
    FILE_SIZE,
    HOUR_MS,
    clean,
    clean_step,
    deliver_at,
    fill,
    forced_steps,
    full_world,
    run_until,
    small_world,
    used,
    work,
)
from services.services_world import START_MS, HandClock, World
from store.faulty_disk import SECTOR

from aerobee.broker.services.timers.moves_journal import Journal, Move
from aerobee.broker.store.files.real_disk import RealDisk
from aerobee.protocol.files import properties as props
from aerobee.protocol.files.record import decode_record
from aerobee.protocol.names import TIMER_TOPIC

# --- timers


def test_a_timer_outlives_the_file_that_holds_it(tmp_path: Path) -> None:
    world = small_world(tmp_path)
    due_ms = START_MS + 30 * HOUR_MS
    deliver_at(world, due_ms, b"far", KEYS="k1", TAGS="red", mine="yes")
    deliver_at(world, START_MS + 2 * HOUR_MS, b"near")
    fill(world, 2)
    work(world)
    clean(world, FILE_SIZE)
    assert world.timers.pending == 2
    assert run_until(world, due_ms + 60_000) == [
        (b"near", START_MS + 2 * HOUR_MS),
        (b"far", due_ms),
    ]
    (message,) = [each for each in world.read("T", 1) if each.body == b"far"]
    found = message.property_map()
    assert (found["KEYS"], found["TAGS"], found["mine"]) == ("k1", "red", "yes")
    assert found["UNIQ_KEY"] == b"far".hex()
    assert props.TIMER_CARRIED_FROM not in found
    assert message.born_timestamp == START_MS
    assert world.timers.pending == 0
    world.close_quietly()


def test_a_timer_is_carried_from_file_to_file(tmp_path: Path) -> None:
    world = small_world(tmp_path)
    due_ms = START_MS + 2 * HOUR_MS
    deliver_at(world, due_ms, b"often")
    for number in range(1, 5):
        fill(world)
        work(world)
        clean(world, number * FILE_SIZE)
    world.reopen_after_kill()
    assert world.timers.pending == 1
    assert run_until(world, due_ms + 60_000) == [(b"often", due_ms)]
    world.close_quietly()


@pytest.mark.parametrize("recall_first", [True, False])
def test_a_timer_that_was_carried_can_be_recalled(tmp_path: Path, recall_first: bool) -> None:
    world = small_world(tmp_path)
    due_ms = START_MS + 2 * HOUR_MS

    def recall() -> None:
        world.send("T", b"0", TIMER_DELIVER_MS=str(due_ms), TIMER_DEL_UNIQKEY=b"no".hex())

    deliver_at(world, due_ms, b"no")
    deliver_at(world, due_ms, b"yes")
    if recall_first:
        recall()
    fill(world)
    work(world)
    clean(world, FILE_SIZE)
    if not recall_first:
        recall()
    assert run_until(world, due_ms + 60_000) == [(b"yes", due_ms)]
    world.close_quietly()


def test_timers_come_once_wherever_a_kill_interrupts_their_being_carried(tmp_path: Path) -> None:
    due_ms = START_MS + 2 * HOUR_MS
    bodies = [b"%d" % number for number in range(100)]  # more than one piece
    for steps in range(0, 14, 2):
        world = small_world(tmp_path / str(steps))
        for number, body in enumerate(bodies):
            deliver_at(world, due_ms + 1000 * number, body)
        fill(world)
        work(world)
        for _ in range(steps):
            clean_step(world)
        world.reopen_after_kill()
        world.run_timers()
        assert world.timers.pending == len(bodies), steps
        clean(world, FILE_SIZE)
        assert isinstance(world.clock, HandClock)
        world.clock.at_ms = due_ms - 1000
        came = run_until(world, due_ms + 100_000, 1000)
        assert came == [(body, due_ms + 1000 * at) for at, body in enumerate(bodies)], steps
        world.close_quietly()


def test_a_kill_before_the_copies_are_read_makes_no_second_timer(tmp_path: Path) -> None:
    world = small_world(tmp_path)
    due_ms = START_MS + 2 * HOUR_MS
    deliver_at(world, due_ms, b"one")
    fill(world)
    work(world)
    for _ in range(4):  # without the background work
        world.store.clean.trigger()
        world.store.clean.step()
    assert world.timers.keeper.carried == 1
    world.reopen_after_kill()
    clean(world, FILE_SIZE)
    assert run_until(world, due_ms + 60_000) == [(b"one", due_ms)]
    world.close_quietly()


def test_a_torn_unit_is_mended_from_the_journal(tmp_path: Path) -> None:
    world = small_world(tmp_path)
    due_ms = START_MS + 2 * HOUR_MS
    deliver_at(world, due_ms, b"torn")
    fill(world)
    work(world)
    clean(world, FILE_SIZE)
    path = world.root / "config" / "timerMoves"
    (move,) = Journal(str(path), RealDisk()).read()
    unit = world.timers.log.read(move.position)
    assert unit is not None and unit.physical_offset == move.offset
    world.timers.log.repoint(unit, 0x7777_0000_0000, move.size)
    world.reopen_after_kill()
    assert not path.exists()
    assert run_until(world, due_ms + 60_000) == [(b"torn", due_ms)]
    world.close_quietly()


def test_a_journal_that_was_not_written_whole_is_left_alone(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "config" / "moves"), RealDisk())
    moves = [Move(1, 2, 3, 4, 5, 6), Move(7, 8, 9, 10, 11, 12)]
    journal.write(moves)
    assert journal.read() == moves
    path = tmp_path / "config" / "moves"
    data = path.read_bytes()
    for end in range(len(data)):
        path.write_bytes(data[:end])
        assert journal.read() == []


def test_a_timer_log_that_is_lost_is_read_again_with_the_copies(tmp_path: Path) -> None:
    world = small_world(tmp_path)
    due_ms = START_MS + 2 * HOUR_MS
    deliver_at(world, due_ms, b"carried")
    fill(world)
    deliver_at(world, due_ms, b"there")
    fill(world)
    work(world)
    clean(world, FILE_SIZE)
    world.stop()
    for path in (world.root / "timerlog").iterdir():
        path.unlink()
    world.open()
    came = run_until(world, due_ms + 60_000)
    assert sorted(came) == [(b"carried", due_ms), (b"there", due_ms)]
    world.close_quietly()


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_timer_that_was_carried_and_has_rolled_is_read_again_once(
    tmp_path: Path, is_removed: bool
) -> None:
    """Its first record may still exist, beside the copy and the records it rolled to."""
    world = small_world(tmp_path, timer_roll_window_slot=600)
    due_ms = START_MS + 2 * HOUR_MS
    deliver_at(world, due_ms, b"far")
    fill(world)
    work(world)
    if is_removed:
        clean(world, FILE_SIZE)
    else:
        while (unit := world.timers.log.read(0)) and unit.physical_offset < FILE_SIZE:
            clean_step(world)
    assert (world.store.min_physical_offset > 0) == is_removed
    run_until(world, START_MS + HOUR_MS)
    work(world)
    world.stop()
    for path in (world.root / "timerlog").iterdir():
        path.unlink()
    world.open()
    assert run_until(world, due_ms + 60_000) == [(b"far", due_ms)]
    world.close_quietly()


def test_a_file_of_the_timer_log_stays_while_units_in_it_point_to_copies(tmp_path: Path) -> None:
    world = small_world(tmp_path, mapped_file_size_timer_log=4096)
    due_ms = START_MS + 2 * HOUR_MS
    deliver_at(world, due_ms, b"last")
    for number in range(200):
        deliver_at(world, START_MS + 60_000, b"%d" % number)
    fill(world)
    work(world)
    assert len(list((world.root / "timerlog").iterdir())) == 3
    clean(world, FILE_SIZE)
    assert len(run_until(world, START_MS + HOUR_MS)) == 200
    fill(world)
    clean(world, 2 * FILE_SIZE)
    deliver_at(world, world.clock.now_ms() + 60_000, b"more")
    assert [body for body, _ in run_until(world, due_ms + 60_000)] == [b"more", b"last"]
    work(world)
    deliver_at(world, world.clock.now_ms() + 60_000, b"end")
    run_until(world, due_ms + 300_000)
    assert len(list((world.root / "timerlog").iterdir())) == 1  # and goes when none does
    world.close_quietly()


def test_the_units_of_copies_are_none_that_a_java_broker_would_set_again(tmp_path: Path) -> None:
    """It continues reading the topic after the record of the timer log's last unit."""
    world = small_world(tmp_path)
    deliver_at(world, START_MS + 2 * HOUR_MS, b"one")
    fill(world)
    deliver_at(world, START_MS + 3 * HOUR_MS, b"two")
    work(world)
    clean(world, FILE_SIZE)
    timer_log = world.timers.log
    last = timer_log.read(timer_log.end - 52)
    assert last is not None
    record = world.store.record_at(last.physical_offset, last.record_size)
    assert record is not None
    assert decode_record(record).queue_offset == world.store.max_offset(TIMER_TOPIC, 0) - 1
    world.close_quietly()


def test_a_client_cannot_make_its_timer_a_copy(tmp_path: Path) -> None:
    world = small_world(tmp_path)
    deliver_at(world, START_MS + HOUR_MS, b"mine", TIMER_CARRIED_FROM="0.0")
    assert run_until(world, START_MS + 2 * HOUR_MS) == [(b"mine", START_MS + HOUR_MS)]
    world.close_quietly()


# --- power failures while timers are carried


def cut_in_settling(world: World, due_ms: int) -> tuple[Move, bytes]:
    """Stops once the unit points to the copy; returns the timer log before that."""
    deliver_at(world, due_ms, b"once")
    fill(world)
    work(world)
    path = world.root / "timerlog" / f"{0:020d}"
    journal = Journal(str(world.root / "config" / "timerMoves"), RealDisk())
    before = path.read_bytes()
    for _ in range(20):
        if journal.read() and path.read_bytes()[28:36] != before[28:36]:
            break
        before = path.read_bytes()
        world.store.clean.trigger()
        world.store.clean.step()
        if not journal.read():
            work(world)
    (move,) = journal.read()
    return move, before


def test_a_unit_whose_change_the_disk_lost_does_not_fire_again(tmp_path: Path) -> None:
    world = small_world(tmp_path)
    due_ms = START_MS + 10_000
    move, before = cut_in_settling(world, due_ms)
    unit = world.timers.log.read(move.position)
    assert unit is not None and unit.physical_offset == move.offset != move.was_offset
    page = (world.root / "config" / "timercheck").read_bytes()
    world.advance(10)
    world.run_timers()  # it fires as the copy
    assert world.bodies("T", 1) == [b"once"]
    world.kill()
    (world.root / "timerlog" / f"{0:020d}").write_bytes(before)
    (world.root / "config" / "timercheck").write_bytes(page)
    world.open()
    world.run_timers()
    assert run_until(world, due_ms + 60_000) == []
    assert world.bodies("T", 1) == [b"once"]
    world.close_quietly()


def test_a_unit_points_to_its_copy_only_once_that_is_on_disk(tmp_path: Path) -> None:
    world = small_world(tmp_path)
    deliver_at(world, START_MS + HOUR_MS, b"one")
    fill(world)
    work(world)
    for _ in range(20):  # all but the flush of the log
        world.store.clean.trigger()
        world.store.clean.step()
        world.run_timers()
        world.timers.checkpoints.step()
    unit = world.timers.log.read(0)
    assert world.timers.keeper.carried == 1 and unit is not None
    assert unit.physical_offset == 0 == world.store.min_physical_offset
    clean(world, FILE_SIZE)
    unit = world.timers.log.read(0)
    assert unit is not None and unit.physical_offset >= FILE_SIZE
    world.close_quietly()


def test_a_timer_whose_second_runs_is_not_carried_but_waited_for(tmp_path: Path) -> None:
    world = small_world(tmp_path)
    deliver_at(world, START_MS + 500, b"first")
    deliver_at(world, START_MS + 900, b"second")
    fill(world)
    work(world)
    world.advance(0.6)
    world.run_timers()
    assert world.bodies("T", 1) == [b"first"]
    for _ in range(5):
        clean_step(world)
    assert world.store.min_physical_offset == 0 and world.timers.keeper.carried == 0
    world.advance(0.6)
    world.run_timers()
    assert world.bodies("T", 1) == [b"first", b"second"]
    clean(world, FILE_SIZE)
    world.reopen_after_kill()
    assert run_until(world, START_MS + 60_000) == []
    world.close_quietly()


def test_timers_that_are_due_leave_a_file_though_sends_are_refused(tmp_path: Path) -> None:
    world, disk = full_world(tmp_path)
    deliver_at(world, START_MS + 10_000, b"due")
    fill(world)
    work(world)
    used(world, disk, 91)
    world.store.clean.measure()
    world.advance(10)
    world.run_timers()
    assert world.bodies("T", 1) == []  # refused, like a send
    used(world, disk, 91)
    forced_steps(world, 20)
    assert world.bodies("T", 1) == [b"due"]
    world.advance(2)
    work(world)
    used(world, disk, 91)
    forced_steps(world, 5)
    assert world.store.min_physical_offset == FILE_SIZE
    assert world.store.clean.keepers.lost["timer"] == 0
    world.close_quietly()


def test_a_file_with_a_timer_that_cannot_be_read_is_kept(tmp_path: Path) -> None:
    world, disk = full_world(tmp_path)
    body, due_ms = b"unreadable" + bytes(3 * SECTOR), START_MS + 2 * HOUR_MS
    for number in range(3):
        place = world.store.max_physical_offset
        deliver_at(world, due_ms, b"%d" % number + body)
    fill(world)
    work(world)
    disk.bad_sectors.add((f"commitlog/{0:020d}", place // SECTOR + 2))
    for _ in range(20):
        clean_step(world)
    assert world.store.min_physical_offset == 0
    disk.bad_sectors.clear()
    came = [got for got, _ in run_until(world, due_ms + HOUR_MS)]
    assert came == [b"%d" % number + body for number in range(3)]
    world.close_quietly()
