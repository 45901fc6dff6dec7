"""Whether fdatasync can succeed for data that is gone after the next mount: the kernel alone.

    python -m crash.sync_at_shutdown 300        (in tests/, as root)

A C program writes and syncs records of 1 KB while the file system is shut down under it, once into
blocks that are only allocated and once into blocks that were written before. The figures in
docs/durability.md come from here.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from crash.powercut.disk import FILE_SYSTEMS, CannotMount, LoopDisk, check_possible

SOURCE = Path(__file__).with_suffix(".c")


def trial(program: Path, folder: Path, kind: str, blocks: str, cuts: int, seed: int) -> int:
    """Prints the figures; how many records were lost that were synced before the cut began."""
    rng = random.Random(seed)
    disk = LoopDisk(folder, kind)
    disk.make()
    synced = during = lost = lost_early = 0
    try:
        for _ in range(cuts):
            early, all_of_them = run(program, disk, blocks, f"{rng.uniform(2, 40):.3f}")
            disk.power_on()
            (found,) = run(program, disk, "check")
            synced += all_of_them
            during += all_of_them - early
            lost += max(0, all_of_them - max(found, early))
            lost_early += max(0, early - found)
            (disk.place / "log").unlink()
            disk.power_on()
    finally:
        disk.remove()
    print(
        f"{kind}, blocks {blocks}: {cuts} cuts, {synced} syncs succeeded; lost: {lost_early} of "
        f"{synced - during} before the cut began, {lost} of {during} after it began",
        flush=True,
    )
    return lost_early


def run(program: Path, disk: LoopDisk, *words: str) -> list[int]:
    command = [str(program), str(disk.place), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]


def main(arguments: Sequence[str]) -> int:
    cuts = int(arguments[0]) if arguments else 300
    seed = int(arguments[1]) if len(arguments) > 1 else 1
    try:
        for kind in FILE_SYSTEMS:
            check_possible(kind)
    except CannotMount as error:
        print(error, file=sys.stderr)
        return 2
    if shutil.which("cc") is None:
        print("no C compiler (cc) here", file=sys.stderr)
        return 2
    folder = Path(tempfile.mkdtemp(prefix="aerobee-shutdown-"))
    program = folder / "sync_at_shutdown"
    subprocess.run(["cc", "-O2", "-Wall", "-o", str(program), str(SOURCE)], check=True)
    lost_early = 0
    for kind in FILE_SYSTEMS:
        for blocks in ("allocated", "written"):
            lost_early += trial(program, folder, kind, blocks, cuts, seed)
    shutil.rmtree(folder)
    return 1 if lost_early else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
