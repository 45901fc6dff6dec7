"""The system calls that Linux has and macOS has not, with what stands in for them there."""

from __future__ import annotations

import fcntl
import os

PAGE = 4096


def full_sync(descriptor: int) -> None:
    """macOS: its fsync stops at the drive's cache; this one does not."""
    fcntl.fcntl(descriptor, getattr(fcntl, "F_FULLFSYNC", 51))


def touch_blocks(descriptor: int, start: int, length: int) -> None:
    """Write a byte of every page as it is: slow, but every block then exists."""
    for position in range(start, start + length, PAGE):
        os.pwrite(descriptor, os.pread(descriptor, 1, position) or b"\0", position)


data_sync = os.fdatasync if hasattr(os, "fdatasync") else full_sync
allocate_blocks = os.posix_fallocate if hasattr(os, "posix_fallocate") else touch_blocks
