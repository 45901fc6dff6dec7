"""A disk of 64 MB that a neighbour fills up under a broker, again and again.

    python -m crash.full_disk 50 1        (how many fills, seed; in tests/, as root)

Each time some room is left, so that another file is the first that does not fit. What must hold:
no signal ends the process; sends are refused with the reason; what was acknowledged is readable
all the time; and sends are taken again within 10 s of room being made. Some brokers are stopped or
killed while the disk is full, and start on it. Flush modes and ways of writing take turns.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from peers.aerobee_broker import AerobeeBroker
from peers.tools import wait_for
from peers.wire import Answer, Wire, pull_ext

from aerobee.protocol.files.record import decode_records

SIZES: Final = {
    "mappedFileSizeCommitLog": str(4 << 20),
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "100000",
}
BODY: Final = 8000
DISK: Final = 64 << 20
FILLS_OF_A_DISK: Final = 5
ROOM_LEFT: Final = 5 << 20  # at most, for the broker to use up
HEALS_WITHIN_S: Final = 10.0
TOLD: Final = ("No space left on device", "free space")


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """An ext4 of 64 MB; OSError where there are no loop mounts."""
    image, place = folder / "disk.img", folder / "disk"
    place.mkdir(parents=True, exist_ok=True)
    with image.open("wb") as file:
        file.truncate(DISK)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], check=True)
    mounted = subprocess.run(["mount", "-o", "loop", str(image), str(place)], capture_output=True)
    if mounted.returncode:
        raise OSError(f"no loop mounts here: {mounted.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def broker_on(disk: Path, **settings: str) -> AerobeeBroker:
    """Its store is on the small disk, its log output elsewhere: logging needs no free space."""
    broker = AerobeeBroker(
        disk.parent / "run", **SIZES, **settings, storePathRootDir=str(disk / "store")
    )
    broker.store = disk / "store"
    return broker


def send(wire: Wire, number: int, topic: str = "Full", more: str = "") -> Answer:
    header = {
        "producerGroup": "PG",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "1",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "0",
        "flag": "0",
        "properties": f"KEYS\x01k{number}\x02{more}",
        "reconsumeTimes": "0",
        "unitMode": "false",
    }
    return wire.request(10, header, b"%08d" % number * (BODY // 8))


def send_until_refused(wire: Wire, start: int = 0) -> tuple[int, Answer]:
    """The number of the first message that was refused, and the refusal."""
    for number in range(start, start + 20_000):
        answer = send(wire, number)
        if answer.code != 0:
            return number, answer
    raise AssertionError("20,000 messages went to a disk that has no room for them")


def read(wire: Wire, offset: int) -> list[bytes]:
    answer = wire.request(11, pull_ext("Full", 0, offset))
    assert answer.code == 0, answer.header
    found = decode_records(answer.body)
    assert found[0].queue_offset == offset
    return [bytes(message.body) for message in found]


def check_readable(wire: Wire, first: int, end: int) -> None:
    number = first
    while number < end:
        for body in read(wire, number):
            assert body == b"%08d" % number * (BODY // 8)
            number += 1
    assert number >= end


def max_offset(wire: Wire) -> int:
    return int(wire.request(30, {"topic": "Full", "queueId": "0"}).ext["offset"])


def fill(path: Path, leave: int = 0) -> None:
    """Another process takes every free block, except for `leave` bytes."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while free(path) > leave:
            file.write(bytes(1 << 16))
    with path.open("ab", buffering=0) as file, suppress(OSError):
        while free(path) > leave:
            file.write(bytes(512))


def free(path: Path) -> int:
    facts = os.statvfs(path)
    return facts.f_bavail * facts.f_frsize


@dataclass
class Totals:
    fills: int = 0
    disks: int = 0
    starts: int = 0  # on a full disk
    taken: int = 0
    refused: int = 0
    slowest_heal_s: float = 0.0


def fill_up(disk: Path, broker: AerobeeBroker, end: int, rng: random.Random, totals: Totals) -> int:
    """Fill the disk once and check; `end`: how many messages exist before, the result: after."""
    neighbour = disk / "neighbour"
    with Wire(broker.broker, 30) as wire:
        fill(neighbour, rng.choice((0, rng.randint(0, ROOM_LEFT))))
        full, refusal = send_until_refused(wire, end)
        remark = refusal.header["remark"]
        assert all(words in remark for words in TOLD), remark
        for _ in range(10):
            assert send(wire, full).code != 0
        check_readable(wire, 0, max(max_offset(wire), end))
    if (how := rng.choice(("", "", "stop", "kill"))) != "":
        getattr(broker, how)()
        broker.start()
        totals.starts += 1
    with Wire(broker.broker, 30) as wire:
        check_readable(wire, 0, max_offset(wire))
        neighbour.unlink()
        began = time.monotonic()
        resumed = lambda: send(wire, full).code == 0  # noqa: E731
        wait_for(resumed, timeout=60, what="sends resume", interval=0.05)
        healed = time.monotonic() - began
        wait_for(lambda: max_offset(wire) == full + 1, timeout=60, what="all is dispatched")
        check_readable(wire, 0, full + 1)
    assert healed <= HEALS_WITHIN_S, f"sends were taken again after {healed:.1f} s"
    assert broker.exit_code() is None and "Traceback" not in broker.log()
    totals.fills += 1
    totals.taken += full + 1 - end
    totals.refused += 11
    totals.slowest_heal_s = max(totals.slowest_heal_s, healed)
    return full + 1


def run(folder: Path, fills: int, seed: int) -> Totals:
    totals = Totals()
    while totals.fills < fills:
        number = totals.disks
        rng = random.Random(f"{seed}/{number}")
        settings = {
            "diskGuardEnable": "false",  # the disk itself refuses
            "flushDiskType": ("SYNC_FLUSH", "ASYNC_FLUSH")[number % 2],
            "writeWithoutMmap": ("true", "false")[number // 2 % 2],
        }
        place = folder / str(number)
        with small_disk(place) as disk, broker_on(disk, **settings) as broker:
            end = 0
            with Wire(broker.broker, 30) as wire:
                for end in range(1, 101):
                    assert send(wire, end - 1).code == 0
                wait_for(lambda: max_offset(wire) == 100, timeout=20, what="all is dispatched")
            for _ in range(min(FILLS_OF_A_DISK, fills - totals.fills)):
                end = fill_up(disk, broker, end, rng, totals)
            broker.stop()
        shutil.rmtree(place)
        totals.disks += 1
        print(summary(totals), flush=True)
    return totals


def summary(totals: Totals) -> str:
    return (
        f"{totals.fills} fills of {totals.disks} disks, both flush modes and ways of writing: "
        f"{totals.taken:,} sends taken, {totals.refused:,} refused with the reason, none lost, "
        f"every one readable while the disk was full; {totals.starts} starts on a full disk; no "
        f"signal; taken again "
        f"{totals.slowest_heal_s:.1f} s at most after room was made"
    )


def main(arguments: Sequence[str]) -> int:
    fills = int(arguments[0]) if arguments else 50
    seed = int(arguments[1]) if len(arguments) > 1 else 1
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="aerobee-full-") as folder:
        totals = run(Path(folder), fills, seed)
    print(f"{summary(totals)}; {time.monotonic() - began:.0f} s, seed {seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
