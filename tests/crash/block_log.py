"""A disk that keeps a log of every write and every flush, in order and with its time; and what such
a disk holds when the power goes after any of them.

`python -m crash.block_log FOLDER IMAGE LOG` mounts the image on FOLDER (root; `fuse_file.py`),
applies what is written to it and appends it to LOG, until it is unmounted.

A device may keep writes in a cache until it is told to flush. So an image has all that was written
before the last flush, and of what came after it everything, or some of the writes, or some of their
sectors.
"""

from __future__ import annotations

import bisect
import os
import random
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from crash.fuse_file import BLOCK, loop_mounted, mount, serve, served

ENTRY: Final = struct.Struct("<dQI")  # monotonic time, offset, length; a length of 0: a flush
SECTOR: Final = 512
WHOLE, SOME_WRITES, SOME_SECTORS = "whole", "some writes", "some sectors"
KINDS: Final = (WHOLE, SOME_WRITES, SOME_SECTORS)
KEPT_SHARES: Final = (0.0, 0.1, 0.5, 0.9)


class LoggedImage:
    def __init__(self, image: str, log: str) -> None:
        self._file = os.open(image, os.O_RDWR)
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.size = os.fstat(self._file).st_size

    def read(self, offset: int, length: int) -> bytes:
        return os.pread(self._file, length, offset)

    def write(self, offset: int, data: bytes) -> None:
        os.pwrite(self._file, data, offset)
        os.writev(self._log, [ENTRY.pack(time.monotonic(), offset, len(data)), data])

    def sync(self) -> None:
        os.write(self._log, ENTRY.pack(time.monotonic(), 0, 0))


@contextmanager
def logged_disk(folder: Path, image: Path, log: Path) -> Iterator[Path]:
    """Where the image's file system is mounted; OSError where there is no FUSE."""
    outer, place = folder / "outer", folder / "logged"
    for each in (outer, place):
        each.mkdir(parents=True, exist_ok=True)
    with served("crash.block_log", outer, image, log) as source, loop_mounted(source, place):
        yield place


@dataclass(frozen=True, slots=True)
class Write:
    offset: int
    data: bytes

    def sectors(self) -> Iterator[Write]:
        """What a device writes whole. An ext4 whose superblock, 1 KB in the first block, is half
        new cannot be mounted before e2fsck has mended it: that block is never torn."""
        if self.offset < BLOCK:
            yield self
            return
        for start in range(0, len(self.data), SECTOR):
            yield Write(self.offset + start, self.data[start : start + SECTOR])


class BlockLog:
    """What was logged: entries from 0 on; None is a flush."""

    def __init__(self, path: Path) -> None:
        self.entries: list[Write | None] = []
        self.times: list[float] = []
        data = path.read_bytes()
        at = 0
        while at < len(data):
            when, offset, length = ENTRY.unpack_from(data, at)
            at += ENTRY.size + length
            self.times.append(when)
            self.entries.append(Write(offset, data[at - length : at]) if length else None)

    def __len__(self) -> int:
        return len(self.entries)

    def first_after(self, moment: float) -> int:
        """How many entries there were at that time."""
        return bisect.bisect_right(self.times, moment)

    def end_of(self, count: int) -> float:
        """The time until which the device held exactly `count` entries. Answers sent before
        it rely on no later entry."""
        return self.times[count] if count < len(self.times) else float("inf")


class Images:
    """Images of one log, at increasing points."""

    def __init__(self, base: Path, log: BlockLog) -> None:
        self._durable = base  # changed in place: what is flushed at the point that was asked last
        self._log = log
        self._flushed = 0  # entries in it

    def make(self, count: int, kind: str, rng: random.Random, target: Path) -> int:
        """The device after `count` entries; how many writes or sectors of them are missing."""
        entries = self._log.entries
        flushed = count
        while flushed > self._flushed and entries[flushed - 1] is not None:
            flushed -= 1
        _apply(self._durable, entries[self._flushed : flushed])
        self._flushed = flushed
        # Keeps holes: most of a small disk was never written.
        subprocess.run(["cp", "--sparse=auto", str(self._durable), str(target)], check=True)
        cached = [each for each in entries[flushed:count] if each is not None]
        if kind == SOME_SECTORS:
            cached = [sector for each in cached for sector in each.sectors()]
        share = 1.0 if kind == WHOLE else rng.choice(KEPT_SHARES)
        kept = [each for each in cached if rng.random() < share]
        _apply(target, kept)
        return len(cached) - len(kept)


def _apply(image: Path, entries: list[Write | None] | list[Write]) -> None:
    with image.open("r+b", buffering=0) as file:
        for entry in entries:
            if entry is not None:
                os.pwrite(file.fileno(), entry.data, entry.offset)


def main(folder: str, image: str, log: str) -> None:
    logged = LoggedImage(image, log)
    device = mount(folder)
    print("mounted", flush=True)
    serve(logged, device)


if __name__ == "__main__":
    main(*sys.argv[1:])
