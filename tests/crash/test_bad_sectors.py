"""Sectors of the disk that cannot be read any more: what stands elsewhere is served, a start says
what is wrong and where, and no read through a map ends the process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from crash.bad_disk import BadDisk, bad_disk
from crash.fuse_file import BLOCK
from crash.test_dead_device import QUEUES, SIZES, look_up, pull, read_bodies, send, signal_of
from peers.aerobee_broker import AerobeeBroker
from peers.tools import need_tools, wait_for
from peers.wire import Wire

from aerobee.protocol.files.record import decode_records

pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a disk image"),
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="no FUSE here"),
]
MESSAGES = 4000
Choose = Callable[[Path], tuple[Path, int]]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[BadDisk]:
    need_tools("mkfs.ext4")
    with bad_disk(tmp_path / "bad") as disk:
        yield disk


@pytest.fixture
def broker(tmp_path: Path, disk: BadDisk) -> Iterator[AerobeeBroker]:
    """With some files of the log behind it."""
    sizes = SIZES | {"mappedFileSizeCommitLog": str(1 << 20)}
    with AerobeeBroker(
        tmp_path / "run", **sizes, storePathRootDir=str(disk.place / "store")
    ) as broker:
        with Wire(broker.broker, 10) as wire:
            assert {send(wire, number).code for number in range(MESSAGES)} == {0}
        yield broker


def log_file(store: Path, number: int) -> Path:
    return sorted((store / "commitlog").iterdir())[number]


def forget(store: Path) -> None:
    """Drop it from the page cache: the next read goes to the device."""
    for path in store.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_each(wire: Wire) -> tuple[int, set[str]]:
    """How many messages can be read, one by one; the errors of the others."""
    found, refusals = 0, set()
    for queue_id in range(QUEUES):
        for offset in range(MESSAGES // QUEUES):
            answer = pull(wire, queue_id, offset)
            if answer.code == 0:
                found += next(decode_records(answer.body).__iter__()).queue_offset == offset
            else:
                refusals.add(answer.header.get("remark") or "")
    return found, refusals


def test_a_message_on_a_bad_sector_is_refused_and_all_others_are_served(
    broker: AerobeeBroker, disk: BadDisk
) -> None:
    store = disk.place / "store"
    path = log_file(store, 1)
    disk.spoil(path, 300_000)
    for end in (None, broker.stop, broker.kill):
        if end is not None:
            end()
            forget(store)
            broker.start()
        with Wire(broker.broker, 10) as wire:
            found, refusals = read_each(wire)
            assert MESSAGES // 2 < found < MESSAGES
            assert refusals and all("Input/output error" in text for text in refusals)
            assert all(str(path) in text for text in refusals)
            assert look_up(wire, 0).code == look_up(wire, MESSAGES - 1).code == 0
            assert send(wire, 0).code == 0
    assert signal_of(broker) == "" and "Traceback" not in broker.log()


def set_timer(wire: Wire, due_ms: int, body: bytes) -> int:
    """Where in the log its record stands."""
    header = {
        "producerGroup": "PG",
        "topic": "Timed",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "1",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "0",
        "flag": "0",
        "properties": f"TIMER_DELIVER_MS\x01{due_ms}\x02",
        "reconsumeTimes": "0",
        "unitMode": "false",
    }
    answer = wire.request(10, header, body)
    assert answer.code == 0, answer.header
    return int(answer.ext["msgId"][16:], 16)


def timed(wire: Wire) -> list[bytes]:
    answer = pull(wire, 0, 0, topic="Timed")
    return [bytes(message.body) for message in decode_records(answer.body)]


def test_a_timer_on_a_bad_sector_does_not_hold_up_the_others(
    broker: AerobeeBroker, disk: BadDisk
) -> None:
    store, size = disk.place / "store", 1 << 20
    with Wire(broker.broker, 10) as wire:
        due_ms = round(time.time() * 1000) + 15_000
        bad, good = (letter * 3 * BLOCK for letter in (b"b", b"g"))
        at = set_timer(wire, due_ms, bad) + BLOCK
        set_timer(wire, due_ms + 1500, good)
        for number in range(size // 800):  # its file is an old one then
            assert send(wire, number).code == 0
        disk.spoil(log_file(store, at // size), at % size)

        wait_for(lambda: timed(wire), timeout=60, what="the other timer")
        assert timed(wire) == [good]
        wait_for(lambda: "its message cannot be read" in broker.log(), timeout=10, what="a line")
    broker.restart()
    with Wire(broker.broker, 10) as wire:
        time.sleep(3)
        assert timed(wire) == [good]
        disk.mend()
        wait_for(lambda: timed(wire) == [good, bad], timeout=90, what="the timer", interval=0.5)
    assert signal_of(broker) == "" and "Traceback" not in broker.log()


BAD: dict[str, Choose] = {
    "log": lambda store: (log_file(store, 3), 20_000),
    "queue": lambda store: (store / "consumequeue/Gone/3" / f"{0:020d}", 4096),
    "index": lambda store: (next((store / "index").iterdir()), 8192),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_start_that_meets_a_bad_sector_says_where_it_is_and_what_to_do(
    broker: AerobeeBroker, disk: BadDisk, kind: str
) -> None:
    store = disk.place / "store"
    broker.stop()
    path, position = BAD[kind](store)
    disk.spoil(path, position)
    forget(store)
    broker.launch()
    assert broker.wait_for_exit(60) == 1
    said = broker.log().splitlines()[-1]
    assert "cannot be opened" in said and str(path) in said and "ddrescue" in said
    assert "Traceback" not in broker.log()
    broker.kill()
    disk.mend()
    broker.start()
    with Wire(broker.broker, 10) as wire:
        assert sum(map(len, read_bodies(wire))) == MESSAGES
