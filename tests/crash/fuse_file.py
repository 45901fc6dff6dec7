"""A FUSE file system of one file, spoken to through /dev/fuse without a library: the image of a
disk whose reads, writes and flushes a test can watch or let fail. A loop device on it makes a disk
of it; the device mapper, which has targets for that, is not in every kernel.

A program calls `mount` and then `serve`, which returns when it is unmounted; `served` runs such a
program.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

TESTS: Final = Path(__file__).resolve().parent.parent
BLOCK: Final = 4096
NAME: Final = "disk.img"
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


class Image(Protocol):
    """What is behind the file. An OSError is the answer to the kernel."""

    size: int

    def read(self, offset: int, length: int) -> bytes: ...

    def write(self, offset: int, data: bytes) -> None: ...

    def sync(self) -> None: ...


def mount(folder: str) -> int:
    """The device to serve; OSError where there is no FUSE."""
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"aerobee-test", folder.encode(), b"fuse", 0, options):
        raise OSError(ctypes.get_errno(), "no FUSE mount here", folder)
    return device


def serve(image: Image, device: int) -> None:
    """Answers one request after the other, until the file system is unmounted."""
    while True:
        try:
            request = os.read(device, WRITE_MAX + 8192)
        except OSError as error:
            if error.errno == errno.ENODEV:  # unmounted
                return
            raise
        _, code, unique, node, *_ = IN.unpack_from(request)
        if code in (FORGET, BATCH_FORGET):
            continue
        if code == DESTROY:
            return
        try:
            body, error_number = _answer(image, code, node, request[IN.size :]), 0
        except OSError as failure:
            body, error_number = b"", -(failure.errno or errno.EIO)
        os.write(device, OUT.pack(OUT.size + len(body), error_number, unique) + body)


def _answer(image: Image, code: int, node: int, data: bytes) -> bytes:
    if code == READ:
        _, offset, length = PART.unpack_from(data)
        return image.read(offset, length)
    if code == WRITE:
        _, offset, length = PART.unpack_from(data)
        image.write(offset, data[DATA_AT : DATA_AT + length])
        return struct.pack("<II", length, 0)
    if code == FSYNC:
        image.sync()
        return b""
    if code == INIT:
        _, minor, ahead, _ = struct.unpack_from("<4I", data)
        return INIT_OUT.pack(7, min(minor, 31), ahead, 0, 16, 12, WRITE_MAX, 1, 0, 0, 0, 0)
    if code == LOOKUP:
        if data.rstrip(b"\0") != NAME.encode():
            raise FileNotFoundError(errno.ENOENT, "there is one file")
        known = struct.pack("<4Q2I", FILE_NODE, 0, 3600, 3600, 0, 0)
        return known + _attributes(image, FILE_NODE)
    if code in (GETATTR, SETATTR):
        return struct.pack("<QII", 3600, 0, 0) + _attributes(image, node)
    if code == OPEN:
        return struct.pack("<QII", 0, DIRECT_IO, 0)
    if code == STATFS:
        return struct.pack("<5Q4I24x", image.size // BLOCK, 0, 0, 2, 0, BLOCK, 255, BLOCK, 0)
    if code in (RELEASE, FLUSH, ACCESS):
        return b""
    raise OSError(errno.ENOSYS, "no such call here")


def _attributes(image: Image, node: int) -> bytes:
    mode = stat.S_IFDIR | 0o755 if node == ROOT_NODE else stat.S_IFREG | 0o600
    length = 0 if node == ROOT_NODE else image.size
    return ATTR.pack(*(node, length, length // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, BLOCK, 0))


@contextmanager
def served(module: str, outer: Path, *arguments: Path) -> Iterator[Path]:
    """The file, served by a program that is given the folder of the mount first and says a line
    once it is mounted; OSError where there is no FUSE."""
    command = [sys.executable, "-m", module, str(outer), *map(str, arguments)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=TESTS)
    assert server.stdout is not None
    try:
        if not server.stdout.readline():
            raise OSError(errno.ENODEV, "no FUSE mount here")
        try:
            yield outer / NAME
        finally:
            subprocess.run(["umount", str(outer)], check=False)
    finally:
        server.stdout.close()
        server.wait(30)


@contextmanager
def loop_mounted(image: Path, place: Path) -> Iterator[None]:
    """The file system of the image, mounted."""
    subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(place)], check=False)
