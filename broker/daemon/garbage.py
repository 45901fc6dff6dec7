"""Python's garbage collection without long pauses, and memory returned to the system.

A collection traverses every object of its generation, and nothing else runs meanwhile: with 10,000
connections a full one takes 60 ms. So what has survived two collections is not traversed again
while clients are served. Requests that leave something behind (a topic, a member, an offset) are
followed by a small collection after their turn of the loop, when what they needed meanwhile is
gone. The full collection waits for a quiet moment. Then freed memory that the C library still
holds is returned as well: after a burst that can be most of it.
"""

import ctypes
import gc
import time
from pathlib import Path
from typing import Final

import structlog

from aerobee.broker.base.turns import Turns, nothing

log = structlog.get_logger("aerobee.garbage")

# A run of sends makes thousands of tuples that are freed by reference counts: do not collect there.
_YOUNG_MAX: Final = 5_000
_MIDDLE_MAX: Final = 1  # collections of the young before one of the middle generation: some 2 ms
_OLD_MAX: Final = 1000
_LEFT_MAX: Final = 700  # objects that turns of the loop have left behind: some 0.1 ms
_GROWN: Final = 1.25  # times as many objects are worth a full collection
_QUIET: Final = 0.02  # the share of its time for which the loop's thread then works, at most
_FREE_MIN: Final = 8 << 20  # bytes that are worth giving back
# Of glibc's mallopt: M_ARENA_MAX, M_TRIM_THRESHOLD, M_MMAP_THRESHOLD.
_ARENA_MAX, _TRIM_FROM, _MAP_FROM = -8, -1, -3
_KEPT_MAX: Final = 6 << 20  # free bytes that the heap keeps at its end while requests come
_OWN_MAP_MIN: Final = 2 << 20  # a piece of this size is mapped for itself


class _Mallinfo2(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks"),
            *("uordblks", "fordblks", "keepcost"),
        )
    )


class Garbage:
    """From the end of the start on; `look` is called every few seconds."""

    def __init__(self) -> None:
        self._kept = 0  # objects that the last full collection has left
        self._looked_at = self._worked = 0.0
        self._resident = 0  # bytes after memory was last returned
        self._libc = _libc()

    def begin(self) -> None:
        """What the start made stays: no collection needs to look at it again."""
        gc.freeze()
        self._kept = gc.get_freeze_count()
        self._looked_at, self._worked = time.monotonic(), time.thread_time()
        self._resident = anonymous_bytes()
        gc.set_threshold(_YOUNG_MAX, _MIDDLE_MAX, _OLD_MAX)
        gc.callbacks.append(self._collected)
        Turns.at_end = self._after_turn

    def end(self) -> None:
        Turns.at_end = nothing
        gc.callbacks.remove(self._collected)

    def look(self) -> None:
        """If hardly anybody was served since the last call: collect all when there is much more
        than the last time, and give memory back when much is free."""
        now, worked = time.monotonic(), time.thread_time()
        is_quiet = worked - self._worked < _QUIET * (now - self._looked_at)
        self._looked_at, self._worked = now, worked
        if not is_quiet:
            return
        if gc.get_freeze_count() > self._kept * _GROWN:
            self._collect()
        if self._libc is not None and anonymous_bytes() > self._resident + _FREE_MIN:
            self._give_back(self._libc)

    def _give_back(self, libc: ctypes.CDLL) -> None:
        before = anonymous_bytes()
        if libc.mallinfo2().fordblks >= _FREE_MIN:
            libc.malloc_trim(0)
        self._resident = anonymous_bytes()
        if (given := before - self._resident) >= _FREE_MIN:
            log.info("memory returned to the system", bytes=given, left=self._resident)

    def _collect(self) -> None:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._kept = gc.get_freeze_count()

    def _after_turn(self) -> None:
        """Collect before much has come together, the middle generation every second time."""
        young, middle, _ = gc.get_count()
        if young > _LEFT_MAX:
            gc.collect(1 if middle else 0)

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 1:
            gc.freeze()


def anonymous_bytes() -> int:
    """The memory of this process that no file backs; 0 where the system does not say."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    _, found, rest = status.partition("RssAnon:")
    return int(rest.split()[0]) * 1024 if found else 0


def use_one_heap() -> None:
    """Before the first thread: all threads take memory from one heap. In glibc each has its own
    otherwise, which keeps a megabyte or more of what it has freed; and the interpreter's lock lets
    only one of them ask at a time, as a rule.

    The heap keeps what large requests free: bodies of a megabyte would otherwise get new pages from
    the system each time, which took half of their CPU. `Garbage` gives them back."""
    libc = _libc()
    if libc is not None:
        libc.mallopt(_ARENA_MAX, 1)
        libc.mallopt(_TRIM_FROM, _KEPT_MAX)
        libc.mallopt(_MAP_FROM, _OWN_MAP_MIN)


def _libc() -> ctypes.CDLL | None:
    """The C library, if it can say what is free and give it back: glibc since 2.33."""
    try:
        libc = ctypes.CDLL(None)
        libc.mallinfo2.restype = _Mallinfo2
        libc.malloc_trim.argtypes = [ctypes.c_size_t]
    except (OSError, AttributeError):
        return None
    return libc
