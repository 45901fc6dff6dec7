"""Which machine a figure comes from."""

import os
import platform
from pathlib import Path


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
