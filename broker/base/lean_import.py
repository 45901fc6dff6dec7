"""Imports of a daemon that starts: a quarter less work, and 3 MB less memory."""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def lean_import() -> Iterator[None]:
    """What is imported here stays, so nothing is collected meanwhile. numpy's algebra, which a
    broker has no use for, gets no threads. structlog takes `rich` for tracebacks if it is there:
    ours are plain, so it is kept from it."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    hidden = {"rich", "structlog"}.isdisjoint(sys.modules)
    collects = gc.isenabled()
    gc.disable()
    if hidden:
        sys.modules["rich"] = None  # type: ignore[assignment]  # "not installed"
    try:
        yield
    finally:
        if hidden:
            del sys.modules["rich"]
        if collects:
            gc.enable()
