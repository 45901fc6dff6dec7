"""Timers on a real store: their times, crashes, recalls, rolls, lists, upstream's files."""

import errno
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from services.services_world import START_MS, HandClock, World
from structlog.testing import capture_logs

from aerobee.broker.base.refused import Refused
from aerobee.broker.services.timers.timer_log import UNIT_SIZE, Unit
from aerobee.broker.services.timers.wheel import SLOT, SLOTS, Slot
from aerobee.broker.store.files.disk import DiskFile
from aerobee.broker.store.results import PutStatus, RefusedPut
from aerobee.protocol.files import properties as props
from aerobee.protocol.names import TIMER_TOPIC


def deliver_at(world: World, at_ms: int, body: bytes, topic: str = "T", **more: Any) -> None:
    world.send(topic, body, TIMER_DELIVER_MS=str(at_ms), UNIQ_KEY=body.hex(), **more)


def run_until(world: World, end_ms: int, step_ms: int = 100) -> dict[bytes, int]:
    """Move the clock tick by tick; when each message of topic T came."""
    seen = world.store.max_offset("T", 0)
    came: dict[bytes, int] = {}
    assert isinstance(world.clock, HandClock)
    while world.clock.at_ms < end_ms:
        world.clock.at_ms = min(end_ms, world.clock.at_ms + step_ms)
        world.run_timers()
        for message in world.read("T", start=seen):
            assert message.body not in came, "delivered twice"
            came[bytes(message.body)] = world.clock.at_ms
        seen = world.store.max_offset("T", 0)
    return came


def cut_commitlog(root: Path, end: int) -> None:
    """As a power failure: what was not flushed is not there."""
    path = root / "commitlog" / "00000000000000000000"
    with path.open("r+b") as file:
        file.seek(end)
        file.write(bytes(64 << 10))


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


def test_a_lost_timer_log_is_read_anew_from_the_topic(world: World) -> None:
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


def test_chains_of_another_precision_are_written_anew_once(world: World) -> None:
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


def test_the_timer_log_goes_on_in_a_next_file_and_drops_the_first_when_its_records_are_gone(
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


def test_a_far_timer_can_be_recalled(tmp_path: Path) -> None:
    world = World(tmp_path / "store", timer_roll_window_slot=60)
    at_ms = START_MS + 300_000
    deliver_at(world, at_ms, b"gone")
    run_until(world, START_MS + 20_000, 1000)
    world.send("T", b"0", TIMER_DEL_UNIQKEY=b"gone".hex(), TIMER_DELIVER_MS=str(at_ms))
    assert run_until(world, START_MS + 310_000, 1000) == {} and world.timers.pending == 0
    world.close_quietly()


def test_a_timer_set_right_after_a_restart_is_not_late(world: World) -> None:
    deliver_at(world, START_MS + 100, b"before")
    world.run_timers()
    world.advance(0.15)
    world.run_timers()
    world.stop()
    world.open()
    deliver_at(world, START_MS + 300, b"after")
    assert run_until(world, START_MS + 400, 10) == {b"after": START_MS + 300}


def test_slots_of_the_wheel_that_a_disk_has_refused_are_as_before(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it refuses every write from then on, until it can write again."""
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
    """A sync is a thread's, and timers come meanwhile."""
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
            putting[0].join(0.2)  # it waits for this write, or does its own at once
        real(index, content)

    monkeypatch.setattr(wheel, "_write", write)
    wheel.sync()
    putting[0].join()
    assert [wheel.get(second) for second in seconds] == [old, new]


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
    for _ in range(3):  # "soon" comes due meanwhile
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
def test_timers_behind_a_damaged_unit_of_the_timer_log_are_read_anew(
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
