"""Delay levels on a real store: times, order, crashes, files."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
from services.services_world import START_MS, World
from structlog.testing import capture_logs

from aerobee.broker.base.refused import Refused
from aerobee.broker.services.redelivery import put_again
from aerobee.broker.store.results import PutStatus, RefusedPut
from aerobee.protocol.files import properties as props
from aerobee.protocol.json import fastjson
from aerobee.protocol.names import SCHEDULE_TOPIC
from aerobee.protocol.wire.codes import ResponseCode


def test_a_delayed_message_comes_after_its_level_and_not_before(world: World) -> None:
    world.send("T", b"x", queue_id=2, DELAY="2", KEYS="k")
    assert world.run_schedule() == START_MS + 5000
    world.advance(4.999)
    world.run_schedule()
    assert world.bodies("T", 2) == []
    world.advance(0.001)
    assert world.run_schedule() is None
    (message,) = world.read("T", 2)
    found = message.property_map()
    assert (found["DELAY"], found["REAL_TOPIC"], found["REAL_QID"]) == ("2", "T", "2")
    assert found["KEYS"] == "k" and message.born_timestamp == START_MS


def test_each_level_keeps_its_order_and_levels_do_not_wait_for_each_other(world: World) -> None:
    for number in range(600):
        world.send("T", b"%d" % number, DELAY="1")
    world.send("T", b"later", DELAY="2")
    world.advance(1)
    while world.run_schedule() == world.clock.now_ms():
        pass
    assert world.bodies("T") == [b"%d" % number for number in range(600)]
    world.advance(4)
    world.run_schedule()
    assert world.bodies("T")[-1] == b"later"


def test_a_level_above_the_highest_is_the_highest(world: World) -> None:
    world.send("T", DELAY="99")
    assert world.store.max_offset(SCHEDULE_TOPIC, 17) == 1
    assert world.run_schedule() == START_MS + 2 * 3600 * 1000


@pytest.mark.parametrize("level", ["0", "-1", "-2147483647", ""])
def test_a_level_below_one_is_no_delay(world: World, level: str) -> None:
    world.send("T", DELAY=level)
    assert len(world.read("T")) == 1


@pytest.mark.parametrize("level", ["x", "1.5", "99999999999", "1_0", "\u0661"])
def test_a_message_with_a_level_that_nobody_can_read_is_refused(world: World, level: str) -> None:
    """It would be delivered at once, which the sender did not want."""
    with pytest.raises(Refused, match="is not a delay level") as refused:
        world.send("T", DELAY=level)
    assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL
    assert not world.read("T")


def test_a_level_wins_over_a_timer(world: World) -> None:
    world.send("T", DELAY="1", TIMER_DELAY_SEC="600", TIMER_DELIVER_MS=str(START_MS + 10**6))
    world.advance(1)
    world.run_schedule()
    (message,) = world.read("T")
    assert message.property(props.TIMER_DELAY_SEC) is None


def test_levels_can_be_set(tmp_path: Path) -> None:
    world = World(tmp_path / "store", message_delay_level="3s 1d")
    world.send("T", DELAY="1")
    world.send("T", DELAY="2")
    assert world.run_schedule() == START_MS + 3000
    world.advance(86_400)
    world.run_schedule()
    assert len(world.read("T")) == 2
    world.close_quietly()


def test_messages_of_a_level_that_the_setting_drops_are_delivered_all_the_same(
    tmp_path: Path,
) -> None:
    world = World(tmp_path / "store", message_delay_level="1s 5s 10s")
    world.send("T", b"third", DELAY="3")
    world.stop()
    world = World(tmp_path / "store", world.clock, message_delay_level="1s")
    world.advance(10)
    world.run_schedule()
    assert world.bodies("T") == [b"third"]
    world.close_quietly()


@pytest.mark.parametrize("clean", [True, False])
def test_a_stop_and_a_kill_neither_lose_nor_double_a_delayed_message(
    world: World, clean: bool
) -> None:
    for number in range(100):
        world.send("T", b"%d" % number, DELAY="1")
        world.advance(0.02)
        world.run_schedule()
    assert 0 < len(world.read("T")) < 100
    if clean:
        world.stop()
        world.open()
    else:
        world.reopen_after_kill()
    world.advance(2)
    world.run_schedule()
    assert world.bodies("T") == [b"%d" % number for number in range(100)]


def test_the_file_is_upstreams_and_never_ahead_of_the_disk(world: World) -> None:
    world.send("T", DELAY="1")
    world.advance(1)
    world.run_schedule()
    path = world.root / "config" / "delayOffset.json"
    world.schedule.file.save()
    assert fastjson.loads(path.read_bytes())["offsetTable"] == {}  # nothing was flushed yet
    world.store.flush.step()
    world.schedule.file.save()
    text = path.read_text()
    assert fastjson.loads(text)["offsetTable"] == {1: 1}
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)  # a bare integer key, as upstream writes it


def test_upstreams_file_is_taken_over(world: World) -> None:
    for number in range(5):
        world.send("T", b"%d" % number, DELAY="1")
    world.stop()
    path = world.root / "config" / "delayOffset.json"
    path.write_text('{\n\t"offsetTable":{1:3,2:0\n\t}\n}')
    world.open()
    world.advance(1)
    world.run_schedule()
    assert world.bodies("T") == [b"3", b"4"]


def test_a_message_without_a_sound_destination_is_left_out_and_blocks_nobody(world: World) -> None:
    for topic in ("../../etc", ""):
        message = world.message(SCHEDULE_TOPIC, DELAY="1", REAL_TOPIC=topic, REAL_QID="0")
        assert world.store.put([message])[0].ok
    world.send("T", b"good", DELAY="1")
    world.advance(1)
    world.run_schedule()
    assert world.bodies("T") == [b"good"]


def test_a_damaged_record_is_said_and_keeps_no_other_from_its_time(world: World) -> None:
    for number in range(5):
        world.send("T", b"%d" % number, DELAY="1")
    entry = world.store.queue_entry(SCHEDULE_TOPIC, 0, 2)
    assert entry is not None
    world.damage(entry[0], 0, b"\xff\xff\xff\xff")
    world.advance(1)
    with capture_logs() as logs:
        world.run_schedule()
    assert world.bodies("T") == [b"0", b"1", b"3", b"4"]
    assert [log["queue_offset"] for log in logs if log["log_level"] == "error"] == [2]


def test_a_bad_sector_in_one_level_does_not_hold_up_what_stands_before_it_nor_other_levels(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        world.send("T", b"%d" % number, DELAY="1")
    world.send("T", b"of another level", DELAY="2")
    entry = world.store.queue_entry(SCHEDULE_TOPIC, 0, 2)
    assert entry is not None
    real = world.store.record_at

    tries = 0

    def read(physical_offset: int, size: int | None = None) -> memoryview | None:
        nonlocal tries
        if physical_offset == entry[0]:
            tries += 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(physical_offset, size)

    world.advance(5)
    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(world.store, "record_at", read)
        for _ in range(3):
            assert world.run_schedule() == world.clock.now_ms() + 1000
        assert tries == 1  # slow and blocks the loop: not retried in each round
    assert world.bodies("T") == [b"0", b"1", b"of another level"]
    assert [log["event"] for log in logs if log["log_level"] == "error"] == [
        "delivering delayed messages failed"
    ]
    world.advance(1)
    world.run_schedule()
    assert world.bodies("T")[3:] == [b"2", b"3"]


def test_many_large_messages_that_are_due_at_once_are_delivered_in_pieces(world: World) -> None:
    body = bytes(1 << 20)
    for _ in range(20):
        world.send("T", body, DELAY="1")
    world.advance(1)
    steps = 0
    while world.run_schedule() == world.clock.now_ms():
        steps += 1
    assert steps >= 4 and world.store.max_offset("T", 0) == 20


def test_a_full_disk_is_said_once_in_a_while_and_not_with_every_try(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(60):
        world.send("T", b"x", DELAY=str(1 + number % 3))
        world.send("T", b"x", TIMER_DELIVER_MS=str(START_MS + 1000))
    world.advance(10)
    refused = RefusedPut(PutStatus.SERVICE_NOT_AVAILABLE, "the disk is full")
    monkeypatch.setattr(world.store, "put_accepted", lambda messages: [refused for _ in messages])
    with capture_logs() as logs:
        for _ in range(100):
            world.schedule.step(world.clock.now_ms())
            world.timers.step(world.clock.now_ms())
            world.advance(1)
    said = [entry for entry in logs if entry.get("reason") == "the disk is full"]
    assert 2 <= len(said) <= 4
    monkeypatch.undo()
    world.run_schedule()
    world.run_timers()
    assert world.store.max_offset("T", 0) == 120


def without_one_record(world: World, place: int) -> None:
    """The record there is damaged, and the queues are built again from the log."""
    world.damage(place, 4, b"\xff\xff\xff\xff")
    world.stop()
    shutil.rmtree(world.root / "consumequeue")
    world.open()


def test_a_damaged_record_in_a_rebuilt_queue_holds_up_no_message_behind_it(world: World) -> None:
    sent = [world.send("T", b"%d" % number, DELAY="1") for number in range(7)]
    without_one_record(world, sent[3].physical_offset)
    world.advance(1)
    world.run_schedule()
    assert world.bodies("T") == [b"%d" % number for number in range(7) if number != 3]


def test_a_damaged_record_in_a_rebuilt_queue_is_passed_over_by_retention(
    world: World,
) -> None:
    sent = [world.send("T", b"%d" % number, DELAY="18") for number in range(7)]
    without_one_record(world, sent[3].physical_offset)
    found = [
        put_again.first_at_or_after(world.store, SCHEDULE_TOPIC, 17, one.physical_offset)
        for one in sent
    ]
    assert found == [0, 1, 2, 4, 4, 5, 6]
