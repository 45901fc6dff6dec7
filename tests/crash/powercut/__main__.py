"""Power cuts of a real file system under a real broker; what a reader finds after each.

    python -m crash.powercut 100 --fs ext4 --seed 1 --flush SYNC_FLUSH        (in tests/, as root)

A disk is an image file with a file system, mounted. It has several lives: the broker is started,
clients send (also delayed messages, timers and transactions), consume and commit offsets; then the
file system is shut down without a flush of its log, mounted again, and the next life begins. The
broker runs at the cut, or was killed or stopped before it, or was just starting. Then:

- what was acknowledged before the cut began is there, with its body and at its place (ASYNC_FLUSH:
  what the broker said was flushed; after a clean stop: all of it);
- so is what a consumer has read; queues have no gap; a group is not ahead of its queue;
- delayed messages, timers and committed transactions come, once, and not early;
- the broker starts and serves.

What was acknowledged after the cut had begun is counted apart (docs/durability.md says why). The
exit code is 1 after any violation; each is told by its kind.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from crash.powercut.check import Checker
from crash.powercut.disk import FILE_SYSTEMS, CannotMount, LoopDisk, check_possible
from crash.powercut.history import History, Totals, tally
from crash.powercut.load import SETTINGS, Load, make_topic
from peers.aerobee_broker import AerobeeBroker
from peers.wire import Wire

from aerobee.broker.store.inspect.files import open_directory
from aerobee.broker.store.inspect.verify import verify

RUNNING, KILLED, STOPPED, STARTING = "running", "killed", "stopped", "starting"
CUTS: Final = (*[RUNNING] * 10, *[KILLED] * 5, *[STOPPED] * 3, *[STARTING] * 2)
MODES: Final = ("SYNC_FLUSH", "ASYNC_FLUSH")


class Image:
    """One disk from its creation until everything sent to it is delivered."""

    def __init__(
        self, disk: LoopDisk, broker: AerobeeBroker, flush: str, totals: Totals, seed: str
    ) -> None:
        self._disk = disk
        self._broker = broker
        self._sync = flush == "SYNC_FLUSH"
        self._totals = totals
        self._history = History()
        self._checker = Checker(self._history, totals)
        self._rng = random.Random(seed)

    @property
    def is_clean(self) -> bool:
        return self._checker.clean

    def run(self, cuts: int) -> int:
        """Up to `cuts` cuts, stopping at the first violation; how many there were."""
        self._totals.disks += 1
        self._disk.make()
        done = 0
        while done < cuts and self._checker.clean:
            if done and self._rng.choice(CUTS) == STARTING:
                self._cut_while_starting()
            else:
                self._live()
            done += 1
        if self._checker.clean:
            self._last_life()
        self._totals.sent.update(sent.kind for sent in self._history.sent.values())
        return done

    def _start(self) -> bool:
        began = time.monotonic()
        try:
            self._broker.start()
        except AssertionError as error:
            self._checker.wrong("no-start", str(error)[-1500:])
            return False
        self._totals.starts.append(time.monotonic() - began)
        return True

    def _live(self) -> None:
        if not self._start():
            return
        address = self._broker.broker
        if self._history.life == 0:
            with Wire(address) as wire:
                make_topic(wire)
        else:
            whole = self._rng.random() < 0.25
            self._history.note_known()
            self._checker.after_start(address, self._rng, whole=whole)
            self._history.read_at = time.monotonic()
            if self._rng.random() < 0.7:
                self._checker.end_open(address)
        load = Load(address, self._history, self._rng)
        load.start()
        longest = 1.0 if self._sync else 2.5
        time.sleep(self._rng.uniform(0.05, longest))
        deadline = time.monotonic() + 10
        while load.answered < 20 and time.monotonic() < deadline:
            time.sleep(0.01)
        self._die(load, self._rng.choice([how for how in CUTS if how != STARTING]))

    def _die(self, load: Load, how: str) -> None:
        if how == STOPPED:
            load.stop()
            load.join()
            self._broker.stop()
        elif how == KILLED:
            self._broker.kill()
        flushed_until = load.flushed_until  # a sync during the cut may succeed and be lost
        cut = self._disk.cut()
        if how == RUNNING:
            time.sleep(0.03)
            code = self._broker.exit_code()
            if code is not None:
                text = f"the broker ended with {code} when its disk went down"
                self._checker.wrong("died", text, fatal=False)
            self._broker.kill()
        load.stop()
        load.join()
        promised = cut.after if how == STOPPED else cut.before
        if not self._sync and how != STOPPED:
            if flushed_until:
                self._totals.windows.append(promised - flushed_until)
            promised = min(promised, flushed_until)
        self._history.note_cut(cut, promised, self._totals)
        self._totals.cuts[how] += 1
        self._disk.power_on()

    def _cut_while_starting(self) -> None:
        self._broker.launch()
        time.sleep(self._rng.uniform(0.1, 0.7))
        self._disk.cut()
        self._broker.kill()
        self._totals.cuts[STARTING] += 1
        self._disk.power_on()

    def _last_life(self) -> None:
        if not self._start():
            return
        self._checker.after_start(self._broker.broker, self._rng, whole=True)
        self._checker.to_the_end(self._broker.broker)
        self._broker.stop()
        report = verify(open_directory(str(self._broker.store)), lambda _: None)
        if report.problems:
            self._checker.wrong("verify", str(report.problems[0]), number=len(report.problems))


def run(folder: Path, kind: str, flush: str, cuts: int, lives: int, seed: int) -> Totals:
    totals = Totals()
    began = time.monotonic()
    disk = LoopDisk(folder, kind)
    broker = AerobeeBroker(folder / f"{kind}-broker", flushDiskType=flush, **SETTINGS)
    broker.store = disk.place / "store"
    try:
        done = 0
        while done < cuts:
            image = Image(disk, broker, flush, totals, f"{seed}/{kind}/{flush}/{done}")
            done += image.run(min(lives, cuts - done))
            if broker.is_running:
                broker.kill()
            if not image.is_clean:
                disk.keep()
            print(summary(kind, flush, totals, time.monotonic() - began, seed), flush=True)
    finally:
        if broker.is_running:
            broker.kill()
        disk.remove()
    return totals


def summary(kind: str, flush: str, totals: Totals, seconds: float, seed: int) -> str:
    window = f"longest window {max(totals.windows):.2f} s; " if totals.windows else ""
    return (
        f"{kind} {flush}: {sum(totals.cuts.values())} cuts ({tally(totals.cuts)}) of "
        f"{totals.disks} disks, {sum(totals.sent.values())} sent ({tally(totals.sent)}), "
        f"{totals.acked} acknowledged, {totals.seen} consumed; slowest start "
        f"{totals.slowest_start:.1f} s; {window}violations: {tally(totals.violations)}; "
        f"acknowledged while the disk went down {totals.late}, of them lost {totals.late_lost}; "
        f"{seconds:.0f} s, seed {seed}"
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="crash.powercut", description=__doc__)
    parser.add_argument("cuts", type=int, help="how many, on each file system")
    parser.add_argument("--fs", nargs="+", default=list(FILE_SYSTEMS), choices=FILE_SYSTEMS)
    parser.add_argument("--flush", nargs="+", default=["SYNC_FLUSH"], choices=MODES)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lives", type=int, default=10, help="cuts of one disk")
    given = parser.parse_args(arguments)
    try:
        for kind in given.fs:
            check_possible(kind)
    except CannotMount as error:
        print(error, file=sys.stderr)
        return 2
    lines, failed = [], False
    for kind in given.fs:
        for flush in given.flush:
            folder = Path(tempfile.mkdtemp(prefix="aerobee-powercut-"))
            began = time.monotonic()
            totals = run(folder, kind, flush, given.cuts, given.lives, given.seed)
            lines.append(summary(kind, flush, totals, time.monotonic() - began, given.seed))
            failed = failed or bool(totals.violations)
            if totals.violations:
                print(f"kept in {folder}: the broker's log, and the first disk that went wrong")
            else:
                shutil.rmtree(folder)
    print("\n".join(lines), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
