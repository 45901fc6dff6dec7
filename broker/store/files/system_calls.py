"""System calls that Python lacks: a map without a descriptor of its own, preloaded pages, blocks
written unchanged; and replacements on macOS for those that only Linux has."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import sys
import weakref
from typing import Any, Final

import numpy as np

from aerobee.broker.compiled import hot

PAGE = 4096
_CHECKED_STEP = 64 * 1024
_ZEROS: Final = bytes(_CHECKED_STEP)
_CHECKED_MAX = 16 * 1024 * 1024

_libc = ctypes.CDLL(None, use_errno=True)
_map = _libc.mmap
_map.restype = ctypes.c_void_p
_map.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
)
_unmap = _libc.munmap
_unmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_advise = _libc.madvise
_advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_FAILED = ctypes.c_void_p(-1).value
_POPULATE_READ: Final = 22  # MADV_POPULATE_READ, Linux 5.14
_POPULATE_WRITE: Final = 23  # MADV_POPULATE_WRITE, Linux 5.14
_UNREADABLE: Final = (errno.EFAULT, getattr(errno, "EHWPOISON", 133))
_READ_STEP: Final = 4 * 1024 * 1024
_WRITE_AND_WAIT: Final = 7  # of sync_file_range
if sys.platform == "linux":
    _sync_range = _libc.sync_file_range
    _sync_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


class FileMap(np.ndarray[Any, np.dtype[np.uint8]]):
    """The memory behind a view of a mapped file, for whoever has only the view."""

    is_file_map = True


def map_file(descriptor: int, size: int, *, random: bool) -> memoryview:
    """The file's first bytes as writable shared memory; releasing the last view unmaps it. Python's
    own mmap keeps a descriptor open for each map, so thousands of queues would take two descriptors
    each."""
    access = mmap.PROT_READ | mmap.PROT_WRITE
    address = _map(None, size, access, mmap.MAP_SHARED, descriptor, 0)
    if address is None or address == _FAILED:
        raise _last_error()
    if random:
        _advise(address, size, mmap.MADV_RANDOM)  # advice only: a refusal changes nothing
    memory = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(memory, _unmap, address, size).atexit = False
    # Plain bytes, unlike those of ctypes.
    return np.frombuffer(memoryview(memory), np.uint8).view(FileMap).data


def first_unreadable(descriptor: int, view: memoryview, start: int, end: int) -> int | None:
    """The first page of a map's range that the device cannot read (a SIGBUS if touched); None: all
    of it is in memory now, or the kernel is older than 5.14."""
    if sys.platform != "linux":
        return None
    address = np.frombuffer(view, np.uint8).ctypes.data
    start -= start % PAGE
    while start < end:
        if end - start > _READ_STEP:
            start = max(start, _data_from(descriptor, start, end) // PAGE * PAGE)
        step = min(end - start, _READ_STEP)
        if step > 0 and _is_unreadable(address + start, step):
            pages = range(start, start + step, PAGE)
            return next((at for at in pages if _is_unreadable(address + at, PAGE)), None)
        start += _READ_STEP
    return None


def _data_from(descriptor: int, position: int, end: int) -> int:
    """The position of the next block that was ever written."""
    try:
        return os.lseek(descriptor, position, os.SEEK_DATA)
    except OSError as error:
        return end if error.errno == errno.ENXIO else position


def _is_unreadable(address: int, length: int) -> bool:
    return bool(_advise(address, length, _POPULATE_READ)) and ctypes.get_errno() in _UNREADABLE


def bring_in(view: memoryview, start: int, length: int, *, dirty: bool) -> None:
    """Load the pages of a map's range; dirty ones can be stored to without a page fault. OSError
    EINVAL from a kernel before 5.14."""
    address = np.frombuffer(view, np.uint8).ctypes.data
    if _advise(address + start, length, _POPULATE_WRITE if dirty else _POPULATE_READ):
        raise _last_error()


def store_slice(view: memoryview, position: int, data: bytes | memoryview) -> None:
    view[position : position + len(data)] = data


# Store into a map. The compiled one releases the GIL: a page fault may wait for the disk.
store = store_slice if hot is None else hot.store


def rewrite_blocks(descriptor: int, start: int, length: int) -> None:
    """Write the pages of a range to disk unchanged, even if others write to them meanwhile: they
    are made dirty without a store. OSError EINVAL from a kernel before 5.14."""
    if sys.platform != "linux":
        return  # macOS: `touch_blocks` has written them when they were allocated
    access = mmap.PROT_READ | mmap.PROT_WRITE
    address = _map(None, length, access, mmap.MAP_SHARED, descriptor, start)
    if address is None or address == _FAILED:
        raise _last_error()
    try:
        if _advise(address, length, _POPULATE_WRITE):
            raise _last_error()
    finally:
        _unmap(address, length)
    if _sync_range(descriptor, start, length, _WRITE_AND_WAIT):
        raise _last_error()


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def full_sync(descriptor: int) -> None:
    """macOS: its fsync stops at the drive's cache; this one does not."""
    fcntl.fcntl(descriptor, getattr(fcntl, "F_FULLFSYNC", 51))


def touch_blocks(descriptor: int, start: int, length: int) -> None:
    """Write a byte of every page as it is: slow, but every block then exists."""
    for position in range(start, start + length, PAGE):
        os.pwrite(descriptor, os.pread(descriptor, 1, position) or b"\0", position)


def is_empty_from(descriptor: int, position: int) -> bool:
    """Whether everything after `position` is zeros. Blocks that are allocated but were never
    written are not read; False where there is much to read."""
    if not hasattr(os, "SEEK_DATA"):
        return False
    checked = 0
    try:
        while checked < _CHECKED_MAX:
            position = os.lseek(descriptor, position, os.SEEK_DATA)  # counts cached data, too
            piece = os.pread(descriptor, _CHECKED_STEP, position)
            if not piece:
                return True
            if piece != _ZEROS[: len(piece)]:
                return False
            checked += len(piece)
            position += len(piece)
    except OSError as error:
        if error.errno != errno.ENXIO:  # no more data
            raise
        return True
    return False


data_sync = os.fdatasync if hasattr(os, "fdatasync") else full_sync
allocate_blocks = os.posix_fallocate if hasattr(os, "posix_fallocate") else touch_blocks
