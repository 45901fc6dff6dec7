"""A real disk of 64 MB that fills up under a broker: refused with a reason, never a SIGBUS.

What was acknowledged stays readable all the time, and sends are accepted again once there is room.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash import full_disk
from crash.full_disk import (
    SIZES,
    broker_on,
    check_readable,
    fill,
    free,
    max_offset,
    send,
    send_until_refused,
)
from peers.aerobee_broker import AerobeeBroker
from peers.tools import wait_for
from peers.wire import Wire

pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a disk image"),
]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    try:
        with full_disk.small_disk(tmp_path) as place:
            yield place
    except OSError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("by_call", ["true", "false"])
def test_a_disk_without_room_refuses_and_heals(small_disk: Path, by_call: str) -> None:
    """The guard is off: the disk itself refuses the next file."""
    guard_off = {"diskGuardEnable": "false", "writeWithoutMmap": by_call}
    with AerobeeBroker(small_disk, **SIZES, **guard_off) as broker, Wire(broker.broker, 30) as wire:
        for number in range(100):
            assert send(wire, number).code == 0
        neighbour = small_disk / "neighbour"
        fill(neighbour)
        end, refusal = send_until_refused(wire, 100)
        assert "No space left on device" in refusal.header["remark"], refusal.header
        assert "free space" in refusal.header["remark"]
        for _ in range(20):  # still refused, and the process survives
            assert send(wire, end).code != 0
        check_readable(wire, 0, max(max_offset(wire), 100))
        neighbour.unlink()
        wait_for(lambda: send(wire, end).code == 0, timeout=60, what="sends resume", interval=0.5)
        wait_for(lambda: max_offset(wire) == end + 1, timeout=60, what="all is dispatched")
        check_readable(wire, 0, end + 1)
        broker.stop()
        broker.start()
        with Wire(broker.broker, 30) as again:
            check_readable(again, 0, end + 1)


def test_queues_that_cannot_be_written_are_made_up_for(small_disk: Path) -> None:
    """The log's file has room, the queue's next one has not: messages wait in the log."""
    with AerobeeBroker(small_disk, **SIZES) as broker, Wire(broker.broker, 30) as wire:
        assert send(wire, 0).code == 0
        wait_for(lambda: max_offset(wire) == 1, timeout=10, what="it is dispatched")
        neighbour = small_disk / "neighbour"
        fill(neighbour)
        end = 1
        while end < 300 and send(wire, end).code == 0:
            end += 1
        time.sleep(2)
        check_readable(wire, 0, max_offset(wire))
        neighbour.unlink()
        wait_for(lambda: max_offset(wire) == end, timeout=60, what="all is dispatched")
        check_readable(wire, 0, end)


def min_offset(wire: Wire) -> int:
    return int(wire.request(31, {"topic": "Full", "queueId": "0"}).ext["offset"])


def test_the_guard_refuses_in_time_and_cleaning_heals(small_disk: Path) -> None:
    settings = {"cleanResourceInterval": "500", "diskReservedBytes": str(1 << 30)}
    neighbour = small_disk / "neighbour"
    with AerobeeBroker(small_disk, **SIZES, **settings) as broker:
        with Wire(broker.broker, 30) as wire:
            for end in range(4000):  # about half of the disk
                assert send(wire, end).code == 0
            wait_for(lambda: max_offset(wire) == 4000, timeout=20, what="all is dispatched")
        broker.stop()
        neighbour.write_bytes(bytes(free(small_disk) - (5 << 20)))  # above 90 % now
        broker.start()
        with Wire(broker.broker, 30) as wire:
            refusal = send(wire, 4000)
            remark = refusal.header["remark"]
            assert refusal.code != 0 and str(small_disk) in remark and "% full" in remark, remark
            assert "diskSpaceWarningLevelRatio=90" in remark and "resume" in remark
            check_readable(wire, 0, 4000)
            # An operator cleans: the oldest files go whatever their age, as the disk is so full.
            assert wire.request(329, {}).code == 0
            resumed = lambda: send(wire, 4000).code == 0  # noqa: E731
            wait_for(resumed, timeout=120, what="sends resume", interval=0.5)
            wait_for(lambda: max_offset(wire) == 4001, timeout=20, what="it is dispatched")
            first = wait_for(lambda: min_offset(wire), timeout=20, what="the oldest are gone")
            check_readable(wire, first, 4001)


def test_the_first_checkpoint_of_a_store_can_wait_for_room(small_disk: Path) -> None:
    """A file without blocks is only refused when it is synced: that must not fence the broker."""
    settings = {"diskGuardEnable": "false", "flushConsumeQueueThoroughInterval": "3000"}
    neighbour = small_disk / "neighbour"
    with broker_on(small_disk, **settings) as broker, Wire(broker.broker, 30) as wire:
        assert send(wire, 0).code == 0
        fill(neighbour)
        assert not (broker.store / "checkpoint").exists(), "the disk was filled too late"
        wait_for(lambda: "checkpoint" in broker.log(), timeout=30, what="the checkpoint is refused")
        time.sleep(4)
        neighbour.unlink()
        wait_for(lambda: send(wire, 1).code == 0, timeout=20, what="sends resume", interval=0.5)
        written = (broker.store / "checkpoint").exists
        wait_for(written, timeout=20, what="the checkpoint is written")


def send_later(wire: Wire, number: int, properties: str) -> None:
    assert send(wire, number, topic="Later", more=properties).code == 0


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_broker_starts_on_a_full_disk(small_disk: Path, end: str) -> None:
    """After a kill without queues: they are rebuilt once there is room, with every number."""
    settings = {"diskGuardEnable": "false"}
    neighbour = small_disk / "neighbour"
    with broker_on(small_disk, **settings) as broker:
        with Wire(broker.broker, 30) as wire:
            for number in range(600):  # the log's first file is full, and the second begun
                assert send(wire, number).code == 0
            for number in range(20):
                send_later(wire, number, f"TIMER_DELAY_SEC\x01{3600 + number}\x02")
                send_later(wire, number, "DELAY\x019\x02")  # 5 minutes
            wait_for(lambda: max_offset(wire) == 600, timeout=20, what="all is dispatched")
        getattr(broker, end)()
        readable = 600
        if end == "kill":
            shutil.rmtree(broker.store / "consumequeue")
            shutil.rmtree(broker.store / "index")
            readable = 0
        fill(neighbour)
        broker.start()
        with Wire(broker.broker, 30) as wire:
            check_readable(wire, 0, readable)
            number, refusal = send_until_refused(wire, 600)
            remark = refusal.header["remark"]
            assert "No space left on device" in remark and "free space" in remark, remark
            check_readable(wire, 0, readable)
            time.sleep(2)
            neighbour.unlink()
            resumed = lambda: send(wire, number).code == 0  # noqa: E731
            wait_for(resumed, timeout=60, what="sends resume", interval=0.5)
            wait_for(lambda: max_offset(wire) == number + 1, timeout=20, what="it is dispatched")
            check_readable(wire, 0, number + 1)
        assert "Traceback" not in broker.log()
        broker.stop()
