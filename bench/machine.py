"""Which machine a figure comes from, and its memory."""

import mmap
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_POPULATE_WRITE: Final = 23  # MADV_POPULATE_WRITE
_MOST: Final = 3 << 30


@contextmanager
def warm_memory(size: int) -> Iterator[None]:
    """Use so many bytes of memory and free them, so that the measured program finds them mapped.

    A virtual machine may have returned its free memory to the host, which then has to provide each
    page again: 10 us for a page of a log, where a send takes 3. That must not be measured.
    """
    with mmap.mmap(-1, max(mmap.PAGESIZE, min(size, _MOST))) as pages:
        pages.madvise(mmap.MADV_NOHUGEPAGE)
        pages.madvise(_POPULATE_WRITE)
        yield


def describe_machine() -> str:
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    kernel = platform.release().partition("-")[0]
    return f"{os.cpu_count()} cores ({cpu}), {memory_gb:.0f} GB, Linux {kernel}"
