"""Whether a range of a file is in the page cache, without reading it."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from aerobee.broker.compiled import _hot

_CACHESTAT: Final = 451  # Linux 6.5; the number is the same on every architecture
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_PROBE_BYTES: Final = 1 << 20


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Counts(ctypes.Structure):
    _fields_ = (
        ("cached", ctypes.c_uint64),
        ("dirty", ctypes.c_uint64),
        ("writeback", ctypes.c_uint64),
        ("evicted", ctypes.c_uint64),
        ("recently_evicted", ctypes.c_uint64),
    )


_libc: Final = ctypes.PyDLL(None, use_errno=True)
_syscall: Final = _libc.syscall
_mincore: Final = _libc.mincore
_mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
_has_cachestat = hasattr(os, "RWF_NOWAIT")  # Linux, and not yet refused


def is_cached(descriptor: int, position: int, length: int) -> bool:
    """True also where the system cannot tell: the range is then read as if it were cached."""
    global _has_cachestat
    if length <= 0:
        return True
    if _has_cachestat:
        wanted, counts = _Range(position, length), _Counts()
        result = _syscall(
            _CACHESTAT, descriptor, ctypes.byref(wanted), ctypes.byref(counts), ctypes.c_uint(0)
        )
        if result == 0:
            pages = (position + length - 1) // _PAGE - position // _PAGE + 1
            return bool(counts.cached >= pages)
        _has_cachestat = False  # an older kernel, or a sandbox that forbids the call
    return _by_reading(descriptor, position, length)


def forget(descriptor: int, position: int, length: int) -> None:
    """Pages that are dirty, or in use by a map, stay."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, position, length, os.POSIX_FADV_DONTNEED)


def is_resident(view: memoryview, position: int, length: int) -> bool:
    """Whether a range of a map can be read without the device. Unlike `is_cached` it does not count
    pages that could not be read: they stay in the page cache, and touching them is a SIGBUS."""
    if length <= 0 or not _has_cachestat:  # the fallback of `is_cached` counts none of them
        return True
    address = np.frombuffer(view, np.uint8).ctypes.data
    start = position - position % _PAGE
    pages = (position + length - start + _PAGE - 1) // _PAGE
    states = ctypes.create_string_buffer(pages)
    if _mincore(address + start, position + length - start, states):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return states.raw.count(b"\1") == pages


def are_resident(records: _hot.Records) -> bool:
    """The same for all pieces of an answer; False where the system cannot tell."""
    return _has_cachestat and records.is_resident()


def _by_reading(descriptor: int, position: int, length: int) -> bool:
    """Fallback: a read that fails instead of waiting."""
    buffer = bytearray(min(length, _PROBE_BYTES))
    end = position + length
    while position < end:
        view = memoryview(buffer)[: min(len(buffer), end - position)]
        try:
            count = os.preadv(descriptor, [view], position, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                return True
            raise
        if count < len(view):
            return False
        position += count
    return True
