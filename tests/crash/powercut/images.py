"""Images of a disk at any write: what a broker finds on a device that kept exactly so much.

    python -m crash.powercut.images 100 --fs ext4 --seed 1        (in tests/, as root)

A broker under the load of `crash.powercut` works on a disk that logs every write and flush
(`crash.block_log`): it starts, is killed, recovers, works on and is stopped. Then, for points of
that log, the device is put together as it was: with all writes up to there, or without some of
those, or some sectors of those, that came after the last flush. The kernel recovers the file
system, a broker starts on it, and all that was answered before that point is looked for, as after
a power cut. Answers are tied to the log by their times: both have the same monotonic clock.

In SYNC_FLUSH only: there an answer says what is on the device.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from aerobee_command import FORKED
from crash.block_log import KINDS, BlockLog, Images, logged_disk
from crash.powercut.check import Checker
from crash.powercut.disk import FILE_SYSTEMS, CannotMount, LoopDisk, check_possible
from crash.powercut.history import History, Totals, tally
from crash.powercut.load import SETTINGS, Load, make_topic
from peers.aerobee_broker import AerobeeBroker
from peers.wire import Wire

from aerobee.broker.store.inspect.files import open_directory
from aerobee.broker.store.inspect.verify import verify

SIZES: Final = {"ext4": 128 << 20, "xfs": 320 << 20}  # the least that mkfs.xfs takes, and some more
IMAGES_OF_A_LOG: Final = 50
LOAD_S: Final = (0.3, 1.2)  # in each of the two lives


@dataclass
class Sums:
    """Over all logs of one run."""

    checked: Totals = field(default_factory=Totals)
    images: Counter[str] = field(default_factory=Counter)
    logs: int = 0
    writes: int = 0
    flushes: int = 0
    missing: int = 0  # writes or sectors that images lack


@dataclass(frozen=True)
class Recording:
    base: Path  # the device before the first entry
    log: BlockLog
    first: int  # how many entries there were when the topic had been made
    history: History


def record(folder: Path, kind: str, broker: AerobeeBroker, rng: random.Random) -> Recording:
    image, base, log = folder / "image", folder / "base", folder / "log"
    log.unlink(missing_ok=True)
    disk = LoopDisk(folder / "new", kind, SIZES[kind])
    disk.make()
    disk.unmount()
    disk.image.replace(image)
    subprocess.run(["cp", "--sparse=auto", str(image), str(base)], check=True)
    history = History()
    with logged_disk(folder, image, log) as place:
        broker.store = place / "store"
        broker.start()
        with Wire(broker.broker) as wire:
            make_topic(wire)
        made = time.monotonic()
        for end in (broker.kill, broker.stop):
            work(broker, history, rng)
            end()
            history.life += 1
            if end == broker.kill:
                broker.start()
    logged = BlockLog(log)
    return Recording(base, logged, logged.first_after(made), history)


def work(broker: AerobeeBroker, history: History, rng: random.Random) -> None:
    load = Load(broker.broker, history, rng)
    load.start()
    time.sleep(rng.uniform(*LOAD_S))
    deadline = time.monotonic() + 20
    while load.answered < 50 and time.monotonic() < deadline:
        time.sleep(0.01)
    load.stop()
    load.join()


def check_image(
    disk: LoopDisk, broker: AerobeeBroker, checker: Checker, rng: random.Random
) -> None:
    disk.mount()
    try:
        broker.store = disk.place / "store"
        try:
            began = time.monotonic()
            broker.start()
        except AssertionError as error:
            checker.wrong("no-start", str(error)[-1500:])
            return
        checker.totals.starts.append(time.monotonic() - began)
        checker.after_start(broker.broker, rng, whole=True)
        if checker.clean:  # else it would wait for lost messages
            checker.to_the_end(broker.broker)
        broker.kill()
        report = verify(open_directory(str(broker.store)), lambda _: None)
        if report.problems:
            checker.wrong("verify", str(report.problems[0]), number=len(report.problems))
    finally:
        if broker.is_running:
            broker.kill()
        disk.unmount()


def run(
    folder: Path,
    kind: str,
    images: int,
    seed: int,
    broker: AerobeeBroker | None = None,
) -> Sums:
    """`broker`: the one that is recorded, if it is not the one that recovers."""
    began = time.monotonic()
    sums = Sums()
    settings = SETTINGS | {"flushDiskType": "SYNC_FLUSH"}
    recorded = broker or AerobeeBroker(folder / "recorded", **settings)
    recovered = AerobeeBroker(folder / "recovered", **settings)
    disk = LoopDisk(folder, kind)
    while (done := sum(sums.images.values())) < images:
        rng = random.Random(f"{seed}/{kind}/{done}")
        recording = record(folder, kind, recorded, rng)
        log = recording.log
        sums.logs += 1
        sums.flushes += log.entries.count(None)
        sums.writes += len(log) - log.entries.count(None)
        sums.checked.sent.update(sent.kind for sent in recording.history.sent.values())
        count = min(IMAGES_OF_A_LOG, images - done)
        maker = Images(recording.base, log)
        points = sorted(rng.randint(recording.first, len(log)) for _ in range(count))
        for point, how in zip(points, itertools.cycle(KINDS), strict=False):
            sums.missing += maker.make(point, how, rng, disk.image)
            sums.images[how] += 1
            history = recording.history.at(log.end_of(point))
            sums.checked.acked += sum(sent.firm for sent in history.sent.values())
            checker = Checker(history, sums.checked)
            check_image(disk, recovered, checker, rng)
            if not checker.clean:
                print(f"... at entry {point} of {len(log)}, {how}", flush=True)
        print(summary(kind, sums, time.monotonic() - began, seed), flush=True)
    return sums


def summary(kind: str, sums: Sums, seconds: float, seed: int) -> str:
    totals = sums.checked
    return (
        f"{kind} SYNC_FLUSH: {sum(sums.images.values()):,} images ({tally(sums.images)}) of "
        f"{sums.logs} block logs with {sums.writes:,} writes and {sums.flushes:,} flushes, "
        f"{sums.missing:,} writes or sectors left out; sent: {tally(totals.sent)}; "
        f"{totals.acked:,} acknowledged ones looked for; slowest start "
        f"{totals.slowest_start:.1f} s; violations: {tally(totals.violations)}; "
        f"{seconds:.0f} s, seed {seed}"
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="crash.powercut.images", description=__doc__)
    parser.add_argument("images", type=int, help="how many, of each file system")
    parser.add_argument("--fs", nargs="+", default=["ext4"], choices=FILE_SYSTEMS)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    os.environ.setdefault(FORKED, "1")
    lines, failed = [], False
    for kind in given.fs:
        try:
            check_possible(kind)
        except CannotMount as error:
            print(error, file=sys.stderr)
            return 2
        # In memory if there is room: images are copied, and no disk of ours loses power.
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        folder = Path(tempfile.mkdtemp(prefix="aerobee-images-", dir=memory))
        began = time.monotonic()
        try:
            sums = run(folder, kind, given.images, given.seed)
        finally:
            shutil.rmtree(folder)
        lines.append(summary(kind, sums, time.monotonic() - began, given.seed))
        failed = failed or bool(sums.checked.violations)
    print("\n".join(lines), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
