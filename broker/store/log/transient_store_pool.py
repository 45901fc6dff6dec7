"""TransientStorePool: buffers outside the page cache that puts are written to first.

Off by default. With it a put never waits for the kernel's write-back of the page it touches; in
return, what is not yet committed to the file is lost when the process dies, not only when the
machine does. The buffers are locked in memory where the system permits it.
"""

from __future__ import annotations

import ctypes
import mmap

import structlog

log = structlog.get_logger("aerobee.store")
_libc = ctypes.CDLL(None, use_errno=True)


class TransientStorePool:
    def __init__(self, count: int, size: int) -> None:
        self._size = size
        self._free = [memoryview(mmap.mmap(-1, size)) for _ in range(count)]
        self._lock_in_memory()

    def _lock_in_memory(self) -> None:
        for buffer in self._free:
            anchor = ctypes.c_char.from_buffer(buffer)
            address = ctypes.c_void_p(ctypes.addressof(anchor))
            failed = _libc.mlock(address, ctypes.c_size_t(self._size))
            del anchor
            if failed:
                log.warning(
                    "the transient store pool is not locked in memory and may be swapped out: "
                    "raise LimitMEMLOCK (ulimit -l) or turn transientStorePoolEnable off",
                    buffers=len(self._free),
                    bytes_each=self._size,
                )
                return

    @property
    def available(self) -> int:
        return len(self._free)

    def borrow(self) -> memoryview | None:
        """A buffer for the next file; None when all are in use (that file is then mapped)."""
        return self._free.pop() if self._free else None

    def release(self, buffer: memoryview) -> None:
        self._free.append(buffer)

    def close(self) -> None:
        self._free.clear()
