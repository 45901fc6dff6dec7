"""A disk with bad sectors: a FUSE file system of one file, the image of a disk, whose reads of
chosen blocks fail with EIO. The device mapper, which has a target for that, is not in every kernel.

`python bad_disk.py IMAGE FOLDER BLOCKS` mounts it on FOLDER (root; no library is needed) and serves
until it is unmounted. BLOCKS is a file with a byte for each 4 KiB block of the image: 1 is bad.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

BLOCK: Final = 4096
NAME: Final = b"disk.img"
ROOT_NODE, FILE_NODE = 1, 2
LOOKUP, FORGET, GETATTR, SETATTR, OPEN, READ, WRITE, STATFS = 1, 2, 3, 4, 14, 15, 16, 17
RELEASE, FSYNC, FLUSH, INIT, ACCESS, DESTROY, BATCH_FORGET = 18, 20, 25, 26, 34, 38, 42
IN: Final = struct.Struct("<IIQQIIIHH")
OUT: Final = struct.Struct("<IiQ")
INIT_OUT: Final = struct.Struct("<IIIIHHIIHHII24x")
ATTR: Final = struct.Struct("<6Q10I")
PART: Final = struct.Struct("<QQI")  # of a read or write: handle, offset, size
DATA_AT: Final = 40  # of a write
DIRECT_IO: Final = 1
WRITE_MAX: Final = 128 << 10
FIBMAP: Final = 1


def serve(image: int, device: int, bad: mmap.mmap) -> None:
    size = os.fstat(image).st_size

    def attributes(node: int) -> bytes:
        mode = stat.S_IFDIR | 0o755 if node == ROOT_NODE else stat.S_IFREG | 0o600
        length = 0 if node == ROOT_NODE else size
        return ATTR.pack(
            *(node, length, length // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, BLOCK, 0)
        )

    def read(data: bytes) -> bytes:
        _, offset, length = PART.unpack_from(data)
        if any(bad[offset // BLOCK : -(-(offset + length) // BLOCK)]):
            raise OSError(errno.EIO, "a bad sector")
        return os.pread(image, length, offset)

    def write(data: bytes) -> bytes:
        _, offset, length = PART.unpack_from(data)
        return struct.pack("<II", os.pwrite(image, data[DATA_AT : DATA_AT + length], offset), 0)

    def look_up(data: bytes) -> bytes:
        if data.rstrip(b"\0") != NAME:
            raise FileNotFoundError(errno.ENOENT, "there is one file")
        return struct.pack("<4Q2I", FILE_NODE, 0, 3600, 3600, 0, 0) + attributes(FILE_NODE)

    def answer(code: int, node: int, data: bytes) -> bytes:
        if code == INIT:
            _, minor, ahead, _ = struct.unpack_from("<4I", data)
            return INIT_OUT.pack(7, min(minor, 31), ahead, 0, 16, 12, WRITE_MAX, 1, 0, 0, 0, 0)
        if code == LOOKUP:
            return look_up(data)
        if code in (GETATTR, SETATTR):
            return struct.pack("<QII", 3600, 0, 0) + attributes(node)
        if code == OPEN:
            return struct.pack("<QII", 0, DIRECT_IO, 0)
        if code == READ:
            return read(data)
        if code == WRITE:
            return write(data)
        if code == STATFS:
            return struct.pack("<5Q4I24x", size // BLOCK, 0, 0, 2, 0, BLOCK, 255, BLOCK, 0)
        if code in (RELEASE, FSYNC, FLUSH, ACCESS):
            return b""
        raise OSError(errno.ENOSYS, "no such call here")

    while True:
        request = os.read(device, WRITE_MAX + 8192)
        _, code, unique, node, *_ = IN.unpack_from(request)
        if code in (FORGET, BATCH_FORGET):
            continue
        if code == DESTROY:
            return
        try:
            body, error = answer(code, node, request[IN.size :]), 0
        except OSError as failure:
            body, error = b"", -(failure.errno or errno.EIO)
        os.write(device, OUT.pack(OUT.size + len(body), error, unique) + body)


def main(image: str, folder: str, blocks: str) -> None:
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"bad_disk", folder.encode(), b"fuse", 0, options):
        raise OSError(ctypes.get_errno(), "no FUSE mount here", folder)
    print("mounted", flush=True)
    with open(blocks, "r+b") as file:
        bad = mmap.mmap(file.fileno(), 0)
    try:
        serve(os.open(image, os.O_RDWR), device, bad)
    except OSError as error:
        if error.errno != errno.ENODEV:  # unmounted
            raise


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
    command = [sys.executable, __file__, str(image), str(outer), str(blocks)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert server.stdout is not None
    mounts: list[Path] = []
    try:
        if not server.stdout.readline():
            raise OSError(errno.ENODEV, "no FUSE mount here")
        mounts.append(outer)
        source = str(outer / NAME.decode())
        subprocess.run(["mount", "-o", "loop", source, str(place)], check=True)
        mounts.append(place)
        with blocks.open("r+b") as bad, mmap.mmap(bad.fileno(), 0) as table:
            yield BadDisk(place, table)
    finally:
        for mount in reversed(mounts):
            subprocess.run(["umount", str(mount)], check=False)
        server.stdout.close()
        server.wait(30)


if __name__ == "__main__":
    main(*sys.argv[1:])
