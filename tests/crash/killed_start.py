"""An `aerobee broker` that kills itself with SIGKILL at one of its calls to the disk.

    python -m crash.killed_start CALLS[:NAME] broker --set ...        (in tests/)

Calls that change files, or those of one name, are counted from the moment at which the store's
folder is locked: a start that recovers ends in the middle of it. The functions are replaced here,
before the broker's modules take them; the broker itself is as it is.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

COUNTED = (
    "fdatasync",
    "fsync",
    "ftruncate",
    "mkdir",
    "posix_fallocate",
    "pwrite",
    "replace",
    "unlink",
    "utime",
)


def count_calls(allowed: int, name: str) -> None:
    """Kill the process at the call after `allowed` ones, counted from the first lock on."""
    left = allowed
    locked = False

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal left
            if locked:
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)

        return call

    def lock(*args: Any) -> None:
        nonlocal locked
        real_lock(*args)
        locked = True

    for each in COUNTED:
        if name in ("", each):
            setattr(os, each, counted(getattr(os, each)))
    real_lock = fcntl.lockf
    fcntl.lockf = lock


if __name__ == "__main__":
    calls, _, name = sys.argv[1].partition(":")
    count_calls(int(calls), name)
    from aerobee.client.cli import main

    sys.argv[0:2] = ["aerobee"]
    sys.exit(main())
