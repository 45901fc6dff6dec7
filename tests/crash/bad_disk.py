"""A disk with bad sectors: an image (`fuse_file.py`) whose reads of chosen blocks fail with EIO.

`python -m crash.bad_disk FOLDER IMAGE BLOCKS` mounts it on FOLDER (root) and serves until it is
unmounted. BLOCKS is a file with a byte for each 4 KiB block of the image: 1 is bad.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from crash.fuse_file import BLOCK, loop_mounted, mount, serve, served

FIBMAP: Final = 1


class BadImage:
    def __init__(self, image: str, bad: mmap.mmap) -> None:
        self._file = os.open(image, os.O_RDWR)
        self._bad = bad
        self.size = os.fstat(self._file).st_size

    def read(self, offset: int, length: int) -> bytes:
        if any(self._bad[offset // BLOCK : -(-(offset + length) // BLOCK)]):
            raise OSError(errno.EIO, "a bad sector")
        return os.pread(self._file, length, offset)

    def write(self, offset: int, data: bytes) -> None:
        os.pwrite(self._file, data, offset)

    def sync(self) -> None:
        pass  # no power cuts here: nothing to sync


def main(folder: str, image: str, blocks: str) -> None:
    with open(blocks, "r+b") as file:
        bad = BadImage(image, mmap.mmap(file.fileno(), 0))
    device = mount(folder)
    print("mounted", flush=True)
    serve(bad, device)


class BadDisk:
    """The disk seen from a test."""

    def __init__(self, place: Path, blocks: mmap.mmap) -> None:
        self.place = place  # where its file system is mounted
        self._blocks = blocks

    def spoil(self, path: Path, position: int) -> None:
        """The block under this byte of a file cannot be read any more, once it has left memory."""
        with path.open("rb") as file:
            os.fsync(file.fileno())
            found = fcntl.ioctl(file.fileno(), FIBMAP, struct.pack("i", position // BLOCK))
            (block,) = struct.unpack("i", found)
            assert block, f"{path} has no block at {position}"
            self._blocks[block] = 1
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def mend(self) -> None:
        self._blocks[:] = bytes(len(self._blocks))


@contextmanager
def bad_disk(folder: Path, size: int = 256 << 20) -> Iterator[BadDisk]:
    """An ext4 on such a disk; OSError where there is no FUSE."""
    image, outer, place = folder / "image", folder / "outer", folder / "disk"
    for each in (outer, place):
        each.mkdir(parents=True)
    blocks = folder / "blocks"
    blocks.write_bytes(bytes(size // BLOCK))
    with image.open("wb") as file:
        file.truncate(size)
    subprocess.run(["mkfs.ext4", "-q", "-b", str(BLOCK), "-m", "0", str(image)], check=True)
    with (
        served("crash.bad_disk", outer, image, blocks) as source,
        loop_mounted(source, place),
        blocks.open("r+b") as bad,
        mmap.mmap(bad.fileno(), 0) as table,
    ):
        yield BadDisk(place, table)


if __name__ == "__main__":
    main(*sys.argv[1:])
