"""A file system of its own in an image file, which can lose power: ext4 or xfs on a loop mount.

The cut is the file system's own shutdown request without a flush of its log: nothing that is not
on the device by then gets there, and every later write fails. After the next mount the files are
what a power failure would have left.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_SHUTDOWN: Final = 0x8004587D  # _IOR('X', 125, uint32): EXT4_IOC_SHUTDOWN, XFS_IOC_GOINGDOWN
_NO_LOG_FLUSH: Final = struct.pack("I", 2)
_SIZE: Final = 320 << 20  # the least that mkfs.xfs takes, and some more; the image is sparse
_MAKE: Final = {
    "ext4": ("mkfs.ext4", "-q", "-F", "-m", "0"),
    "xfs": ("mkfs.xfs", "-q", "-f"),
}
FILE_SYSTEMS: Final = tuple(_MAKE)


class CannotMount(Exception):
    """Power cuts cannot be made on this machine; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The monotonic times just before and just after the file system went down."""

    before: float
    after: float


class LoopDisk:
    def __init__(self, folder: Path, kind: str, size: int = _SIZE) -> None:
        self.kind = kind
        self._size = size
        self.image = folder / f"{kind}.img"
        self.place = folder / kind
        self.place.mkdir(parents=True, exist_ok=True)
        self.mounted = False

    def make(self) -> None:
        """An empty file system, mounted."""
        self.unmount()
        self.image.unlink(missing_ok=True)
        with self.image.open("wb") as file:
            file.truncate(self._size)
        _run(*_MAKE[self.kind], str(self.image))
        self.mount()

    def mount(self) -> None:
        _run("mount", "-o", "loop", str(self.image), str(self.place))
        # Else a copy of the mount in another namespace keeps the dead file system busy.
        _run("mount", "--make-shared", str(self.place))
        self.mounted = True

    def unmount(self) -> None:
        """A process that was just killed may keep the mount busy for a moment."""
        if not self.mounted:
            return
        deadline = time.monotonic() + 20
        while True:
            try:
                _run("umount", str(self.place))
            except CannotMount:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            else:
                self.mounted = False
                return

    def cut(self) -> Cut:
        folder = os.open(self.place, os.O_RDONLY | os.O_DIRECTORY)
        try:
            before = time.monotonic()
            fcntl.ioctl(folder, _SHUTDOWN, _NO_LOG_FLUSH)
            return Cut(before, time.monotonic())
        finally:
            os.close(folder)

    def power_on(self) -> None:
        self.unmount()
        self.mount()

    def keep(self) -> None:
        """Keep the image for debugging, if it is the first."""
        self.unmount()
        kept = self.image.with_suffix(".kept")
        if not kept.exists():
            self.image.rename(kept)

    def remove(self) -> None:
        self.unmount()
        self.image.unlink(missing_ok=True)


def check_possible(kind: str) -> None:
    """CannotMount when this machine lacks something."""
    if os.geteuid() != 0:
        raise CannotMount("power cuts need root: they mount a disk image; run it as root")
    if shutil.which(_MAKE[kind][0]) is None:
        package = {"ext4": "e2fsprogs", "xfs": "xfsprogs"}[kind]
        raise CannotMount(f"{_MAKE[kind][0]} is not installed: apt-get install {package}")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise CannotMount(f"{' '.join(command)}: {done.stderr.strip()}")
