"""Retention: a file goes, the timers, delayed and half messages that wait in it do not."""

import os
from pathlib import Path
from typing import Any

import pytest
from services.services_world import START_MS, HandClock, World
from store.faulty_disk import FaultyDisk
from structlog.testing import capture_logs

from aerobee.broker.base.refused import Refused
from aerobee.broker.services.timers.moves_journal import Journal, Move
from aerobee.broker.services.transactions.service import EndRequest
from aerobee.broker.store.files.disk import DiskSpace
from aerobee.broker.store.files.real_disk import RealDisk
from aerobee.broker.store.refusals import Cause
from aerobee.protocol.files import properties as props
from aerobee.protocol.files.record import StoredMessage, decode_record
from aerobee.protocol.names import TIMER_TOPIC, TRANSACTION_HALF_TOPIC

HOUR_MS = 3_600_000
FILE_SIZE = 256 << 10
GB = 1 << 30


def small_world(root: Path, **more: Any) -> World:
    return World(root / "store", log_file_size=FILE_SIZE, file_reserved_time=24, **more)


def fill(world: World, files: int = 1) -> None:
    """So many files of the log more."""
    end = (world.store.max_physical_offset // FILE_SIZE + files) * FILE_SIZE
    while world.store.max_physical_offset <= end:
        world.send("filler", bytes(8 << 10))


def work(world: World) -> None:
    """What goes on beside the cleaning."""
    world.store.flush.step()
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
    """Let time pass; what came to topic T, queue 1, and when."""
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
    for _ in range(4):  # without what goes on beside
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


def test_a_timer_log_that_is_lost_is_read_anew_with_the_copies(tmp_path: Path) -> None:
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
def test_a_timer_that_was_carried_and_has_rolled_is_read_anew_once(
    tmp_path: Path, is_removed: bool
) -> None:
    """Its first record may be there yet, beside the copy and the records that it rolled to."""
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
    """It goes on reading the topic behind the record of the timer log's last unit."""
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


# --- delay levels


def test_a_delayed_message_outlives_the_file_that_holds_it(tmp_path: Path) -> None:
    world = small_world(tmp_path, message_delay_level="10s 48h")
    world.send("T", b"long", queue_id=1, DELAY="2", KEYS="k1", UNIQ_KEY="u1")
    fill(world)
    work(world)
    clean(world, FILE_SIZE)
    world.send("T", b"short", queue_id=1, DELAY="1")
    due_ms = START_MS + 48 * HOUR_MS
    assert run_until(world, due_ms + 60_000, 1000 * 10) == [
        (b"short", START_MS + 10_000),
        (b"long", due_ms),
    ]
    short, long = (message.property_map() for message in world.read("T", 1))
    assert (long["KEYS"], long["UNIQ_KEY"], long["DELAY"]) == ("k1", "u1", "2")
    assert long.keys() == short.keys() | {"KEYS", "UNIQ_KEY"}  # short came by its level
    assert world.read("T", 1)[1].born_timestamp == START_MS
    assert world.schedule.progress(2) == (1, 1)
    world.close_quietly()


def test_a_delayed_message_that_is_due_is_delivered_instead_of_carried(tmp_path: Path) -> None:
    world = small_world(tmp_path)
    world.send("T", b"due", queue_id=1, DELAY="1")
    fill(world)
    world.advance(60)  # nobody has run the levels
    clean(world, FILE_SIZE)
    assert world.bodies("T", 1) == [b"due"]
    world.run_schedule()
    assert world.bodies("T", 1) == [b"due"]
    world.close_quietly()


def test_delayed_messages_come_once_wherever_a_kill_interrupts(tmp_path: Path) -> None:
    bodies = [b"%d" % number for number in range(100)]
    for steps in range(8):
        world = small_world(tmp_path / str(steps))
        for body in bodies:
            world.send("T", body, queue_id=1, DELAY="18")
        fill(world)
        work(world)
        for _ in range(steps):
            clean_step(world)
        world.reopen_after_kill()
        clean(world, FILE_SIZE)
        came = run_until(world, START_MS + 3 * HOUR_MS)
        assert came == [(body, START_MS + 2 * HOUR_MS) for body in bodies], steps
        world.close_quietly()


def test_without_timers_the_file_of_a_delayed_message_stays(tmp_path: Path) -> None:
    world = small_world(tmp_path, timer_wheel_enable=False)
    world.send("T", b"kept", queue_id=1, DELAY="18")
    fill(world)
    with capture_logs() as lines:
        for _ in range(5):
            clean_step(world)
    assert world.store.min_physical_offset == 0
    (line,) = [line for line in lines if "a file is kept" in line["event"]]
    assert "timerWheelEnable" in line["reason"]
    world.advance(2 * 3600)
    world.run_schedule()
    assert world.bodies("T", 1) == [b"kept"]
    clean(world, FILE_SIZE)
    world.close_quietly()


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


@pytest.mark.parametrize("killed", [False, True])
def test_a_producer_ends_a_transaction_whose_file_has_gone(tmp_path: Path, killed: bool) -> None:
    world = small_world(tmp_path)
    first, second = half(world), half(world, b"other")
    fill(world)
    work(world)
    clean(world, FILE_SIZE)
    assert world.transactions.open_count == 2
    if killed:
        world.reopen_after_kill()
    with pytest.raises(Refused, match="no half message"):
        end(world, first, key=b"wrong")
    with pytest.raises(Refused, match="group"):
        world.transactions.end(EndRequest("another", *first, True, b"half".hex()))
    end(world, first)
    end(world, second, commit=False, key=b"other")
    assert world.bodies("T", 1) == [b"half"]
    with pytest.raises(Refused):
        end(world, first)
    (message,) = world.read("T", 1)
    assert message.property("KEYS") == "k1" and message.born_timestamp == START_MS
    assert world.transactions.open_count == 0
    world.reopen_after_kill()
    assert world.transactions.prepare() and world.transactions.open_count == 0
    world.close_quietly()


def test_the_word_about_a_copy_whose_file_has_gone_counts_too(tmp_path: Path) -> None:
    world = small_world(tmp_path)
    first = half(world)
    world.transactions.prepare()
    world.transactions.read_halves()
    found = world.transactions.half_at(first[0], first[0])
    assert found is not None
    copied = world.transactions.copy(first[0], found, 1)  # as a check does
    assert copied is not None
    known = (copied.queue_offset, copied.physical_offset)
    fill(world)
    work(world)
    clean(world, FILE_SIZE)
    end(world, known)
    assert world.bodies("T", 1) == [b"half"]
    world.close_quietly()


def test_transactions_stay_open_once_wherever_a_kill_interrupts(tmp_path: Path) -> None:
    for steps in range(6):
        world = small_world(tmp_path / str(steps))
        known = [half(world, b"%d" % number) for number in range(100)]
        fill(world)
        for _ in range(steps):
            clean_step(world)
        world.reopen_after_kill()
        clean(world, FILE_SIZE)
        assert world.transactions.prepare() and world.transactions.open_count == 100
        for number, place in enumerate(known):
            end(world, place, key=b"%d" % number)
        assert world.bodies("T", 1) == [b"%d" % number for number in range(100)], steps
        world.close_quietly()


def test_a_check_goes_on_counting_after_a_half_message_was_carried(tmp_path: Path) -> None:
    world = small_world(tmp_path)
    first = half(world)
    world.transactions.prepare()
    world.transactions.read_halves()
    found = world.transactions.half_at(first[0], first[0])
    assert found is not None
    world.transactions.copy(first[0], found, 7)
    fill(world)
    work(world)
    clean(world, FILE_SIZE)
    newest: StoredMessage = world.read(
        TRANSACTION_HALF_TOPIC, start=world.store.min_offset(TRANSACTION_HALF_TOPIC, 0)
    )[-1]
    assert newest.property(props.TRANSACTION_CHECK_TIMES) == "7"
    assert newest.property(props.TRAN_PREPARED_QUEUE_OFFSET) == str(first[0])
    world.close_quietly()


# --- a disk that is nearly full


def full_world(root: Path) -> tuple[World, FaultyDisk]:
    disk = FaultyDisk()
    disk.reported = DiskSpace(100 * GB, 50 * GB)
    return small_world(root, disk=disk, disk_reserved_bytes=0), disk


def used(world: World, disk: FaultyDisk, percent: int) -> None:
    """All files are young, the disk is so full."""
    disk.reported = DiskSpace(100 * GB, (100 - percent) * GB)
    now_s = world.clock.now_ms() / 1000
    for file in world.store.commit_log.files.files:
        os.utime(file.path, (now_s, now_s))


def forced_steps(world: World, count: int) -> None:
    for _ in range(count):
        world.store.clean.step()
        work(world)


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
    kept = [line for line in lines if "a file is kept" in line["event"]]
    assert kept and "would not pay" in kept[0]["reason"]
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
    assert [line["reason"] for line in lines if "a file is kept" in line["event"]] == [
        "the disk has failed"
    ]
    world.store.refusals.clear(Cause.SYNC_FAILED)
    forced_steps(world, 15)
    assert world.store.min_physical_offset == FILE_SIZE
    world.close_quietly()


# --- power failures while timers are carried


def cut_in_settling(world: World, due_ms: int) -> tuple[Move, bytes]:
    """Up to the moment when the unit points to the copy; how the timer log was before."""
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
    assert world.bodies("T", 1) == []  # as a send, it is refused
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
